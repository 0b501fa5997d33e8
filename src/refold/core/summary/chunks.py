"""Part a long transcript into pieces that a summariser can read.

One idea: the summariser's window may be smaller than the conversation's. A transcript is parted between replies, never inside
one, so that a call and its result are read together; one reply that is too large alone is shortened, with its handle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from refold.core.stages.shown import handle_of
from refold.core.stages.truncate import HANDLE_MARK, truncate
from refold.core.summary.prompts import Passage, transcript
from refold.model.message import Message, Part, Text, ToolCall, ToolResult

Count = Callable[[str], int]
_CHARACTERS_PER_TOKEN = 4
"""A first guess; what is shortened by it is counted and shortened further."""
_LEAST = 200
"""Characters that every part keeps, however little room there is."""


def chunks(passages: Sequence[Passage], room: int, count: Count) -> list[tuple[Passage, ...]]:
    """The passages in groups of at most `room` tokens each."""
    found: list[tuple[Passage, ...]] = []
    held: list[Passage] = []
    used = 0
    for unit in units(passages):
        size = count(transcript(unit))
        if size > room:
            unit = shortened(unit, room, count)
            size = count(transcript(unit))
        if held and used + size > room:
            found.append(tuple(held))
            held, used = [], 0
        held += unit
        used += size
    return [*found, tuple(held)] if held else found


def units(passages: Sequence[Passage]) -> Iterator[tuple[Passage, ...]]:
    """What must be read together: a message of the user's, or a reply with the results of its calls."""
    held: list[Passage] = []
    for passage in passages:
        if held and passage.message.role != "tool":
            yield tuple(held)
            held = []
        held.append(passage)
    if held:
        yield tuple(held)


def shortened(unit: Sequence[Passage], room: int, count: Count) -> tuple[Passage, ...]:
    """A unit whose long parts are cut to equal shares of the room, as far as they can be."""
    parts = sum(len(passage.message.parts) for passage in unit)
    limit = max(_LEAST, room * _CHARACTERS_PER_TOKEN // max(1, parts))
    while True:
        short = tuple(
            Passage(passage.number, _short(passage.message, limit, handle_of(passage.number)))
            for passage in unit
        )
        if limit <= _LEAST or count(transcript(short)) <= room:
            return short
        limit = max(_LEAST, limit * 2 // 3)


def _short(message: Message, limit: int, handle: str) -> Message:
    return Message(message.role, tuple(_cut(part, limit, handle) for part in message.parts))


def _cut(part: Part, limit: int, handle: str) -> Part:
    match part:
        case Text():
            return Text(truncate(part.text, limit, HANDLE_MARK, handle))
        case ToolCall():
            return structs.replace(
                part, raw=None, arguments=truncate(part.arguments, limit, HANDLE_MARK, handle)
            )
        case ToolResult():
            text = Text(truncate(part.text, limit, HANDLE_MARK, handle))
            return structs.replace(part, raw=None, parts=(text,))
        case _:
            return part
