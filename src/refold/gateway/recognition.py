"""Recognition: finds the branch that a request continues.

A stateless client sends its whole history with every request. The gateway hashes every prefix of it: the
longest known prefix names the branch, and a request that agrees only up to some message forks there. In doubt
a request starts a branch of its own: an extra branch costs a few bytes, a wrong match would mix two
conversations.

The table `LiveBranches` holds the branches used last with the bytes of their last requests, so that the next
request of a branch is compared instead of parsed. The table is a cache: everything in it is in the store.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from refold.core.identity import extend_by_identity, identity, start_chain
from refold.gateway.admission import return_free_memory
from refold.model.dialect import Dialect
from refold.model.message import Message, holds_compaction
from refold.ports.records import HistoryPlace
from refold.wire.json_codec import too_many
from refold.wire.request import History, Reading, decode_message, have_same_start, read_history, same_items

if TYPE_CHECKING:
    from refold.gateway.conversations import LiveBranch
    from refold.gateway.request import IncomingRequest

Look: TypeAlias = Callable[[Sequence[bytes]], Awaitable[list[HistoryPlace]]]
FIRST_LOOK, LOOK_GROWS = 8, 8
"""Hashes in the first query to the store, and the growth factor of each further query: usually only a reply
and its tool results are new.
"""

MOST_PARTS = 2_000
"""Limit for one message: providers accept a few hundred images or calls, and some work here grows with the
square of the number.
"""
MOST_NEW = 10_000
"""Limit for new messages in one request: five times a long conversation, and a second of work. A request with
more is passed on unchanged.
"""
MOST_BYTES = 40 * 1024 * 1024
"""Memory for branches in use: four of the longest conversations, or several hundred short ones. The
gateway itself takes about a hundred megabytes, and requests that are being served come on top (`gateway/admission.py`).
"""
IDLE_S = 60.0
"""Time for which a branch that takes more than that by itself stays for its next request: agents send one after each tool
call. Later it is read from the store again.
"""
EACH_BYTES, TIMES = 32 * 1024, 12
"""Memory of a branch besides its messages, and the ratio of its messages' memory to the size of their
request; both measured.
"""
SHORT = 6 * 1024
"""A shorter list of messages is faster to read than to compare with hundreds of others."""
LATELY = 256
"""Branches that a request without a name is compared with, latest first; older ones are found by their hashes."""
NEW = 64
"""Messages at the end of a request within which the end of a branch is searched: more new messages at once
are rare.
"""


class Line(Struct, frozen=True):
    """The conversation in one request. The first `offset` items of its list are the system prompt."""

    history: History
    offset: int
    hashes: tuple[bytes, ...]
    """The hash of every prefix, by the number of its last message."""
    replied: int | None = None
    """The number of the assistant's first message."""
    compactions: tuple[int, ...] = ()
    """Numbers of the messages that hold compactions made by a provider."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def leading(self) -> int:
        """Bytes of the list before the conversation: the system prompt, if it is part of the list."""
        return self.history.ends[self.offset - 1] if self.offset else 0

    def bytes_after(self, known: int) -> int:
        """Bytes of the list after the first `known` messages."""
        at = known + self.offset
        return len(self.history.array) - (self.history.ends[at - 1] if at else 0)

    def with_compactions(self, dialect: Dialect) -> dict[int, Message]:
        """The messages that hold compactions made by a provider, by number; each is decoded from a copy of
        its bytes.
        """
        items = ((at, bytes(self.history.item(at + self.offset))) for at in self.compactions)
        return {number: decode_message(item, dialect) for number, item in items}

    def claimed_after(self, known: int) -> bytes:
        """The hash that no other branch may hold if this line continues after `known` messages: the hash of
        the first new message from the first reply on. Different users open with the same words, so a line
        without a reply claims nothing. A message that only holds reasoning has the hash of the one before it,
        which the branch of the known messages holds too.
        """
        if self.replied is None:
            return b""
        at = max(known, self.replied)
        before = self.hashes[at - 1] if at else b""
        return next((one for one in self.hashes[at:] if one != before), b"")


class DecodedLine(Struct, frozen=True):
    """A line, and its decoded messages from number `first` on."""

    line: Line
    first: int
    messages: tuple[Message, ...]
    identities: tuple[bytes | None, ...] = ()
    """The identity of each of these messages, from which the hashes were computed."""

    def identities_since(self, known: int) -> tuple[bytes | None, ...]:
        """The identities of the messages from number `known` on; none if some of them were not read."""
        return self.identities[known - self.first :] if known >= self.first else ()

    def since(self, known: int, dialect: Dialect) -> tuple[Message, ...]:
        """The messages from number `known` on. A decoded message keeps all the bytes it was decoded from in
        memory, so they are decoded again if `messages` holds more than these.
        """
        if known == self.first:
            return self.messages
        items = (self.line.history.item(at + self.line.offset) for at in range(known, len(self.line)))
        return tuple(decode_message(item, dialect) for item in items)

    def skips_turns(self, known: int) -> bool:
        """True if a reply follows a message of another role among the messages from number `known` on. A client adds the last
        reply and then its own messages, so another process has answered in between.
        """
        roles = [one.role for one in self.messages[max(0, known - self.first) :]]
        own = next((at for at, role in enumerate(roles) if role != "assistant"), len(roles))
        return "assistant" in roles[own:]


class KnownHistory(Struct, frozen=True):
    """The common prefix of a line and a stored branch: `place.size` messages of the branch are the first
    `known` of the line.
    """

    place: HistoryPlace
    known: int

    @property
    def goes_on(self) -> bool:
        """True if the branch ends with the common prefix, so that the line continues it."""
        return self.place.size == self.place.length


def chain_key(owner: str, name: str) -> bytes:
    """The key of the hashes. Equal openings of two owners, or of two named conversations, have different
    hashes.
    """
    return sha256(f"{owner}\0{name}".encode("utf-8", "surrogatepass")).digest()


def read_line(
    array: bytes | memoryview, dialect: Dialect, key: bytes, before: Line | None = None
) -> DecodedLine:
    """Read the messages of a request, except those that are equal to the previous request's.

    Raises:
        WireError: an item is not a message of this format, or has too many parts.
    """
    reading = read_history(array, dialect, before.history if before else None)
    if any(len(message.parts) > MOST_PARTS for message in reading.messages):
        raise too_many("parts", MOST_PARTS, "a message")
    if before is None or reading.known <= before.offset:
        return _read_all(read_history(array, dialect) if reading.known else reading, dialect, key)
    known = reading.known - before.offset
    said = tuple(map(identity, reading.messages))
    hashes = (*before.hashes[:known], *_chained(before.hashes[known - 1], said, key))
    is_replied = before.replied is not None and before.replied < known
    replied = before.replied if is_replied else _first_reply(reading.messages, known)
    earlier = tuple(number for number in before.compactions if number < known)
    compactions = (*earlier, *_compactions(reading.messages, known))
    return DecodedLine(
        Line(reading.history, before.offset, hashes, replied, compactions), known, reading.messages, said
    )


def _read_all(reading: Reading, dialect: Dialect, key: bytes) -> DecodedLine:
    items = reading.messages
    offset = _count_leading(items) if dialect.name != "anthropic" else 0
    messages = items[offset:]
    said = tuple(map(identity, messages))
    hashes = tuple(_chained(start_chain(key), said, key))
    replied, compactions = _first_reply(messages, 0), tuple(_compactions(messages, 0))
    return DecodedLine(Line(reading.history, offset, hashes, replied, compactions), 0, messages, said)


def _chained(chain: bytes, identities: Sequence[bytes | None], key: bytes) -> Iterator[bytes]:
    for said in identities:
        chain = extend_by_identity(chain, said, key)
        yield chain


def _first_reply(messages: Sequence[Message], first: int) -> int | None:
    replies = (index for index, one in enumerate(messages, first) if one.role == "assistant")
    return next(replies, None)


def _compactions(messages: Sequence[Message], first: int) -> Iterator[int]:
    return (index for index, one in enumerate(messages, first) if holds_compaction(one))


def _count_leading(items: Sequence[Message]) -> int:
    later = (index for index, item in enumerate(items) if item.role not in ("system", "developer"))
    return next(later, len(items))


async def find(
    hashes: Sequence[bytes], look: Look, wanted: str, *, is_filtered: bool = False
) -> tuple[KnownHistory | None, KnownHistory | None]:
    """The longest known prefix in the `wanted` format, message for message, and the longest in any other
    format. Searches from the newest message backwards. `is_filtered` says that `look` leaves out places.
    """
    foreign: KnownHistory | None = None
    async for places in _search_prefixes(hashes, look, is_filtered=is_filtered):
        own = [one for one in places if one.place.format == wanted and one.known == one.place.size]
        if own:
            return _best_match(own, len(hashes)), foreign
        foreign = foreign or max(places, key=_match_rank, default=None)
    return None, foreign


def _best_match(found: Sequence[KnownHistory], size: int) -> KnownHistory:
    """The longest of the known prefixes of a line of `size` messages. Some may differ only by messages without an identity,
    which cannot be compared. Of these, a branch that ends there comes first, then the whole line, then the shortest:
    a fork takes its reasoning from the request.
    """
    longest = max(found, key=_match_rank)
    same = [one for one in found if one.place.hash == longest.place.hash]
    return max(
        same, key=lambda one: (one.goes_on, one.known == size, one.known if one.goes_on else -one.known)
    )


async def _search_prefixes(
    hashes: Sequence[bytes], look: Look, *, is_filtered: bool = False
) -> AsyncIterator[list[KnownHistory]]:
    last, width = len(hashes), FIRST_LOOK
    while last > 0:
        is_second = width == FIRST_LOOK * LOOK_GROWS
        if is_second and not is_filtered and not await look(hashes[:1]):
            return  # a branch has the hash of each of its prefixes: where the first is unknown, all are
        first = max(0, last - width)
        while first and hashes[first - 1] == hashes[first]:
            first -= 1  # all prefixes with one hash are asked for together
        asked = {hashes[size - 1]: size for size in range(last, first, -1)}
        yield [KnownHistory(at, _known_of(at, hashes, asked)) for at in await look(list(asked))]
        last, width = first, width * LOOK_GROWS


def _known_of(at: HistoryPlace, hashes: Sequence[bytes], shortest: Mapping[bytes, int]) -> int:
    """The number of messages of a line that are those of a place. Prefixes that differ only by messages without an identity have
    one hash: the one with as many messages as the place is taken, or else the shortest.
    """
    is_equal = at.size <= len(hashes) and hashes[at.size - 1] == at.hash
    return at.size if is_equal else shortest[at.hash]


async def boundary(hashes: Sequence[bytes], look: Look, branch: str, size: int) -> int:
    """The number of messages of a line that correspond to the first `size` messages of a branch, or to the
    longest part of them that ends at a message of the line.
    """
    async for places in _search_prefixes(hashes, look):
        within = [
            found.known for found in places if found.place.branch == branch and found.place.size <= size
        ]
        if within:
            return max(within)
    return 0


def _match_rank(found: KnownHistory) -> tuple[int, bool]:
    return found.known, found.goes_on


def check_new(line: Line, found: KnownHistory | None) -> None:
    """
    Raises:
        WireError: the request has more new messages than can be added without delaying other requests.
    """
    if len(line) - (found.known if found else 0) > MOST_NEW:
        raise too_many("new messages", MOST_NEW, "the request")


def is_own_way(line: Line, known: int) -> bool:
    """True if the common prefix has no reply in it. Equal openings alone do not make one conversation."""
    return line.replied is None or line.replied >= known


class LiveBranches:
    """The branches of one owner that were used last: a cache limited by memory."""

    def __init__(self) -> None:
        self._live: OrderedDict[str, LiveBranch] = OrderedDict()
        self._ends: dict[bytes, LiveBranch] = {}
        """By the hash of all messages of the branch."""
        self._named: dict[str, dict[str, LiveBranch]] = {}
        self._weight = 0
        self._idle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveBranch]:
        return iter(tuple(self._live.values()))

    def lines(self, name: str, array: bytes | memoryview, dialect: Dialect) -> Sequence[Line]:
        """Earlier requests that a list of messages may continue: those with its name, or the latest without a
        name, in its format. The same bytes are other messages in another format.

        May be called in a thread: the branches are copied in one step, and branches noted later are not
        included.
        """
        if not name and len(array) < SHORT:
            return ()
        branches = tuple(self._named.get(name, {}).values())
        if not name:
            branches = branches[: -LATELY - 1 : -1]
        return [line for live in branches if (line := live.line) and live.conversation.format == dialect.name]

    def find_by_end(
        self, hashes: Sequence[bytes], incoming: IncomingRequest
    ) -> tuple[LiveBranch, KnownHistory] | None:
        """The branch in this table that a request continues; None if it is not here."""
        for known in range(len(hashes), max(0, len(hashes) - NEW), -1):
            mark = hashes[known - 1]
            live = self._ends.get(mark)
            if live is not None and live.serves(incoming) and live.conversation.size == known:
                talk = live.conversation
                return live, KnownHistory(
                    HistoryPlace(mark, talk.id, talk.branch, talk.size, talk.size), known
                )
        return None

    def find_by_branch(self, branch: str, incoming: IncomingRequest) -> LiveBranch | None:
        """A branch in this table by its id, if it is open for the model and the format of a request."""
        live = self._live.get(branch)
        return live if live is not None and live.serves(incoming) else None

    def note(self, live: LiveBranch, line: Line) -> None:
        """Enter a branch with its last request, and drop the least recently used branches above the memory
        limit. While the branch has only a part of the request, the request's end is not taken for its end.
        """
        self.drop(self._live.get(live.conversation.branch, live))
        live.line = line
        self._weight += _weight(live)
        self._live[live.conversation.branch] = live
        self._named.setdefault(live.name, {})[live.conversation.branch] = live
        if line.hashes and live.conversation.size == len(line):
            self._ends[line.hashes[-1]] = live
        while self._weight > MOST_BYTES and len(self._live) > 1:
            self.drop(next(iter(self._live.values())))
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._weight > MOST_BYTES:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._drop_large, live)

    def _drop_large(self, live: LiveBranch) -> None:
        """Drop a branch that takes more than all branches may, after it was not used for a while."""
        self._idle = None
        self.drop(live)
        return_free_memory()

    def drop(self, live: LiveBranch) -> None:
        branch = live.conversation.branch
        if self._live.get(branch) is not live:
            return
        del self._live[branch]
        self._weight -= _weight(live)
        named = self._named[live.name]
        del named[branch]
        if not named:
            del self._named[live.name]
        if live.line and live.line.hashes and self._ends.get(live.line.hashes[-1]) is live:
            del self._ends[live.line.hashes[-1]]


def find_earlier(lines: Sequence[Line], name: str, array: bytes | memoryview) -> Line | None:
    """The earlier request of the same conversation: the most similar one with this name, or the first that is
    a prefix of this one.
    """
    if not name:
        return next((line for line in lines if _is_prefix(line, array)), None)
    if len(lines) < 2:
        return lines[0] if lines else None
    return max(lines, key=lambda line: same_items(line.history, array))


def known_bytes(earlier: Line, array: bytes | memoryview) -> int:
    """Bytes at the beginning of a list of messages that are items of an earlier request."""
    items = same_items(earlier.history, array)
    return earlier.history.ends[items - 1] if items else 0


def _is_prefix(line: Line, array: bytes | memoryview) -> bool:
    """True if the list of messages begins with the line's. Compares the last bytes first, because they
    usually differ.
    """
    ends = line.history.ends
    last = ends[-1] if ends else 0
    held = line.history.array
    near = max(0, last - 64)
    return bool(last) and array[near:last] == held[near:last] and have_same_start(held, array, last)


def _weight(live: LiveBranch) -> int:
    return EACH_BYTES + TIMES * live.weight
