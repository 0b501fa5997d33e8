"""Requests that carry their whole history, and the branches they belong to.

One idea: a request is known by the hashes of its prefixes. The longest one that was seen before says which branch it goes on
from; one that agrees only up to some message goes its own way from there. When in doubt a request is somebody new: a branch
too many costs some bytes, a wrong one would mix two conversations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from typing import TypeAlias

from msgspec import Struct

from refold.core.reconcile import extend_chain, start_chain
from refold.model.compaction import holds_compaction
from refold.model.dialect import Dialect
from refold.model.message import Message
from refold.ports.store import Place
from refold.wire.history import History, Reading, read_history
from refold.wire.message import decode_message
from refold.wire.reading import too_many

Look: TypeAlias = Callable[[Sequence[bytes]], Awaitable[list[Place]]]
FIRST_LOOK, LOOK_GROWS = 8, 8
"""Hashes of the first question to the store, and how many times more of each further one: what is new is mostly a reply and
its results."""

MOST_PARTS = 2_000
"""Of one message: providers take some hundred images or calls, and some of our work grows with the square of them."""
MOST_NEW = 10_000
"""Messages that a request may bring at once: five times a long conversation, and a second of work. What brings more passes by."""


class Line(Struct, frozen=True):
    """The conversation in one request. `offset` items of its list are the system prompt."""

    history: History
    offset: int
    hashes: tuple[bytes, ...]
    """The chain after each message of the conversation."""
    replied: int | None = None
    """The number of the assistant's first message."""
    compactions: tuple[int, ...] = ()
    """Numbers of the messages that hold compactions of a provider's own."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def leading(self) -> int:
        """How many bytes of the list come before the conversation: the system prompt, where it stands in the list."""
        return self.history.ends[self.offset - 1] if self.offset else 0

    def bytes_after(self, known: int) -> int:
        """How many bytes of the list come after the first `known` messages."""
        at = known + self.offset
        return len(self.history.array) - (self.history.ends[at - 1] if at else 0)

    def with_compactions(self, dialect: Dialect) -> dict[int, Message]:
        """The messages that hold compactions of a provider's own, by their numbers; each read from bytes of its own."""
        items = ((at, bytes(self.history.item(at + self.offset))) for at in self.compactions)
        return {number: decode_message(item, dialect) for number, item in items}

    def claimed_after(self, known: int) -> bytes:
        """The hash that no other branch may hold if this line goes on after `known` messages: of the first new message with which
        it shares a reply with anybody who has it too. People open alike, so a line without a reply claims nothing.
        """
        at = known if self.replied is None else max(known, self.replied)
        return self.hashes[at] if self.replied is not None and at < len(self) else b""


class Seen(Struct, frozen=True):
    """A line, and its messages from number `first` on: those that had to be read."""

    line: Line
    first: int
    messages: tuple[Message, ...]

    def since(self, known: int, dialect: Dialect) -> tuple[Message, ...]:
        """The messages from number `known` on. A message holds on to all the bytes that it was read from, so where others were
        read with them that nobody needs, they are read apart.
        """
        if known == self.first:
            return self.messages
        items = (self.line.history.item(at + self.line.offset) for at in range(known, len(self.line)))
        return tuple(decode_message(item, dialect) for item in items)


class Found(Struct, frozen=True):
    """Where a line was seen before: up to `size` messages of a branch, which are `known` of its own."""

    place: Place
    known: int

    @property
    def goes_on(self) -> bool:
        """Does the branch end where the line goes on?"""
        return self.place.size == self.place.length


def chain_key(owner: str, name: str) -> bytes:
    """What hashes are keyed by: equal openings of two owners, or of two conversations that have names, never meet."""
    return sha256(f"{owner}\0{name}".encode("utf-8", "surrogatepass")).digest()


