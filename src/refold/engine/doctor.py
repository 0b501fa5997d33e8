"""Look a stored conversation over: is everything that was said where it belongs, once, and reachable?

One idea: the rules that make loss impossible can be checked from outside, on any store, at any time. The same checks run after
every test that kills or cuts something, and for a user who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from refold.model.dialect import DIALECTS
from refold.model.errors import WireError
from refold.model.message import Message
from refold.ports.store import Compaction, Head, Session, Store
from refold.wire.message import decode_message

PAGE = 1_000
"""Messages that are read at once: a long conversation is looked over without being held."""

RULES = {
    "I-1": "every message belongs to exactly one session",
    "I-2": "the sessions of a branch follow one another without gap or overlap",
    "I-3": "messages are numbered without a gap",
    "I-4": "a message never changes",
    "I-5": "sessions form one line, and the open one is its end",
    "I-6": "a compaction has one summary, and opened one session",
    "I-7": "a summary covers what was left behind, up to its cut",
    "I-8": "no cut parts a call from its result",
    "I-9": "no compaction is stuck",
}


class Finding(Struct, frozen=True):
    """Something that is not as it should be."""

    rule: str
    conversation: str
    branch: str
    what: str
    hint: str = ""


class _Case(Struct, frozen=True):
    """What is known about one branch."""

    head: Head
    sessions: tuple[Session, ...]
    compactions: tuple[Compaction, ...]
    summaries: dict[str, tuple[int, int]]
    """What each covers, by the compaction it was written for."""

    @property
    def live(self) -> list[Session]:
        """The sessions that count, in the order of the branch; those that hold nothing before those that follow them."""
        own = (one for one in self.sessions if one.state == "live" and one.branch == self.head.branch)
        return sorted(own, key=lambda one: (one.first, one.last is None, one.last or 0))

    def finding(self, rule: str, what: str, hint: str = "") -> Finding:
        return Finding(rule, self.head.conversation, self.head.branch, what, hint)


async def examine(store: Store, owner: str, conversation: str, now: float) -> list[Finding]:
    """Every finding about a conversation; empty where all is well."""
    found: list[Finding] = []
    for branch in dict.fromkeys(one.branch for one in await store.sessions(owner, conversation, limit=10**9)):
        head = await store.head(owner, conversation, branch)
        if head is not None:
            found += await _examine(store, head, now)
    return found


async def _examine(store: Store, head: Head, now: float) -> list[Finding]:
    case = await _case(store, head)
    messages = await _messages(store, case)
    damaged = [
        case.finding("I-4", f"the bytes of message {number} have changed", "restore it from a backup")
        for number in await store.damaged(head)
    ]
    return [*_partition(case), *messages, *damaged, *_line(case), *_made(case), *_stuck(case, now)]


async def _case(store: Store, head: Head) -> _Case:
    sessions = await store.sessions(head.owner, head.conversation, limit=10**9)
    compactions = await store.compactions(head.owner, head.branch, limit=10**9)
    written = await store.summaries(head.owner, head.branch, limit=10**9)
    covers = {one.id: (one.summary.first, one.summary.last) for one in written}
    return _Case(head, tuple(sessions), tuple(compactions), covers)


def _partition(case: _Case) -> Iterator[Finding]:
    """I-1 and I-2: the live ranges are a partition of the branch."""
    live, head = case.live, case.head
    if not live:
        yield case.finding("I-1", "the branch has no session")
        return
    if live[0].first != head.base_seq:
        yield case.finding("I-1", f"messages before {live[0].first} belong to no session")
    for before, after in pairwise(live):
        if before.last is None or before.last > after.first:
            yield case.finding("I-2", f"two sessions hold message {after.first}")
        elif before.last < after.first:
            yield case.finding("I-2", f"messages {before.last} to {after.first - 1} belong to no session")
    if live[-1].last is not None:
        yield case.finding("I-1", f"messages from {live[-1].last} on belong to no session")


async def _messages(store: Store, case: _Case) -> list[Finding]:
    """I-3 and I-8, in one reading."""
    head, found = case.head, list[Finding]()
    pairs, expected = _Pairs([one.first for one in case.live if one.kind == "compaction"]), 0
    decode = _decoder(head)
    while page := await store.messages(head, expected, None, PAGE):
        for one in page:
            if one.seq != expected:
                found.append(case.finding("I-3", f"message {expected} is missing"))
            expected = one.seq + 1
            pairs.look(one.seq, decode(one.body))
    if expected != head.next_seq:
        found.append(case.finding("I-3", f"{head.next_seq} messages were counted, {expected} are there"))
    parted = (case.finding("I-8", f"the cut at {cut} parts a call from its result") for cut in pairs.parted)
    return [*found, *parted]


def _decoder(head: Head) -> Callable[[bytes], Message | None]:
    dialect = DIALECTS[head.format]  # type: ignore[index]

    def decode(body: bytes) -> Message | None:
        try:
            return decode_message(body, dialect) if body else None
        except WireError:
            return None  # whether the bytes are those that were stored is checked apart

    return decode


class _Pairs:
    """Follows calls over cuts, within one turn: a result that comes after the user has spoken again was late anyway."""

    def __init__(self, cuts: Sequence[int]) -> None:
        self._cuts, self._open, self.parted = sorted(cuts), dict[str, int](), set[int]()

    def look(self, seq: int, message: Message | None) -> None:
        if message is None:
            return
        if message.role == "user":
            self._open.clear()
        for result in message.results:
            called = self._open.pop(result.call_id, None)
            if called is not None:
                self.parted |= {cut for cut in self._cuts if called < cut <= seq}
        for call in message.calls:
            self._open[call.id] = seq


def _line(case: _Case) -> Iterator[Finding]:
    """I-5: one line, the open session at its end."""
    head, by_id = case.head, {one.id: one for one in case.sessions}
    children = [one for one in case.live if one.kind == "compaction"]
    parents = [one.parent for one in children]
    for twice in {one for one in parents if parents.count(one) > 1}:
        yield case.finding("I-5", f"two sessions follow the session {twice}")
    for child in children:
        parent = by_id.get(child.parent)
        if parent is None or parent.first > child.first:
            yield case.finding("I-5", f"the session {child.id} follows none that came before it")
    open_ones = [one.id for one in case.live if one.last is None]
    if open_ones != [head.session]:
        yield case.finding("I-5", "the open session is not the one that the branch is at")
    if head.epoch < len(children):
        yield case.finding("I-5", f"{len(children)} sessions were opened, and only {head.epoch} are counted")


def _made(case: _Case) -> Iterator[Finding]:
    """I-6 and I-7: every compaction that took effect has its summary and its session."""
    by_id = {one.id: one for one in case.live}
    installed = [one for one in case.compactions if one.state == "installed" and one.kind == "summarise"]
    opened = [one.session for one in installed]
    for twice in {one for one in opened if opened.count(one) > 1}:
        yield case.finding("I-6", f"two compactions opened the session {twice}")
    for one in installed:
        session, covers = by_id.get(one.session), case.summaries.get(one.id)
        if session is None:
            yield case.finding("I-6", f"the compaction {one.id} opened no session")
        elif covers is None:
            yield case.finding("I-6", f"the compaction {one.id} has no summary")
        elif not covers[1] == one.cut == session.first:
            yield case.finding(
                "I-7", f"the summary of {one.id} covers up to {covers[1]}, the cut is at {one.cut}"
            )


def _stuck(case: _Case, now: float) -> Iterator[Finding]:
    """I-9: work that nobody does any more."""
    for one in case.compactions:
        if one.state == "running" and one.until < now:
            yield case.finding(
                "I-9", f"nobody is at work on the compaction {one.id}", "opening the conversation ends it"
            )
