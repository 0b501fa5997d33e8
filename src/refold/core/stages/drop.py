"""Drops the older half of the turns: an emergency that always frees room and needs no model.

Half of the turns is a large cut, so it is needed rarely. It is repeated inside one application until the
rest fits. A single turn that is too large keeps the user's last message.
"""

from __future__ import annotations

from msgspec import Struct, structs

from refold.core.shown import Room, Shown, StageResult, removed
from refold.core.stages.units import may_drop, units
from refold.core.view import safe_boundary, turn_starts

_TOO_MUCH = "what must stay takes more than there is room for"


class DropHalf(Struct, frozen=True, tag="drop_half"):
    min_messages: int = 2
    """With so few messages or fewer there is no half to drop."""

    def apply(self, shown: Shown, room: Room) -> StageResult:
        if shown.tokens <= room.tokens:
            return StageResult.skipped(shown, "everything fits")
        gone: set[int] = set()
        left = list(range(len(shown.items)))
        while sum(shown.items[index].tokens for index in left) > room.tokens:
            oldest = self._oldest_half(shown.without(gone), room)
            if not oldest:
                break
            gone |= {left[at] for at in oldest}
            left = [index for index in left if index not in gone]
        if not gone:
            return StageResult.skipped(shown, "there is no older half to drop")
        result = removed("drop_half", shown, gone, "in the older half")
        fits = result.shown.tokens <= room.tokens
        return result if fits else structs.replace(result, reason=_TOO_MUCH)

    def _oldest_half(self, shown: Shown, room: Room) -> set[int]:
        """The indices that one halving drops, whole units only."""
        if len(shown.items) <= self.min_messages:
            return set()
        starts = turn_starts(shown.messages)
        middle = self._middle(starts, len(shown.items))
        if middle <= 0:
            keep, stop = (starts[-1] if starts else -1), len(shown.items)
        else:
            keep, stop = -1, middle
        return {
            index
            for unit in units(shown.messages, room.dialect)
            if unit.stop <= stop and keep not in unit and may_drop(unit, shown, room)
            for index in unit
        }

    def _middle(self, starts: tuple[int, ...], length: int) -> int:
        if len(starts) >= 2:
            return starts[len(starts) // 2]
        return safe_boundary(starts, length, length // 2)