def read_line(array: bytes, dialect: Dialect, key: bytes, before: Line | None = None) -> Seen:
    """Read a request's list of messages, as far as it is not that of the request before.

    Raises:
        WireError: something in it is no message of this format, or has more parts than any message.
    """
    reading = read_history(array, dialect, before.history if before else None)
    if any(len(message.parts) > MOST_PARTS for message in reading.messages):
        raise too_many("parts", MOST_PARTS, "a message")
    if before is None or reading.known <= before.offset:
        return _read_all(read_history(array, dialect) if reading.known else reading, dialect, key)
    known = reading.known - before.offset
    hashes = (*before.hashes[:known], *_chained(before.hashes[known - 1], reading.messages, key))
    is_replied = before.replied is not None and before.replied < known
    replied = before.replied if is_replied else _first_reply(reading.messages, known)
    earlier = tuple(number for number in before.compactions if number < known)
    compactions = (*earlier, *_compactions(reading.messages, known))
    return Seen(Line(reading.history, before.offset, hashes, replied, compactions), known, reading.messages)


def _read_all(reading: Reading, dialect: Dialect, key: bytes) -> Seen:
    items = reading.messages
    offset = _leading(items) if dialect.name != "anthropic" else 0
    messages = items[offset:]
    hashes = tuple(_chained(start_chain(key), messages, key))
    replied, compactions = _first_reply(messages, 0), tuple(_compactions(messages, 0))
    return Seen(Line(reading.history, offset, hashes, replied, compactions), 0, messages)


def _chained(chain: bytes, messages: Sequence[Message], key: bytes) -> Iterator[bytes]:
    for message in messages:
        chain = extend_chain(chain, message, key)
        yield chain


def _first_reply(messages: Sequence[Message], first: int) -> int | None:
    replies = (index for index, one in enumerate(messages, first) if one.role == "assistant")
    return next(replies, None)


def _compactions(messages: Sequence[Message], first: int) -> Iterator[int]:
    return (index for index, one in enumerate(messages, first) if holds_compaction(one))


def _leading(items: Sequence[Message]) -> int:
    later = (index for index, item in enumerate(items) if item.role not in ("system", "developer"))
    return next(later, len(items))


async def find(hashes: Sequence[bytes], look: Look, wanted: str) -> tuple[Found | None, Found | None]:
    """The longest prefix that was seen before in the wanted format, message for message, and in any other way, from the newest
    message backwards.
    """
    foreign: Found | None = None
    async for places in _looks(hashes, look):
        own = [one for one in places if one.place.format == wanted and one.known == one.place.size]
        if own:
            return max(own, key=_worth), foreign
        foreign = foreign or max(places, key=_worth, default=None)
    return None, foreign


async def _looks(hashes: Sequence[bytes], look: Look) -> AsyncIterator[list[Found]]:
    last, width = len(hashes), FIRST_LOOK
    while last > 0:
        first = max(0, last - width)
        asked = {one: size for size, one in enumerate(hashes[first:last], first + 1)}
        yield [Found(at, asked[at.hash]) for at in await look(list(asked))]
        last, width = first, width * LOOK_GROWS


async def boundary(hashes: Sequence[bytes], look: Look, branch: str, size: int) -> int:
    """How many messages of a line are the first `size` of a branch, or as many of those as end where one of its own ends."""
    async for places in _looks(hashes, look):
        within = [
            found.known for found in places if found.place.branch == branch and found.place.size <= size
        ]
        if within:
            return max(within)
    return 0


def _worth(found: Found) -> tuple[int, bool]:
    return found.known, found.goes_on


def check_new(line: Line, found: Found | None) -> None:
    """
    Raises:
        WireError: it brings more messages that nobody has seen than can be taken in while others wait.
    """
    if len(line) - (found.known if found else 0) > MOST_NEW:
        raise too_many("new messages", MOST_NEW, "the request")


def is_own_way(line: Line, known: int) -> bool:
    """Do two lines that agree so far have no reply in common? People open alike: that does not make it one conversation."""
    return line.replied is None or line.replied >= known
