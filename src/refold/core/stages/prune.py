"""Replaces old tool results by the name of their tool.

Pruning is rare and large, and never goes back. Results are replaced only when those since the last pruning
exceed a threshold, and nothing up to the last replaced result is changed again, so a provider's cache of
that prefix stays valid. The last replaced result is the boundary; no other record is needed.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.shown import Room, Shown, StageResult, changed
from refold.core.stages.parts import Result, find_results, rebuilt, stub_result
from refold.model.message import Text

PrunePolicy: TypeAlias = Literal["auto", "keep_all", "keep_none"]
ToolRule: TypeAlias = Literal["prune", "summarise", "summarize"]
"""`summarize` is another spelling of `summarise`."""


class Prune(Struct, frozen=True, tag="prune"):
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
    text: str = "{name}"
    """The stub for a result; `{name}` is its tool's name, `{handle}` its handle."""
    unknown: str = "pruned"
    """The name in the stub if the tool is unknown."""

    def apply(self, shown: Shown, room: Room) -> StageResult:
        is_forced = self.force or room.is_due
        if self.policy == "keep_all" and not is_forced:
            return StageResult.skipped(shown, "the policy keeps all tool results")
        fresh = self._fresh(find_results(shown))
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
        return changed("prune", shown, rebuilt(shown, parts), room, lambda _: "old tool output")

    def boundary(self, shown: Shown) -> int:
        """One past the index of the last pruned result: messages before it are not changed any more. 0 if none is pruned."""
        pruned = (found.index for found in reversed(find_results(shown)) if self._is_pruned(found))
        return next(pruned, -1) + 1

    def _fresh(self, results: list[Result]) -> list[Result]:
        """The results after the last pruned one."""
        pruned = [at for at, found in enumerate(results) if self._is_pruned(found)]
        return results[pruned[-1] + 1 :] if pruned else results

    def _oldest_kept(self, sizes: list[int]) -> int:
        """The position from which all newer results fit into `keep`."""
        left = 0 if self.policy == "keep_none" else self.keep
        at = len(sizes)
        while at and sizes[at - 1] <= left:
            at -= 1
            left -= sizes[at]
        return at

    def _may_prune(self, found: Result, shown: Shown, room: Room) -> bool:
        if not room.may_touch(shown, found.index):
            return False
        if self.policy != "keep_none" and self.rules.get(found.name) in ("summarise", "summarize"):
            return False
        return "{handle}" not in self.text or len(self._stub(found)) < len(found.result.text)

    def _is_pruned(self, found: Result) -> bool:
        parts = found.result.parts
        return len(parts) == 1 and type(parts[0]) is Text and parts[0].text == self._stub(found)

    def _stub(self, found: Result) -> str:
        return self.text.replace("{name}", found.name or self.unknown).replace("{handle}", found.handle)
