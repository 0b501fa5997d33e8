"""Stages that shorten or replace old tool results: `Prune` by their total size, `Trim` by their age, `Mask` when the
window fills.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.budget import exact
from refold.core.stage import Room, ShownMessages, StageResult, changed
from refold.core.stages.parts import Result, cut_result, find_results, last_answer, rebuilt, stub_result
from refold.core.stages.truncate import HANDLE_MARK, Mark, excerpt, share
from refold.model.message import Part

PrunePolicy: TypeAlias = Literal["auto", "keep_all", "keep_none"]
ToolRule: TypeAlias = Literal["prune", "summarise", "summarize"]
"""`summarize` is another spelling of `summarise`."""


PRUNE_STAGE = "prune"
"""The name of the stage in its edits."""


class Prune(Struct, frozen=True, tag="prune"):
    """Replaces old tool results by the name of their tool.

    Pruning is rare and large, and never goes back. Results are replaced only when those since the last pruning
    exceed a threshold, and nothing up to the last replaced result is changed again, so a provider's cache of
    that prefix stays valid. The boundary is recorded in `Folded.pruned` and stored with it.
    """

    threshold: int = 8_000
    """Tokens of tool results since the last pruning that may stay: a few files and a test run."""
    keep: int = 2_000
    """Tokens of the newest output that stay: enough for the usual read-edit-check loop."""
    policy: PrunePolicy = "auto"
    """`keep_all` prunes only when forced, and then like `auto`. `keep_none` keeps no result and ignores `rules`."""
    rules: dict[str, ToolRule] = {}
    """Rules by tool name. Results of tools with `summarise` stay until they are summarised; all other results are pruned."""
    force: bool = False
    """Prune now, regardless of the threshold and `keep_all`. A summary that is due forces pruning as well."""
    text: str = "{name} {handle}"
    """The stub for a result; `{name}` is its tool's name, `{handle}` its handle."""
    unknown: str = "pruned"
    """The name in the stub if the tool is unknown."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        is_forced = self.force or room.is_due
        if self.policy == "keep_all" and not is_forced:
            return StageResult.skipped(shown, "the policy keeps all tool results")
        fresh = [found for found in find_results(shown) if found.item.seq >= room.pruned]
        sizes = [found.tokens(room.counter) for found in fresh]
        if sum(sizes) <= self.threshold and not is_forced:
            text = (
                f"{sum(sizes):,} tokens of tool results since the last pruning; {self.threshold:,} may stay"
            )
            return StageResult.skipped(shown, text)
        old = fresh[: self._oldest_kept(sizes)]
        stale = [found for found in old if self._may_prune(found, shown, room)]
        if not stale:
            return StageResult.skipped(shown, "no tool result may be pruned")
        parts = {(at.index, at.place): stub_result(at.result, self._stub(at)) for at in stale}
        return changed(PRUNE_STAGE, shown, rebuilt(shown, parts), room, lambda _: "old tool output")

    def _oldest_kept(self, sizes: list[int]) -> int:
        """The position from which all newer results fit into `keep`."""
        left = 0 if self.policy == "keep_none" else self.keep
        at = len(sizes)
        while at and sizes[at - 1] <= left:
            at -= 1
            left -= sizes[at]
        return at

    def _may_prune(self, found: Result, shown: ShownMessages, room: Room) -> bool:
        if not room.may_touch(shown, found.index):
            return False
        if self.policy != "keep_none" and self.rules.get(found.name) in ("summarise", "summarize"):
            return False
        return "{handle}" not in self.text or len(self._stub(found)) < len(found.result.text)

    def _stub(self, found: Result) -> str:
        return self.text.replace("{name}", found.name or self.unknown).replace("{handle}", found.handle)


class Trim(Struct, frozen=True, tag="trim"):
    """Trims old tool results by position: older ones lose their middle, the oldest everything.

    Only age decides: the distance from the end as a share of the whole. The last replies are not changed, and
    small results are not worth a cut.
    """

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
    """The stub for a cleared result. The name of the tool and the handle are added, unless it has `{handle}`."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
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
            return stub_result(result, self._stub(found))
        if distance < exact(self.soft_trim_ratio) * count or len(result.text) <= self.soft_max:
            return None
        kept = self.soft_head + self.soft_tail
        inserted = self.mark.spell(
            handle=found.handle, length=len(result.text), limit=self.soft_max, kept=kept
        )
        words = self.mark.whole_words
        cut = excerpt(result.text, self.soft_head, self.soft_tail, inserted, whole_words=words)
        return stub_result(result, cut)

    def _stub(self, found: Result) -> str:
        if "{handle}" in self.text:
            return self.text.replace("{handle}", found.handle).replace("{name}", found.name)
        return " ".join(filter(None, (self.text, found.name, found.handle)))

    def _first_user(self, shown: ShownMessages) -> int:
        roles = (item.message.role for item in shown.items)
        return next((index for index, role in enumerate(roles) if role == "user"), len(shown.items))

    def _recent(self, shown: ShownMessages) -> int:
        """Index at which the last replies begin; a reply is an unbroken run of assistant and tool messages."""
        runs, inside = 0, False
        for index in range(len(shown.items) - 1, -1, -1):
            is_reply = shown.items[index].message.role in ("assistant", "tool")
            runs += is_reply and not inside
            if runs > self.keep_last_assistants:
                return index + 1
            inside = is_reply
        return 0


class Mask(Struct, frozen=True, tag="mask"):
    """Shortens tool results that the model has already answered to an excerpt.

    Once the assistant has replied to a tool result, the full text is rarely needed again. Unanswered results
    and all text of the assistant stay unchanged.
    """

    at: float = 0.8
    """Least fill level, instructions included: below it the full output is worth its room."""
    floor: int = 300
    """Characters that every result keeps: a few lines still show the kind of output."""
    headroom: float = 0.0
    """Added to the shared room, as a fraction of it, for policies in which a summary frees room anyway."""
    active: bool = False
    """Mask results in the active turn as well: in a long agent run most answered results are there."""
    mark: Mark = HANDLE_MARK

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
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

    def _may_touch(self, found: Result, shown: ShownMessages, room: Room) -> bool:
        return not room.is_pinned(found.item) if self.active else room.may_touch(shown, found.index)

    def _characters(self, room: Room) -> int:
        """Characters that all answered results share: the whole room, at four characters per token."""
        return 4 * int(max(0, room.tokens) * (1 + exact(self.headroom)))
