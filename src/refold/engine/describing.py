"""What an act comes to, in the terms of events.

One idea: everything that is told is derived from what the act leaves behind: the plan, the change and its receipt. Nothing is
measured unless somebody listens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from refold.engine.events import Path, Reduction, Size, size_of
from refold.engine.moments import limit_on, measured
from refold.model.errors import RefoldError

if TYPE_CHECKING:
    from refold.core.fold import Folded
    from refold.core.plan import Plan
    from refold.core.stages.shown import Edit
    from refold.engine.memory import Memory
    from refold.engine.receipts import Change
    from refold.model.trigger import Moment

NOTHING = "there is nothing to take out"
NO_SUMMARY = "no summary could be written"
STOPPED = "it was stopped"


def sized(memory: Memory, folded: Folded | None = None) -> Size:
    """How large the context is, or would be if this were shown."""
    shown = folded or memory.folded
    return size_of(measured(memory, shown), limit_on(memory), shown.shown.counter)


def whole_of(change: Change) -> Folded:
    """What would have been shown: of a message that was cut as it arrived, all of it."""
    before, after = change.before, change.after
    return before.extend(after.originals(before.size, after.size)) if change.raw else before


def reductions(edits: Sequence[Edit], before: Folded) -> tuple[Reduction, ...]:
    """What each stage did, in the order of the stages."""
    results = {item.seq for item in before.items.items if item.message.results}
    stages = dict.fromkeys(edit.stage for edit in edits)
    return tuple(
        _reduction(stage, [edit for edit in edits if edit.stage == stage], results) for stage in stages
    )


def _reduction(stage: str, edits: Sequence[Edit], results: Collection[int]) -> Reduction:
    numbers = {edit.seq for edit in edits}
    before, after = sum(edit.before for edit in edits), sum(edit.after for edit in edits)
    return Reduction(stage, len(numbers), len(numbers.intersection(results)), before, after)


def path_of(moment: Moment, *, is_ahead: bool = False) -> Path:
    if moment in ("manual", "overflow"):
        return moment
    return "ahead" if is_ahead else "automatic"


def is_compaction(planned: Plan, folded: Folded) -> bool:
    """Do messages leave, or were they to? Whatever somebody asked for is one in any case."""
    is_wanted = planned.now.moment in ("manual", "overflow")
    is_other = planned.request is not None or planned.next.lead is not folded.lead
    return is_wanted or is_other or bool(planned.refusal)


def why_not(asked: Plan, done: Plan) -> str:
    if asked.request is None:
        return NOTHING
    return done.reason if done.reason != asked.reason else NO_SUMMARY


def problem_of(error: BaseException) -> str:
    """What went wrong, in words that are ours; those of other errors may hold anything."""
    if isinstance(error, RefoldError):
        return error.message
    return type(error).__name__ if isinstance(error, Exception) else STOPPED
