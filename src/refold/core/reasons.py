"""Why to act.

One idea: a reason is a sentence with the numbers in it, and no reason is an empty one. Whether the context has to be made smaller
is one question, whether it is worth trying at this moment another: what was tried in vain stays as full as it was, and says so.
"""

from __future__ import annotations

from refold.core.budget import input_limit, limit_of
from refold.core.cost import fold_at
from refold.core.fold import Folded
from refold.core.frame import Frame, Now, fits, limit_for, lowered_output, size_of, target_for
from refold.core.triggers import Facts, due

MAX_IN_VAIN = 3
"""After so many compactions in a row that gained nothing, only a window that does not fit is worth another."""


def reason_to_act(folded: Folded, frame: Frame, now: Now) -> str:
    """Why to compact at this moment; empty where there is no reason to."""
    if now.moment == "manual":
        return "asked for"
    if now.moment == "overflow":
        return f"the provider refused the input as too long; {limit_for(frame, now):,} tokens are tried next"
    if overfull := _overfull(folded, frame, now):
        return overfull
    if now.in_vain >= MAX_IN_VAIN or folded.size in (folded.settled, folded.declined):
        return ""
    return _wanted(folded, frame, now)


def reason_to_reduce(folded: Folded, frame: Frame, now: Now) -> str:
    """Why to run the stages; empty where there is no reason to."""
    rules = frame.policy.reduce_at
    return due(rules, now.moment, _facts(folded, frame, now)) if now.moment in rules else ""


def pressure(folded: Folded, frame: Frame, now: Now) -> str:
    """Why the context has to be compacted, also where that was tried in vain or taken back; empty where it has not.

    What stages do to single results on the way is no reason: they run whenever there is something for them.
    """
    if not frame.policy.enabled:
        return ""
    return _overfull(folded, frame, now) or _wanted(folded, frame, now)


def _overfull(folded: Folded, frame: Frame, now: Now) -> str:
    if now.moment != "before_call" or fits(folded, frame, now):
        return ""
    output = lowered_output(frame, now)
    lowered = f" with the output lowered to {output:,}" if output < frame.budget.max_output else ""
    return f"{size_of(folded, frame):,} tokens do not fit into {limit_for(frame, now):,}{lowered}"


def _wanted(folded: Folded, frame: Frame, now: Now) -> str:
    """What the policy says, by its flag, its triggers or the prices."""
    return (
        now.flag
        or due(frame.policy.triggers, now.moment, _facts(folded, frame, now))
        or _by_price(folded, frame, now)
    )


def _facts(folded: Folded, frame: Frame, now: Now) -> Facts:
    shown, budget, output = folded.shown, frame.budget, lowered_output(frame, now)
    room = limit_for(frame, now) - frame.instructions - folded.lead.tokens
    return Facts(
        tokens=now.size if now.size is not None else round(size_of(folded, frame) * now.ratio),
        limit=limit_of(budget),
        room=input_limit(budget, output),
        window=budget.window,
        max_output=output,
        messages=len(shown),
        to_refine=shown.suffix_within(max(0, room)),
        tool_tokens=shown.result_tokens_between(0, len(shown)).tokens,
        idle_s=now.idle_s,
        reported=now.reported,
    )


def _by_price(folded: Folded, frame: Frame, now: Now) -> str:
    """Is it cheaper to fold now than to carry all of it along?"""
    if frame.prices is None or not frame.policy.by_price or now.moment != "before_call":
        return ""
    limit = limit_for(frame, now)
    growth = folded.whole / max(1, folded.replies)
    best = fold_at(limit, level=min(target_for(frame, now), limit), growth=growth, prices=frame.prices)
    size = size_of(folded, frame)
    return f"{size:,} tokens cost more to carry along than to fold, from {best:,}" if size > best else ""


def with_digests(reason: str, digested: int) -> str:
    """The reason of a compaction whose summariser was given plain digests of some texts, which were too long for it."""
    if not digested:
        return reason
    texts = "one text was" if digested == 1 else f"{digested:,} texts were"
    return f"{reason}; {texts} too long for the summariser, which was given a plain digest of {'it' if digested == 1 else 'each'}"
