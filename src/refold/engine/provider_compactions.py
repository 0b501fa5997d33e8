"""Compactions that providers made: their makers, and the text that other models see instead.

An item or a block that a provider made goes back unchanged to that provider and model. Its maker is stored
when a reply brings it, or else when it is first sent. It is identified by a hash of its content, because
clients leave out its id or change it.

Any other provider or model sees text instead: the text of a readable compaction; for a sealed one, a digest
of the messages it covers, if they are stored; else a line that says so. Messages that are all in the window
themselves need no digest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from refold.core.budget import Frame
from refold.core.extractive_summary import summarise
from refold.core.fold import FoldedBranch
from refold.core.identity import compaction_keys
from refold.core.plan import SummaryRequest
from refold.core.view import View
from refold.engine.damage import read_run
from refold.engine.journal import read_notes
from refold.engine.state import Secrecy, State
from refold.model.errors import StoreError
from refold.model.message import Message, compaction_of, holds_sealed, in_words, readable_text
from refold.model.tokens import share_of
from refold.ports.records import Head, StoredMessage
from refold.ports.store import Store
from refold.text_work import run_text_work

K = TypeVar("K")
V = TypeVar("V")

_log = logging.getLogger("refold")

TOPIC = "compaction"
DIGEST_SHARE = 0.1
"""Share of the window for a digest of the messages that a sealed compaction covers: the digest stays for as
long as the conversation is asked elsewhere."""

MOST_NESTED = 3
"""How many nested compactions a digest looks into: each has half of the room of the one around it."""
MOST_MAKERS, MOST_DIGESTS = 1_024, 32
"""Entries held in memory: the store has the makers, and a digest can be made again."""


class Maker(Struct, frozen=True):
    """The model that made a compaction, and its source: the first `size` messages of a branch; 0 if they were
    never stored here.
    """

    model: str
    upstream: str = ""
    conversation: str = ""
    branch: str = ""
    size: int = 0

    def is_same(self, other: Maker) -> bool:
        """Whether it is the same model of the same upstream. The library has no upstreams: there only the
        model counts.
        """
        is_same_upstream = self.upstream == other.upstream or not (self.upstream and other.upstream)
        return self.model == other.model and is_same_upstream


class Compactions:
    """Looks up and stores the makers of one owner's compactions."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store, self._owner = store, owner
        self._makers: dict[str, Maker] = {}
        self.unstored: dict[str, Maker] = {}
        """Those that `keep` has to store."""
        self._digests: dict[tuple[str, str, int, int], str] = {}

    def note(self, keys: Iterable[str], maker: Maker) -> None:
        """Remember the maker of some compactions; `keep` stores it."""
        for key in keys:
            _hold(self._makers, key, maker, MOST_MAKERS)
            _hold(self.unstored, key, maker, MOST_MAKERS)

    async def keep(self, at: float) -> None:
        """Store the remembered makers. If the store fails, the next call tries again: it is no reason for
        another act to fail.
        """
        for key, maker in [*self.unstored.items()]:
            try:
                await self._store.learn(self._owner, TOPIC, key, msgspec.msgpack.encode(maker), at)
            except StoreError as error:
                _log.warning("the maker of a compaction could not be stored yet: %s", error.located)
                return
            if self.unstored.get(key) is maker:
                del self.unstored[key]

    async def twins(
        self,
        messages: Mapping[int, Message],
        here: Maker,
        state: State,
        *,
        first_sent_to: Maker | None = None,
    ) -> dict[int, Message]:
        """Return readable replacements for messages with compactions of other makers, by number.

        Args:
            messages: the messages with compactions, by number.
            here: the model that is asked now, and the branch of the messages.
            state: the state that digests are made for.
            first_sent_to: the assumed maker of a compaction that was never seen before.

        Raises:
            StoreError: the store does not answer.
        """
        found = dict[int, Message]()
        for number, message in messages.items():
            makers = {key: await self._maker(key, first_sent_to or here) for key in compaction_keys(message)}
            foreign = {key: maker for key, maker in makers.items() if not maker.is_same(here)}
            if not foreign:
                continue
            is_sealed = any(compaction_of(part) and not readable_text(part) for part in message.parts)
            digest = ""
            if is_sealed and (source := _source(number, foreign, here, state.folded)):
                digest = await self._digest(*source, state)
            found[number] = in_words(message, digest)
        return found

    async def _maker(self, key: str, first_sent_to: Maker) -> Maker:
        """Return the maker of a compaction."""
        if key not in self._makers:
            known = await self._store.learnt(self._owner, TOPIC, key)
            if known is None:
                self.note((key,), Maker(first_sent_to.model, first_sent_to.upstream))
            else:
                _hold(self._makers, key, msgspec.msgpack.decode(known, type=Maker), MOST_MAKERS)
        return self._makers[key]

    async def _digest(self, key: str, maker: Maker, state: State, depth: int = 0) -> str:
        """Return a digest of the messages that a compaction covers. It is the same each time, so that
        requests do not change from call to call. If one of the messages is itself a sealed compaction, at
        this `depth`, the digest of that comes first.
        """
        frame, view, is_sensitive = state.frame, state.folded.shown, state.secrecy.matches
        room = share_of(DIGEST_SHARE, frame.budget.window) >> depth
        which = key, maker.branch, maker.size, room
        if which not in self._digests:
            head = await self._store.head(self._owner, maker.conversation, maker.branch)
            stored = await self._store.messages(head, 0, maker.size) if head else ()
            digest = ""
            if head and len(stored) == maker.size:
                empty = FoldedBranch.of(View(view.dialect, view.counter), frame.policy.file_tools)
                size = sum(len(one.body) for one in stored)
                inner = await self._inner_digest(stored, head, maker, state, depth)
                left = room - room // 2 if inner else room
                digest = await run_text_work(size, _digest_of, stored, head, empty, is_sensitive, left, frame)
                digest = "\n".join(filter(None, (inner, digest)))
            _hold(self._digests, which, digest, MOST_DIGESTS)
        return self._digests[which]

    async def _inner_digest(
        self, stored: Sequence[StoredMessage], head: Head, maker: Maker, state: State, depth: int
    ) -> str:
        """Return the digest of the newest sealed compaction among stored messages, if its source is stored
        under another branch.
        """
        size = sum(len(one.body) for one in stored)
        keys = await run_text_work(size, _newest_sealed, stored, head) if depth < MOST_NESTED else ()
        makers = [(key, await self._maker(key, maker)) for key in keys]
        elsewhere = [(key, one) for key, one in makers if one.size and one.branch != maker.branch]
        return await self._digest(*elsewhere[-1], state, depth + 1) if elsewhere else ""


