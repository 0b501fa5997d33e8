"""Shorten one message to its share of the window, keeping what is new in it.

One idea: of a long output the beginning and the end show what it is, and the lines in between that say something new are worth
more than a longer beginning. A shortened message is still valid: results keep their call, arguments stay JSON, and each place
where something is missing names the handle that opens the original.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec
from msgspec import Struct, structs

from refold.core.stages.parts import stub_result
from refold.core.stages.shown import handle_of
from refold.core.summary.choose import Worth, choose
from refold.core.summary.extract import CHARACTERS_PER_TOKEN, continued
from refold.core.summary.facts import Facts, term_ids
from refold.core.summary.log import Piece
from refold.core.summary.pieces import head, tail
from refold.model.message import Message, Part, Reasoning, Text, ToolCall, ToolResult
from refold.model.tokens import TokenCounter

BEGINNING = 0.25
"""The share of the room for the beginning of a text, word for word."""
ENDING = 0.15
"""The share for its end, where outputs say how it went."""
RULES = 0.3
"""The share for sentences that have to stay, before anything else is chosen from the middle."""
_ATTEMPTS = 8
_TIGHTER = 0.9
_SMALLEST = 24
"""Strings in arguments are not cut below this: they are flags and names."""


class Source(Struct, frozen=True):
    """The part of a message that is shortened, and what is known around it."""

    facts: Facts
    seq: int
    part: int
    window: int
    """In tokens: ages are measured by it."""
    covered: AbstractSet[int] = frozenset()
    """Terms that are in sight elsewhere."""
    several: bool = False
    """Has the message more parts than one?"""
    must: tuple[str, ...] = ()
    """Sentences that stay whole if they can: the rules in what a user says."""

    @property
    def mark(self) -> str:
        return f"[… {handle_of(self.seq, self.part + 1 if self.several else None)} …]"


def shorten(
    facts: Facts,
    message: Message,
    seq: int,
    *,
    limit: int,
    window: int,
    counter: TokenCounter,
    covered: AbstractSet[int] = frozenset(),
    must: Iterable[str] = (),
) -> Message:
    """The message in about `limit` tokens; the same object where it fits or nothing in it can be shortened.

    Small parts stay whole: only what is longer than a fair share is cut. The sentences in `must` stay if they can.
    """
    tokens = counter.message(message)
    if tokens <= limit:
        return message
    room = sum(map(_length, message.parts)) * limit / tokens
    sources = _sources(message, Source(facts, seq, 0, window, covered, must=tuple(must)))
    short = message
    for _ in range(_ATTEMPTS):
        cap = fair_share([_length(part) for part, _ in sources], int(room))
        short = message.with_parts(tuple(_cut(part, source, cap) for part, source in sources))
        size = counter.message(short)
        if size <= limit:
            break
        room *= _TIGHTER * limit / size
    return short


def _sources(message: Message, source: Source) -> list[tuple[Part, Source]]:
    """Every part with its place. Reasoning, which leaves as it came or not at all, has none of its own."""
    found, place = [], 0
    several = sum(type(part) is not Reasoning for part in message.parts) > 1
    for part in message.parts:
        found.append((part, structs.replace(source, part=place, several=several)))
        place += type(part) is not Reasoning
    return found


def fair_share(lengths: Sequence[int], room: int) -> int:
    """The cap under which all lengths together fit into the room; those below it stay whole."""
    left = room
    for count, length in zip(range(len(lengths), 0, -1), sorted(lengths), strict=True):
        if length * count > left:
            return max(0, left // count)
        left -= length
    return max(lengths, default=0)


def excerpt(text: str, source: Source, limit: int) -> str:
    """A text in at most `limit` characters: its beginning, what is new in its middle, and its end."""
    if len(text) <= limit:
        return text
    mark = source.mark
    room = limit - 2 * (len(mark) + 2)
    if room < _SMALLEST:
        return mark
    begin, end = head(text, int(room * BEGINNING)), tail(text, int(room * ENDING))
    stated = _stated(text, source, f"{begin}\n{end}", int(room * RULES))
    middle = _middle(source, f"{begin}\n{end}\n{stated}", room - len(begin) - len(end) - len(stated))
    quotes = [line for line in (stated, _quotes(middle)) if line]
    return "\n".join(line for line in (begin, mark, *quotes, mark if quotes else "", end) if line)


def _stated(text: str, source: Source, shown: str, room: int) -> str:
    """The sentences that stay whole, unless they are shown already, as far as there is room."""
    kept: list[str] = []
    for sentence in source.must:
        if len(sentence) < room and sentence not in shown and sentence in text:
            room -= len(sentence) + 1
            kept.append(sentence)
    return "\n".join(kept)


def _middle(source: Source, shown: str, room: int) -> Sequence[Piece]:
    """What is worth most of the part, next to what is shown of it."""
    facts = source.facts
    seen = source.covered | term_ids(facts.log, shown)
    own = (piece for piece in facts.pieces(source.seq, source.seq + 1) if piece.part == source.part)
    return choose(own, Worth(facts, source.window * CHARACTERS_PER_TOKEN), seen, room).chosen


def _quotes(chosen: Iterable[Piece]) -> str:
    said: list[str] = []
    last: Piece | None = None
    for piece in sorted(chosen, key=lambda piece: piece.number):
        said.append(continued(piece, last) if last else piece.text)
        last = piece
    return "".join(said)


def _cut(part: Part, source: Source, cap: int) -> Part:
    if _length(part) <= cap:
        return part
    match part:
        case Text():
            return structs.replace(part, text=excerpt(part.text, source, cap))
        case ToolResult():
            media = tuple(inner for inner in part.parts if type(inner) is not Text)
            stub = stub_result(part, excerpt(part.text, source, cap))
            return structs.replace(stub, parts=(*stub.parts, *media))
        case ToolCall():
            return structs.replace(part, arguments=_short_arguments(part, source, cap))
        case _:
            return part


def _length(part: Part) -> int:
    match part:
        case Text() | ToolResult():
            return len(part.text)
        case ToolCall():
            return len(part.arguments)
        case _:
            return 0


def _short_arguments(call: ToolCall, source: Source, cap: int) -> str:
    """Arguments of about `cap` characters; JSON stays JSON, with the same keys as far as they fit."""
    if call.kind != "function":
        return excerpt(call.arguments, source, cap)
    try:
        value: object = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        value = {"text": call.arguments}
    lengths = list(_strings(value))
    frame = max(0, len(call.arguments) - sum(lengths))
    share = fair_share(lengths, max(0, cap - frame))
    short = _dump(_shortened(value, source, max(_SMALLEST, share)))
    return short if len(short) <= max(cap, 2 * _SMALLEST) else _dump({"text": source.mark})


def _strings(value: object) -> Iterable[int]:
    if isinstance(value, str):
        yield len(value)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _shortened(value: object, source: Source, cap: int) -> object:
    if isinstance(value, str):
        return excerpt(value, source, cap)
    if isinstance(value, dict):
        return {key: _shortened(inner, source, cap) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner, source, cap) for inner in value]
    return value


def _dump(value: object) -> str:
    return msgspec.json.encode(value).decode()
