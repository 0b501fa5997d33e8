"""Keeps the newest messages that fit, and removes the others to be summarised.

Units are taken from the newest to the oldest until the first that does not fit. None is skipped, so the
kept messages are one unbroken end of the conversation. A result without its call and a call without a
result are removed too, and summarised with the rest: a summary without the result would call finished work
unfinished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from refold.core.pairs import Removed, repair
from refold.core.shown import Edit, Item, Room, Shown, StageResult, handle_of, removed
from refold.core.stages.units import may_drop, turn_units, units
from refold.model.message import Message, Part

_REASON = "older than what fits"
_TOO_MUCH = "what must stay takes more than there is room for"


class Select(Struct, frozen=True, tag="select"):
    start: int = 3
    """Tokens counted before the first message: every reply is primed with so many."""
    by: Literal["reply", "turn"] = "reply"
    """The unit of selection: a reply with its results, or everything from one user message to the next."""

    def apply(self, shown: Shown, room: Room) -> StageResult:
        if self.start + shown.tokens <= room.tokens:
            return StageResult.skipped(shown, "everything fits")
        parted = units if self.by == "reply" else turn_units
        every = parted(shown.messages, room.dialect)
        kept = self._kept(every, shown, room)
        gone = {index for unit in every if unit not in kept for index in unit}
        if not gone:
            return StageResult.skipped(shown, _TOO_MUCH)
        result = _without_orphans(shown, gone, room)
        fits = self.start + result.shown.tokens <= room.tokens
        return result if fits else structs.replace(result, reason=_TOO_MUCH)

    def _kept(self, every: list[range], shown: Shown, room: Room) -> set[range]:
        """The units that must stay, and the newest other units that fit beside them."""
        kept = {unit for unit in every if not may_drop(unit, shown, room)}
        count = self.start + sum(_tokens(unit, shown) for unit in kept)
        for unit in reversed(every):
            if unit in kept:
                continue
            count += _tokens(unit, shown)
            if count > room.tokens:
                break
            kept.add(unit)
        return kept


def _tokens(unit: range, shown: Shown) -> int:
    return sum(shown.items[index].tokens for index in unit)


def _without_orphans(shown: Shown, gone: set[int], room: Room) -> StageResult:
    """Remove items, and with them the calls and results that lost their counterpart."""
    left = [index for index in range(len(shown.items)) if index not in gone]
    lost: dict[int, list[Removed]] = {}
    for broken in repair([shown.items[index].message for index in left], room.dialect).removed:
        lost.setdefault(left[broken.index], []).append(broken)
    taken = {index: _split(shown.items[index], broken, room) for index, broken in lost.items()}
    whole = {index for index, (rest, _) in taken.items() if rest is None}
    changed = {index: rest.message for index, (rest, _) in taken.items() if rest is not None}
    result = removed("select", shown.replace(changed, room.counter), gone | whole, _REASON)
    orphans = [orphan for rest, orphan in taken.values() if rest is not None]
    edits = [_edit(shown.items[index], taken[index]) for index in changed]
    waiting = sorted([*result.removed, *orphans], key=lambda item: item.seq)
    return structs.replace(result, edits=(*result.edits, *edits), removed=tuple(waiting))


def _split(item: Item, broken: Sequence[Removed], room: Room) -> tuple[Item | None, Item]:
    """The part of an item that stays and the part that leaves. Nothing stays if only pieces of a reply would."""
    parts, orphans = list(item.message.parts), [gone.what for gone in broken]
    lost: list[Part] = [part for part in parts if any(part is orphan for orphan in orphans)]
    rest = [part for part in parts if not any(part is other for other in lost)]
    if not rest or not lost or any(isinstance(orphan, Message) for orphan in orphans):
        return None, item
    message = item.message.with_parts(tuple(rest))
    if message.role == "tool" and not message.results:
        message = structs.replace(message, role="user")
    orphan = Message(item.message.role, tuple(lost))
    return _counted(message, item, room), _counted(orphan, item, room)


def _counted(message: Message, item: Item, room: Room) -> Item:
    return Item(message, item.seq, room.counter.message(message))


def _edit(item: Item, taken: tuple[Item | None, Item]) -> Edit:
    after = taken[0].tokens if taken[0] else 0
    return Edit("select", item.seq, item.tokens, after, "without its call or result", handle_of(item.seq))