def _hold(held: dict[K, V], key: K, value: V, most: int) -> None:
    """Add an entry, and drop the oldest if there are more than `most`."""
    held[key] = value
    if len(held) > most:
        del held[next(iter(held))]


def compactions_since(folded: FoldedBranch, first: int) -> dict[int, tuple[str, ...]]:
    """Return the keys of the compactions in the originals from `first` on, by message number."""
    if folded.origin + folded.branch.progress.compaction < first:
        return {}
    first = max(first, folded.origin)
    originals = enumerate(folded.originals(first, folded.size), first)
    return {number: keys for number, message in originals if (keys := compaction_keys(message))}


def _source(
    number: int, foreign: Mapping[str, Maker], here: Maker, folded: FoldedBranch
) -> tuple[str, Maker] | None:
    """Find the stored messages that a sealed compaction covers: on the branch where it was made or, if it
    came with this one, in front of it. None if they are in the window, or were never stored.
    """
    elsewhere = [(key, one) for key, one in foreign.items() if one.size and one.branch != here.branch]
    if elsewhere:
        return elsewhere[-1]
    size = min(number, folded.size)  # later messages come with this request, and are shown
    is_shown = size == sum(item.seq < size for item in folded.items.items)
    return None if is_shown else ([*foreign][-1], structs.replace(here, size=size))


def _newest_sealed(stored: Sequence[StoredMessage], head: Head) -> tuple[str, ...]:
    """Return the keys of the compactions in the newest stored message that holds a sealed one."""
    candidates = [one for one in stored if b"compaction" in one.body]
    for one in reversed(read_run(candidates, head)):
        if one is not None and holds_sealed(one.message):
            return compaction_keys(one.message)
    return ()


def _digest_of(
    stored: Sequence[StoredMessage],
    head: Head,
    folded: FoldedBranch,
    is_sensitive: Callable[[Message], bool],
    room: int,
    frame: Frame,
) -> str:
    """Return a digest of the stored messages; empty if they were stored without content. Sensitive ones are
    left out.
    """
    hidden = {*read_notes(head.notes).sensitive}
    for one in read_run(stored, head):
        if one is None:
            return ""
        is_hidden = one.number in hidden or is_sensitive(one.message)
        folded = folded.hold(one.message) if is_hidden else folded.take(one.message, later=True)
    request = SummaryRequest(0, folded.size, (), (), (), room)
    policy = structs.replace(frame.policy, scope="cumulative")
    folded = structs.replace(folded, secrets=Secrecy().search(folded).known)
    return summarise(request, folded, structs.replace(frame, policy=policy)).text
