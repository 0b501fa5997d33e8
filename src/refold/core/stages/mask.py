"""Shortens tool results that the model has already answered to an excerpt.

Once the assistant has replied to a tool result, the full text is rarely needed again. Unanswered results
and all text of the assistant stay unchanged.
"""

from __future__ import annotations

from msgspec import Struct

from refold.core.budget import exact
from refold.core.shown import Room, Shown, StageResult, changed
from refold.core.stages.parts import Result, cut_result, find_results, last_answer, rebuilt
from refold.core.stages.truncate import HANDLE_MARK, Mark, share


class Mask(Struct, frozen=True, tag="mask"):
    at: float = 0.8
    """Least fill level, instructions included: below it the full output is worth its room."""
    floor: int = 300
    """Characters that every result keeps: a few lines still show the kind of output."""
    headroom: float = 0.0
    """Added to the shared room, as a fraction of it, for policies in which a summary frees room anyway."""
    active: bool = False
    """Mask results in the active turn as well: in a long agent run most answered results are there."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: Shown, room: Room) -> StageResult:
        if room.pressure(shown) < exact(self.at):
            return StageResult.skipped(shown, f"the window is less than {self.at:.0%} full")
        answered = last_answer(shown)
        consumed = [found for found in find_results(shown) if found.index < answered]
        if not consumed:
            return StageResult.skipped(shown, "no tool result has been answered yet")
        parts = {}
        for position, found in enumerate(consumed):
            limit = max(self.floor, share(self._characters(room), position, len(consumed)))
            cut = cut_result(found.result, limit, self.mark, found.handle)
            if cut is not found.result and self._may_touch(found, shown, room):
                parts[found.index, found.place] = cut
        if not parts:
            return StageResult.skipped(shown, "every answered tool result is short enough")
        return changed("mask", shown, rebuilt(shown, parts), room, lambda _: "answered tool output")

    def _may_touch(self, found: Result, shown: Shown, room: Room) -> bool:
        return not room.is_pinned(found.item) if self.active else room.may_touch(shown, found.index)

    def _characters(self, room: Room) -> int:
        """Characters that all answered results share: the whole room, at four characters per token."""
        return 4 * int(max(0, room.tokens) * (1 + exact(self.headroom)))
