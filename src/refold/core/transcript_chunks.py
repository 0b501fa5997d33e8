"""Split a long transcript into chunks that a summariser can read.

The summariser's window may be smaller than the conversation's. A transcript is split between replies, so that
a call and its result are read together. A single reply that is too large is shortened, with its handle; only
if it has too many results even for that, it is split between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from refold.core.prompts import Passage, transcript
from refold.core.shown import handle_of
from refold.core.stages.truncate import HANDLE_MARK, truncate
from refold.model.message import Message, Part, Text, ToolCall, ToolResult

Count = Callable[[str], int]
_CHARACTERS_PER_TOKEN = 4
"""A first estimate; a text that was shortened by it is counted and shortened further."""
_LEAST = 200
"""Characters that every part keeps, as long as a reply can be split instead."""


def chunks(passages: Sequence[Passage], room: int, count: Count) -> list[tuple[Passage, ...]]:
    """Return the passages in groups of at most `room` tokens each; every passage is in one group, in
    order.
    """
    found: list[tuple[Passage, ...]] = []
    held: list[Passage] = []
    used, between = 0, max(1, count("\n\n"))
    for piece in _pieces(passages, room, count):
        size = count(transcript(piece)) + between
        if held and used + size - between > room:
            found.append(tuple(held))
            held, used = [], 0
        held += piece
        used += size
    return [*found, tuple(held)] if held else found


def units(passages: Sequence[Passage]) -> Iterator[tuple[Passage, ...]]:
    """Yield the units that must be read together: a user message, or a reply with the results of its
    calls.
    """
    held: list[Passage] = []
    for passage in passages:
        if held and passage.message.role != "tool":
            yield tuple(held)
            held = []
        held.append(passage)
    if held:
        yield tuple(held)


def shortened(
    unit: Sequence[Passage], room: int, count: Count, *, least: int = _LEAST
) -> tuple[Passage, ...]:
    """Return a unit with its long parts cut to equal shares of the room, but not below `least` characters
    each.
    """
    parts = sum(len(passage.message.parts) for passage in unit)
    limit = max(least, room * _CHARACTERS_PER_TOKEN // max(1, parts))
    while True:
        short = tuple(
            Passage(passage.number, _shorten_message(passage.message, limit, handle_of(passage.number)))
            for passage in unit
        )
        if limit <= least or count(transcript(short)) <= room:
            return short
        limit = max(least, limit * 2 // 3)


def split_text(text: str, room: int, count: Count) -> list[str]:
    """Split a text between its lines into pieces of at most `room` tokens."""
    lines = [line[at : at + room] for line in text.splitlines() for at in range(0, max(1, len(line)), room)]
    return ["\n".join(group) for group in group_texts(lines, room, count)]


def group_texts(texts: Sequence[str], room: int, count: Count) -> list[list[str]]:
    """Join neighbours to as few groups as the room allows; a text larger than the room is a group alone."""
    groups: list[list[str]] = []
    used = 0
    for text in texts:
        size = count(text) + 1  # and the separator
        if groups and used + size <= room:
            groups[-1].append(text)
            used += size
        else:
            groups.append([text])
            used = size
    return groups


def _pieces(passages: Sequence[Passage], room: int, count: Count) -> Iterator[tuple[Passage, ...]]:
    """Yield units unchanged, shortened, or as their single messages."""
    for unit in units(passages):
        if count(transcript(unit)) <= room:
            yield unit
            continue
        short = shortened(unit, room, count)
        if count(transcript(short)) <= room:
            yield short
        else:
            yield from (shortened((passage,), room, count, least=0) for passage in short)


def _shorten_message(message: Message, limit: int, handle: str) -> Message:
    return Message(message.role, tuple(_shorten_part(part, limit, handle) for part in message.parts))


def _shorten_part(part: Part, limit: int, handle: str) -> Part:
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
