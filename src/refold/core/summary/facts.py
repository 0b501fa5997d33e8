"""The fact index: every message as pieces and terms, noted when it arrives.

One idea: what makes a summary slow is reading the conversation again. So each message is split once, on arrival, and what is
known about a term (when it was last said, how often the assistant used it) is kept up to date; choosing pieces later only
adds up numbers.

A Facts is a value: indexing gives a new one and leaves the old as it was. Facts of one line share their log, as views do;
looking at an older value, or growing one, copies what it needs. Two threads must not index into the same log at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct, field

from refold.core.stages.shown import handle_of
from refold.core.summary.pieces import head, pieces, tail
from refold.core.summary.terms import VALUES, Kind, distinct, terms
from refold.model.message import File, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

MAX_CHARACTERS = 100_000
"""How much of one message is indexed, three quarters from its beginning and one from its end. The rest stays in the branch
and can be recalled by handle; indexing it all would stop the world for half a second when a log file is printed."""
MAX_PIECES = 2_000
"""How many pieces of one message are indexed: lines may be very short."""
_LITERAL = VALUES[Kind.LITERAL]
_LONGEST_PIECE = 400
"""A longer piece is a blob without a place to break it; a digest never quotes it."""


class Piece(Struct, frozen=True, gc=False):
    """A quotable part of a message. `number` is its place in the whole conversation, `index` in its message."""

    number: int
    seq: int
    part: int
    index: int
    text: str
    terms: tuple[int, ...]


class Indexed(Struct, frozen=True, gc=False):
    """One message of the index. `labels` say for each part who speaks: a role or the name of a tool."""

    seq: int
    role: Role
    labels: tuple[str, ...]
    stop: int
    """The number after its last piece."""
    position: int
    """Characters of the conversation up to and including it."""


class Log:
    """What the facts of one line share; only ever appended to. Terms are numbered as they are first seen."""

    __slots__ = ("asked", "calls", "ids", "last", "messages", "pieces", "raised", "spread", "used", "values")

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.calls: dict[str, str] = {}
        self.values: list[float] = []
        self.last: list[int] = []
        self.used: list[int] = []
        self.spread: list[int] = []
        self.asked: list[bool] = []
        self.messages: list[Indexed] = []
        self.pieces: list[Piece] = []
        self.raised: list[tuple[int, int]] = []

    def intern(self, term: str, kind: Kind) -> int:
        found = self.ids.get(term)
        if found is None:
            found = self.ids[term] = len(self.values)
            self._grow((VALUES[kind],))
        elif kind is Kind.LITERAL and self.values[found] != _LITERAL:
            self.values[found] = _LITERAL
            self.raised.append((found, len(self.messages)))
        return found

    def note(self, message: Indexed, own: Sequence[Piece]) -> None:
        """Take a message in, whose pieces have been made."""
        self.pieces += own
        self.messages.append(message)
        for term in {term for piece in own for term in piece.terms}:
            self.last[term] = message.position
            self.spread[term] += 1
            self.used[term] += message.role == "assistant"
            self.asked[term] = self.asked[term] or message.role == "user"

    def upto(self, size: int) -> Log:
        """The log as it was after `size` messages."""
        log = Log()
        log.ids, log.calls = dict(self.ids), dict(self.calls)
        log._grow(self.values)
        log.raised = [(term, at) for term, at in self.raised if at < size]
        for term, at in self.raised:
            log.values[term] = log.values[term] if at < size else VALUES[Kind.PART]
        start = 0
        for message in self.messages[:size]:
            log.note(message, self.pieces[start : message.stop])
            start = message.stop
        return log

    def _grow(self, values: Sequence[float]) -> None:
        self.values += values
        for counts in (self.last, self.used, self.spread):
            counts += [0] * len(values)
        self.asked += [False] * len(values)


class Facts(Struct, frozen=True, eq=False):
    """What is known about the first `size` messages that were indexed."""

    size: int = 0
    shared: Log = field(default_factory=Log)

    @property
    def log(self) -> Log:
        """The log of exactly these messages."""
        return self.shared if len(self.shared.messages) == self.size else self.shared.upto(self.size)

    @property
    def position(self) -> int:
        return self.shared.messages[self.size - 1].position if self.size else 0

    def find(self, seq: int) -> int:
        """Where in the index the message `seq` is, or would be."""
        return bisect_left(self.shared.messages, seq, hi=self.size, key=_seq)

    def pieces(self, first: int, last: int) -> Sequence[Piece]:
        """The pieces of the messages `first` up to, not including, `last`."""
        messages, start, stop = self.shared.messages, self.find(first), self.find(last)
        begin = messages[start - 1].stop if start else 0
        return self.shared.pieces[begin : messages[stop - 1].stop] if stop > start else ()

    def label(self, piece: Piece) -> str:
        """Where a piece comes from: the handle of its original, and who speaks."""
        message = self.shared.messages[self.find(piece.seq)]
        several = len(message.labels) > 1
        return f"{handle_of(piece.seq, piece.part + 1 if several else None)} {message.labels[piece.part]}:"


def index_message(facts: Facts, message: Message, seq: int) -> Facts:
    """The facts with one more message. The time is linear in the message, and bounded by `MAX_CHARACTERS`.

    Raises:
        ValueError: the message is older than one that is indexed already.
    """
    log = facts.log
    if facts.size and log.messages[-1].seq >= seq:
        raise ValueError(f"message {seq} comes after {log.messages[-1].seq}: messages are indexed in order")
    parts = [part for part in message.parts if type(part) is not Reasoning]
    for part in parts:
        if type(part) is ToolCall:
            log.calls[part.id] = part.name
    labels = tuple(_label(part, message.role, log) for part in parts)
    own = list(_pieces_of(parts, seq, log))
    position = facts.position + sum(len(text_of(part)) for part in parts)
    log.note(Indexed(seq, message.role, labels, len(log.pieces) + len(own), position), own)
    return Facts(facts.size + 1, log)


def term_ids(log: Log, text: str) -> set[int]:
    """Those terms of a text that the index knows."""
    ids = log.ids
    return {ids[term] for term in distinct(text) if term in ids}


def text_of(part: Part) -> str:
    """What a part says, as it can be quoted: the arguments of a call as `key: value` lines."""
    match part:
        case Text() | ToolResult() | File():
            return part.text
        case ToolCall():
            return f"{part.name} {_arguments(part.arguments)}"
        case _:
            return ""


def _pieces_of(parts: Sequence[Part], seq: int, log: Log) -> Iterator[Piece]:
    index, number = 0, len(log.pieces)
    for place, part in enumerate(parts):
        for text in _bounded(text_of(part), max(1, len(parts))):
            if len(text) <= _LONGEST_PIECE:
                known = dict.fromkeys(log.intern(term, kind) for term, kind in terms(text))
                yield Piece(number, seq, place, index, text, tuple(known))
                number += 1
            index += 1


def _bounded(text: str, parts: int) -> list[str]:
    """The pieces of a text, or of its beginning and end where it is very long."""
    most = MAX_CHARACTERS // parts
    if len(text) > most:
        text = f"{head(text, most * 3 // 4)}\n{tail(text, most // 4)}"
    found = list(pieces(text))
    count = max(1, MAX_PIECES // parts)
    if len(found) <= count:
        return found
    return [*found[: count - count // 4], *found[len(found) - count // 4 :]]


def _label(part: Part, role: Role, log: Log) -> str:
    return log.calls.get(part.call_id, "") or role if type(part) is ToolResult else role


def _arguments(arguments: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
        return "\n".join(_lines("", value))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def _lines(key: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _lines(str(name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _lines(key, inner)
    else:
        said = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield f"{key}: {said}" if key else said


def _seq(message: Indexed) -> int:
    return message.seq
