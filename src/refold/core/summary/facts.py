"""The fact index: every message as pieces and terms, noted when it arrives.

One idea: what makes a summary slow is reading the conversation again. So each message is split once, on arrival, and what is
known about a term (when it was last said, how often the assistant used it, which pieces hold it) is kept up to date; choosing
and finding pieces later only adds up numbers.

A history that arrives at once would take as long as a whole conversation of arrivals, and many are never asked about. So its
messages wait, in their order, and every message that arrives later has two of them read: by the time as many have arrived, all
are. Short conversations are asked about even less, and there are many of them: the first messages of any wait as well. Whoever
asks before has the rest read first. What is known then is the same either way.

A Facts is a value: indexing gives a new one and leaves the old as it was. Facts of one line share their log, as views do;
looking at an older value, or growing one, copies what it needs. Two threads must not use the same log at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import log as ln
from math import sqrt

import msgspec
from msgspec import Struct, field

from refold.core.stages.shown import handle_of
from refold.core.summary.line_markers import is_role
from refold.core.summary.log import Indexed, Log, Piece
from refold.core.summary.pieces import head, lines, tail
from refold.core.summary.terms import distinct
from refold.model.compaction import readable_text
from refold.model.message import File, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult

MAX_CHARACTERS = 80_000
"""How much of one message is indexed, three quarters from its beginning and one from its end. The rest stays in the branch
and can be recalled by handle; indexing it all would stop the world for half a second when a log file is printed."""
MAX_PIECES = 2_000
"""How many pieces of one message are indexed: lines may be very short."""
PORTION = 2
"""How many messages are read when one arrives: itself, and one that waits. So what waits gets less, and arriving takes about
twice as long until nothing does."""
SHORT = 16
"""How many messages a conversation has before any is read: of the memory of a short one, two thirds would go to this index."""
_KNOWN = 0.25
"""A term that was said before promises less: another piece may bring it."""
_USED = 2.8
"""What the assistant has used, it uses again about three times as often as what only a tool has said."""
_CROWD = 100
"""A piece among so many of one message promises a third less, among four times as many not half as much."""
_PROMISES = 8
"""Promises are whole numbers, so many for every factor of e: fine enough to sort by, and quick to count."""
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")
_LONGEST_PIECE = 400
"""A longer piece is a blob without a place to break it; a digest never quotes it."""


class Facts(Struct, frozen=True, eq=False):
    """What is known about the first `size` messages that were indexed."""

    size: int = 0
    shared: Log = field(default_factory=Log)

    @property
    def known(self) -> Log:
        """The log that is shared, in which these messages are read; later ones may be in it too."""
        catch_up(self.shared, self.size)
        return self.shared

    @property
    def log(self) -> Log:
        """The log of exactly these messages."""
        log = self.known
        return log if len(log.messages) == self.size else log.upto(self.size)

    @property
    def position(self) -> int:
        return self.known.messages[self.size - 1].position if self.size else 0

    def find(self, seq: int) -> int:
        """Where in the index the message `seq` is, or would be."""
        return self.known.find(seq, self.size)

    def pieces(self, first: int, last: int) -> Sequence[Piece]:
        """The pieces of the messages `first` up to, not including, `last`."""
        log, size = self.known, self.size
        start, stop = log.find(first, size), log.find(last, size)
        begin = log.messages[start - 1].stop if start else 0
        return log.pieces[begin : log.messages[stop - 1].stop] if stop > start else ()


def index_message(facts: Facts, message: Message, seq: int, *, later: bool = False) -> Facts:
    """The facts with one more message. The time is linear in what is read, and bounded by `MAX_CHARACTERS` for each message.

    One of many that come at once is read `later`.

    Raises:
        ValueError: the message is older than one that is indexed already.
    """
    log = facts.shared if len(facts.shared) == facts.size else facts.shared.upto(facts.size)
    if log.newest >= seq:
        raise ValueError(f"message {seq} comes after {log.newest}: messages are indexed in order")
    log.waiting.append((seq, message))
    if not later and len(log) > SHORT:
        catch_up(log, len(log.messages) + PORTION)
    return Facts(facts.size + 1, log)


def catch_up(log: Log, size: int) -> None:
    """Read what waits until the first `size` messages are read."""
    while len(log.messages) < size and log.waiting:
        found = _understood(log, *log.waiting[0])
        log.waiting.popleft()  # not before: whoever is interrupted while it is read finds it here again
        log.note(*found)


def _understood(log: Log, seq: int, message: Message) -> tuple[Indexed, Sequence[Piece]]:
    """The next message of a log, and its pieces."""
    parts = [part for part in message.parts if type(part) is not Reasoning]
    for part in parts:
        if type(part) is ToolCall:
            log.calls[part.id] = part.name
    said = [(_label(part, message, seq, place, log), text_of(part)) for place, part in enumerate(parts, 1)]
    own = list(_pieces_of(said, seq, log, used=message.role == "assistant"))
    before = log.messages[-1].position if log.messages else 0
    position = before + sum(len(text) for _, text in said)
    return Indexed(seq, message.role, len(log.pieces) + len(own), position), own


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
        case Opaque():
            return readable_text(part)
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
    """A reply and its calls are one thing; results stand for themselves, under the name of their tool, and so do documents: what is
    written in one was not said by whoever attached it.
    """
    is_one = all(type(other) is Reasoning or other is part for other in message.parts)
    handle = handle_of(seq, None if is_one else place)
    match part:
        case ToolResult():
            return f"{handle} {_tool_name(log.calls.get(part.call_id, ''))}:"
        case File():
            return f"{handle} file:"
        case _:
            return f"{handle_of(seq)} {message.role}:"


def _tool_name(name: str) -> str:
    """The name of a tool, unless it would read as somebody else: whoever offers a tool names it."""
    is_plain = _TOOL_NAME.fullmatch(name) is not None and not is_role(name)
    return name if is_plain else "tool"


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
