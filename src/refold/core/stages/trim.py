"""Trims old tool results by position: older ones lose their middle, the oldest everything.

Only age decides: the distance from the end as a share of the whole. The last replies are not changed, and
small results are not worth a cut.
"""

from __future__ import annotations

from msgspec import Struct

from refold.core.budget import exact
from refold.core.shown import Room, Shown, StageResult, changed
from refold.core.stages.parts import Result, find_results, rebuilt, stub_result
from refold.core.stages.truncate import HANDLE_MARK, Mark, excerpt
from refold.model.message import Part


class Trim(Struct, frozen=True, tag="trim"):
    keep_last_assistants: int = 3
    """Replies at the end, each with all its tool rounds, that stay whole."""
    soft_trim_ratio: float = 0.3
    hard_clear_ratio: float = 0.5
    """Ages (0 for the newest message, 1 for the oldest) from which a result is trimmed and cleared."""
    min_chars: int = 50_000
    """Smaller results stay: they do not fill a window."""
    soft_max: int = 4_000
    soft_head: int = 1_500
    soft_tail: int = 1_500
    hard_clear: bool = True
    text: str = "[Old tool result content cleared]"
    """The stub for a cleared result; `{handle}` names it."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: Shown, room: Room) -> StageResult:
        first, last = self._first_user(shown), self._recent(shown)
        old = [
            found
            for found in find_results(shown)
            if first <= found.index < last
            and room.may_touch(shown, found.index)
            and len(found.result.text) >= self.min_chars
        ]
        cuts = {(at.index, at.place): self._cut(at, len(shown.items)) for at in old}
        parts: dict[tuple[int, int], Part] = {place: part for place, part in cuts.items() if part}
        if not parts:
            return StageResult.skipped(shown, "no tool result is both old and large")
        return changed("trim", shown, rebuilt(shown, parts), room, lambda _: "old and large")

    def _cut(self, found: Result, count: int) -> Part | None:
        result, distance = found.result, count - found.index
        if self.hard_clear and distance >= exact(self.hard_clear_ratio) * count:
            return stub_result(result, self.text.replace("{handle}", found.handle))
        if distance < exact(self.soft_trim_ratio) * count or len(result.text) <= self.soft_max:
            return None
        kept = self.soft_head + self.soft_tail
        inserted = self.mark.spell(
            handle=found.handle, length=len(result.text), limit=self.soft_max, kept=kept
        )
        words = self.mark.whole_words
        cut = excerpt(result.text, self.soft_head, self.soft_tail, inserted, whole_words=words)
        return stub_result(result, cut)

    def _first_user(self, shown: Shown) -> int:
        roles = (item.message.role for item in shown.items)
        return next((index for index, role in enumerate(roles) if role == "user"), len(shown.items))

    def _recent(self, shown: Shown) -> int:
        """Index at which the last replies begin; a reply is an unbroken run of assistant and tool messages."""
        runs, inside = 0, False
        for index in range(len(shown.items) - 1, -1, -1):
            is_reply = shown.items[index].message.role in ("assistant", "tool")
            runs += is_reply and not inside
            if runs > self.keep_last_assistants:
                return index + 1
            inside = is_reply
        return 0
