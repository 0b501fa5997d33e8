"""The fact index: every message as pieces and terms, noted when it arrives.

One idea: what makes a summary slow is reading the conversation again. So each message is split once, on arrival, and what is
known about a term (when it was last said, how often the assistant used it, which pieces hold it) is kept up to date; choosing
and finding pieces later only adds up numbers.

A Facts is a value: indexing gives a new one and leaves the old as it was. Facts of one line share their log, as views do;
looking at an older value, or growing one, copies what it needs. Two threads must not index into the same log at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import log as ln
from math import sqrt
from operator import attrgetter

import msgspec
from msgspec import Struct, field

from refold.core.stages.shown import handle_of
from refold.core.summary.pieces import head, lines, tail
from refold.core.summary.terms import VALUES, Kind, distinct, terms
from refold.core.summary.weights import DEFAULT, Weights
from refold.model.message import File, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

MAX_CHARACTERS = 80_000
"""How much of one message is indexed, three quarters from its beginning and one from its end. The rest stays in the branch
and can be recalled by handle; indexing it all would stop the world for half a second when a log file is printed."""
MAX_PIECES = 2_000
"""How many pieces of one message are indexed: lines may be very short."""
_LITERAL, _PHRASE = VALUES[Kind.LITERAL], VALUES[Kind.PHRASE]
_LITERAL_KIND = Kind.LITERAL
_KNOWN = 0.25
"""A term that was said before promises less: another piece may bring it."""
_USED = 2.8
"""What the assistant has used, it uses again about three times as often as what only a tool has said."""
_CROWD = 100
"""A piece among so many of one message promises a third less, among four times as many not half as much."""
_PROMISES = 8
"""Promises are whole numbers, so many for every factor of e: fine enough to sort by, and quick to count."""
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
    promise: int
    """What it was worth per character when it was said: a first guess where there are too many pieces to weigh them all."""
    line: int
    """The line of its part that it stands on."""
    is_spaced: bool
    """Does a space part it from what stands before it on its line?"""
    label: str
    """Where it comes from: the handle of its original, and who speaks, a role or a tool."""


label_of = attrgetter("label")


class Indexed(Struct, frozen=True, gc=False):
    """One message of the index."""

    seq: int
    role: Role
    stop: int
    """The number after its last piece."""
    position: int
    """Characters of the conversation up to and including it."""


class Log:
    """What the facts of one line share; only ever appended to. Terms are numbered as they are first seen."""

    __slots__ = (
        "asked", "calls", "holders", "ids", "last", "messages", "pieces", "raised", "spread", "standing", "used",
        "values", "weights",
    )  # fmt: skip

    def __init__(self, weights: Weights = DEFAULT) -> None:
        self.weights = weights
        self.ids: dict[str, int] = {}
        self.calls: dict[str, str] = {}
        self.values: list[float] = []
        self.last: list[int] = []
        self.used: list[int] = []
        self.spread: list[int] = []
        self.asked: list[bool] = []
        self.standing: list[float] = []
        self.holders: dict[int, array[int]] = {}
        self.messages: list[Indexed] = []
        self.pieces: list[Piece] = []
        self.raised: list[tuple[int, int]] = []

    def read(self, text: str) -> tuple[int, ...]:
        """The terms of a text, each once; those that are new get their number."""
        ids, values, found = self.ids, self.values, list[int]()
        for term, kind in terms(text):
            number = ids.get(term)
            if number is None:
                number = ids[term] = len(values)
                self._grow((VALUES[kind],))
            elif kind is _LITERAL_KIND and values[number] != _LITERAL:
                values[number] = _LITERAL
                self.raised.append((number, len(self.messages)))
            found.append(number)
        return tuple(dict.fromkeys(found))

    def note(self, message: Indexed, own: Sequence[Piece]) -> None:
        """Take a message in, whose pieces have been made."""
        self.pieces += own
        self.messages.append(message)
        by_assistant, by_user = message.role == "assistant", message.role == "user"
        last, spread, used, asked, values = self.last, self.spread, self.used, self.asked, self.values
        for term in self._hold(own):
            last[term] = message.position
            spread[term] += 1
            used[term] += by_assistant
            asked[term] = asked[term] or by_user
            odds = self.weights.standing(used[term], spread[term], asked=asked[term])
            self.standing[term] = values[term] * odds

    def _hold(self, own: Sequence[Piece]) -> set[int]:
        """Write down which pieces hold which terms, phrases aside: whatever holds one holds its words. The terms of all."""
        values, holders, found = self.values, self.holders, set[int]()
        for piece in own:
            found.update(piece.terms)
            for term in piece.terms:
                if values[term] != _PHRASE:
                    if term not in holders:
                        holders[term] = array("I")
                    holders[term].append(piece.number)
        return found

    def place(self, number: int) -> int:
        """Which message a piece belongs to: its place among those that are indexed."""
        return self.find(self.pieces[number].seq, len(self.messages))

    def find(self, seq: int, size: int) -> int:
        """Where among the first `size` messages the message `seq` is, or would be: mostly at its own number."""
        if seq < size and self.messages[seq].seq == seq:
            return seq
        return bisect_left(self.messages, seq, hi=size, key=_seq)

    def upto(self, size: int) -> Log:
        """The log as it was after `size` messages."""
        log = Log(self.weights)
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
        self.standing += [0.0] * len(values)
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
        return self.shared.find(seq, self.size)

    def pieces(self, first: int, last: int) -> Sequence[Piece]:
        """The pieces of the messages `first` up to, not including, `last`."""
        messages, start, stop = self.shared.messages, self.find(first), self.find(last)
        begin = messages[start - 1].stop if start else 0
        return self.shared.pieces[begin : messages[stop - 1].stop] if stop > start else ()


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
    said = [(_label(part, message, seq, place, log), text_of(part)) for place, part in enumerate(parts, 1)]
    own = list(_pieces_of(said, seq, log, used=message.role == "assistant"))
    position = facts.position + sum(len(text) for _, text in said)
    log.note(Indexed(seq, message.role, len(log.pieces) + len(own), position), own)
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


def _pieces_of(said: Sequence[tuple[str, str]], seq: int, log: Log, *, used: bool) -> Iterator[Piece]:
    """The pieces of a message, whose parts are given with their labels."""
    parts = enumerate(said)
    found = [(part, line, raw) for part, (_, text) in parts for line, raw in _bounded(text, len(said))]
    factor = (_USED if used else 1.0) / sqrt(1 + len(found) / _CROWD)
    number, values, known_share = len(log.pieces), log.values, 2 * _KNOWN if used else _KNOWN
    before = ""
    for index, (part, line, raw) in enumerate(found):
        text, is_spaced, before = raw.strip(), raw.startswith(" ") or before.endswith(" "), raw
        if len(text) <= _LONGEST_PIECE:
            known, own = len(values), log.read(text)
            worth = sum([values[term] if term >= known else known_share * values[term] for term in own])
            promise = int(_PROMISES * ln(1e-9 + factor * worth / (len(text) + 10)))
            yield Piece(number, seq, part, index, text, own, promise, line, is_spaced, said[part][0])
            number += 1


def _bounded(text: str, parts: int) -> list[tuple[int, str]]:
    """The pieces of a text with the line of each, or of its beginning and end where it is very long."""
    most = MAX_CHARACTERS // parts
    if len(text) > most:
        text = f"{head(text, most * 3 // 4)}\n{tail(text, most // 4)}"
    found = [(number, piece) for number, line in enumerate(lines(text)) for piece in line]
    count = max(1, MAX_PIECES // parts)
    if len(found) <= count:
        return found
    return [*found[: count - count // 4], *found[len(found) - count // 4 :]]


def _label(part: Part, message: Message, seq: int, place: int, log: Log) -> str:
    """A reply and its calls are one thing; results stand for themselves, under the name of their tool."""
    if type(part) is not ToolResult:
        return f"{handle_of(seq)} {message.role}:"
    is_one = all(type(other) is Reasoning or other is part for other in message.parts)
    return f"{handle_of(seq, None if is_one else place)} {log.calls.get(part.call_id) or message.role}:"


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
