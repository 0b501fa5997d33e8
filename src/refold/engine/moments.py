"""What a conversation knows of its size at a moment, and whether that is too much.

One idea: a policy says by which measure it looks, and every moment is looked at by the same one. Telling how full a context is
and acting on it ask the same question, so that nothing is acted on that was not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.core.assemble import assemble
from refold.core.budget import input_limit
from refold.core.estimate import estimate_window
from refold.core.frame import Now, lowered_output, size_of
from refold.core.measure import holds
from refold.core.plan import Plan
from refold.core.reasons import pressure

if TYPE_CHECKING:
    from refold.core.fold import Folded
    from refold.engine.memory import Memory
    from refold.model.tokens import Measurement
    from refold.model.trigger import Moment


def now_of(memory: Memory, moment: Moment, keep: int | None = None, cut: int | None = None) -> Now:
    """The moment as a plan takes it; `keep` and `cut` are what somebody asked for."""
    ratio, size, counted = ratio_of(memory), _size(memory, moment), size_of(memory.folded, memory.frame)
    if memory.frame.policy.measure == "hybrid" and counted > 0:
        # After a fold the last report is of another window, but of the same instructions, counted in the same way.
        ratio = max(ratio, memory.meter.ratio if size is None else size / counted)
    return Now(
        moment,
        size,
        limit=memory.limits.limit,
        window=memory.limits.window,
        output=memory.limits.output,
        ratio=ratio,
        flag=memory.flag if moment == "before_call" else "",
        in_vain=memory.in_vain,
        keep=keep,
        cut=cut,
    )


def ratio_of(memory: Memory) -> float:
    """How many of the provider's tokens one of ours is, where the policy learns that."""
    is_learnt = memory.frame.policy.measure in ("hybrid", "calibrated")
    return memory.calibration.ratio if is_learnt else 1.0


def limit_on(memory: Memory) -> int:
    """The most that a request may have: by the budget, and by what the provider has stated."""
    now = Now("before_call", window=memory.limits.window, ratio=ratio_of(memory))
    limits = (
        input_limit(memory.frame.budget, lowered_output(memory.frame, now)),
        memory.limits.stated,
    )
    return min(limit for limit in limits if limit is not None)


def measured(memory: Memory, folded: Folded) -> Measurement:
    """The size of the window if this were shown, region by region."""
    now = Now("before_call", window=memory.limits.window, ratio=ratio_of(memory))
    return Plan(memory.frame, now, folded, folded, "keep", "").measurement


def pressure_on(memory: Memory) -> str:
    """Why the context has to be compacted, at whichever moment the policy looks; empty where it has not."""
    moments: dict[Moment, None] = dict.fromkeys((*memory.frame.policy.triggers, "before_call"))
    reasons = (pressure(memory.folded, memory.frame, now_of(memory, moment)) for moment in moments)
    return next(filter(None, reasons), "")


def _size(memory: Memory, moment: Moment) -> int | None:
    """The context as the policy measures it; None where that is our own count."""
    last, shown, policy = memory.meter.anchor, memory.folded.shown, memory.frame.policy
    if policy.measure == "characters" and moment in policy.triggers:
        return estimate_window(assemble(memory.frame.fixed, shown.messages(), memory.folded.lead))
    if last is None or policy.measure not in ("hybrid", "reported") or not holds(last, shown):
        return None
    if policy.measure == "reported":
        return last.prompt
    since = shown.tokens_between(last.messages, len(shown)).tokens
    return last.prompt + round(since * ratio_of(memory))
