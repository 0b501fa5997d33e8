"""The plan: what to send now, and why.

One idea: there is one pure entry that every front door uses, so that they can never disagree. It measures, asks the policy's
triggers, runs its stages, cuts, and says what has to be summarised. Writing the summary is somebody else's work, and may
fail: `resolve` takes it in, and without it the plan's window is sendable already, or the plan says why nothing is.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, structs

from refold.core import cut as cuts
from refold.core.assemble import assemble
from refold.core.budget import exact, input_limit, limit_of, tokens_of
from refold.core.fold import Folded
from refold.core.measure import FixedCost, measure
from refold.core.policy import (
    ByMessage,
    Cut,
    Exchanges,
    LastMessages,
    LastTurns,
    Policy,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.stages import AnyStage
from refold.core.stages.shown import Edit, Item, Room, Shown
from refold.core.triggers import Facts, due
from refold.core.view import View
from refold.model.budget import Budget, Share, Tokens
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import Measurement, TokenCount
from refold.model.trigger import Moment
from refold.model.window import Fixed, Window

Decision: TypeAlias = Literal["keep", "reduce", "summarise", "refuse"]


NO_GAIN = "a summary would not make it smaller"


class Frame(Struct, frozen=True):
    """What stays the same from call to call: the client's instructions, the budget, the policy."""

    fixed: Fixed
    cost: FixedCost
    budget: Budget
    policy: Policy


class Now(Struct, frozen=True):
    """What is special about this moment."""

    moment: Moment
    size: TokenCount | None = None
    """The best measure of the context there is; None where it has to be counted."""
    reported: int | None = None
    idle_s: float | None = None
    limit: int | None = None
    """A limit learnt from a provider's refusal: the window must be smaller than this."""


class SummaryRequest(Struct, frozen=True):
    """What has to be summarised: the messages numbered `first` up to, not including, `last`."""

    first: int
    last: int
    items: tuple[Item, ...]
    """What was shown of them."""
    kept: tuple[Item, ...]
    """What stays after them, word for word."""
    previous: tuple[Summary, ...]
    max_tokens: int
    turn_from: int | None = None
    """Where a turn is split: the number of the message that began it."""


class Plan(Struct, frozen=True):
    window: Window
    measurement: Measurement
    decision: Decision
    reason: str
    next: Folded
    edits: tuple[Edit, ...] = ()
    request: SummaryRequest | None = None
    refusal: str = ""


def plan(folded: Folded, frame: Frame, now: Now) -> Plan:
    """What to send of a branch at this moment.

    Below the thresholds only totals are looked at. A plan with a `request` gets better when `resolve` is given its summary.
    """
    reason = "" if not frame.policy.enabled else _reason(folded, frame, now)
    if not reason:
        return _finished(folded, frame, "keep", "below every threshold")
    room = _room(folded, frame, now)
    shown, edits = _reduce(folded.items, frame.policy.stages, room)
    reduced = folded.show(shown.items) if edits else folded
    if _is_small(reduced, frame, now):
        return _finished(reduced, frame, "reduce" if edits else "keep", reason, edits)
    request = _request(reduced, frame, now)
    if request is None:
        return _squeezed(reduced, frame, now, reason, edits)
    fitting = reduced if _fits(reduced, frame, now) else _emergency(reduced, room, frame)[0]
    found = _finished(fitting, frame, "summarise", reason, edits)
    return structs.replace(found, request=request, next=reduced)


def resolve(planned: Plan, summary: Summary, frame: Frame, now: Now) -> Plan:
    """The plan with its summary: the covered messages are no longer shown, the summary stands for them."""
    request = planned.request
    if request is None:
        return planned
    earlier = () if summary.scope == "cumulative" else planned.next.summaries
    folded = planned.next.show(request.kept, (*earlier, summary))
    if _content(folded, frame) >= _content(planned.next, frame) and _fits(planned.next, frame, now):
        return structs.replace(planned, decision="keep", reason=NO_GAIN, request=None)
    return _squeezed(folded, frame, now, planned.reason, planned.edits, "summarise")


def _reason(folded: Folded, frame: Frame, now: Now) -> str:
    if now.moment == "manual":
        return "asked for"
    if now.limit is not None:
        return f"the provider takes no more than {now.limit:,} tokens"
    size = now.size.tokens if now.size else _content(folded, frame)
    facts = Facts(
        tokens=size,
        limit=limit_of(frame.budget),
        window=frame.budget.window,
        max_output=frame.budget.max_output,
        messages=len(folded.shown),
        tool_tokens=folded.shown.result_tokens_between(0, len(folded.shown)).tokens,
        idle_s=now.idle_s,
        reported=now.reported,
    )
    reason = due(frame.policy.triggers, now.moment, facts)
    if not reason and now.moment == "before_call" and not _fits(folded, frame, now):
        return f"{_content(folded, frame):,} tokens do not fit into {_limit(frame, now):,}"
    return reason


def _content(folded: Folded, frame: Frame) -> int:
    return frame.cost.total.tokens + folded.summary_tokens + folded.shown.tokens.tokens


def _limit(frame: Frame, now: Now) -> int:
    limit = input_limit(frame.budget)
    return limit if now.limit is None else min(limit, now.limit)


def _fits(folded: Folded, frame: Frame, now: Now) -> bool:
    return _content(folded, frame) <= _limit(frame, now)


def _is_small(folded: Folded, frame: Frame, now: Now) -> bool:
    """Have stages alone made the window small enough?"""
    if now.moment == "manual":
        return False
    target = tokens_of(frame.policy.target, frame.budget)
    return _content(folded, frame) <= min(target, _limit(frame, now))


def _room(folded: Folded, frame: Frame, now: Now) -> Room:
    view, instructions = folded.shown, frame.cost.total.tokens
    free = _limit(frame, now) - instructions - folded.summary_tokens
    return Room(max(0, free), instructions, view.counter, view.dialect, folded.pinned)


def _reduce(shown: Shown, stages: tuple[AnyStage, ...], room: Room) -> tuple[Shown, tuple[Edit, ...]]:
    edits: list[Edit] = []
    for stage in stages:
        result = stage.apply(shown, room)
        shown = result.shown
        edits += result.edits
    return shown, tuple(edits)


def _request(folded: Folded, frame: Frame, now: Now) -> SummaryRequest | None:
    """What to summarise; None where nothing can be cut off."""
    items = folded.items.items
    at = _cut(folded, frame, now)
    if at <= 0:
        return None
    first = folded.summaries[-1].last if folded.summaries else 0
    last = items[at].seq if at < len(items) else len(folded.branch)
    split = cuts.split_turn(folded.shown, at)
    share = Share(frame.policy.summary_share.fraction, "effective")
    effective = max(0, _limit(frame, now) - frame.cost.total.tokens)
    return SummaryRequest(
        first=0 if frame.policy.scope == "cumulative" else first,
        last=last,
        items=items[:at],
        kept=items[at:],
        previous=folded.summaries,
        max_tokens=tokens_of(share, frame.budget, effective=effective),
        turn_from=folded.number(split.start) if split else None,
    )


def _cut(folded: Folded, frame: Frame, now: Now) -> int:
    """Where to cut: where the policy says, but never through a reply, never after the last one, and through the active
    turn only where that is too large to stay whole.
    """
    view, effective = folded.shown, max(0, _limit(frame, now) - frame.cost.total.tokens)
    last_exchange = cuts.pair_safe(view, len(view) - 1)
    wanted = _wanted(frame.policy.cut, view, frame.budget, effective, now)
    wanted = min(cuts.pair_safe(view, wanted), last_exchange)
    most = int(exact(frame.policy.whole_turn.fraction) * effective)
    is_turn_small = view.tokens_between(folded.active, len(view)).tokens <= most
    if wanted > folded.active and is_turn_small:
        wanted = cuts.pair_safe(view, folded.active)
    if wanted == 0 and now.moment == "manual":
        wanted = cuts.pair_safe(view, folded.active)
    if wanted == 0 and not _fits(folded, frame, now):
        half = Exchanges(Share(0.5, "effective"))
        return cuts.pair_safe(view, _wanted(half, view, frame.budget, effective, now))
    return wanted


def _wanted(rule: Cut, view: View, budget: Budget, effective: int, now: Now) -> int:
    match rule:
        case ByMessage():
            return cuts.by_message(view, _keep(rule.keep, budget, effective))
        case UserBoundaryAfter():
            force = now.moment in ("overflow", "manual")
            return cuts.user_boundary_after(view, _keep(rule.keep, budget, effective), force=force)
        case TurnBoundaryBefore():
            return cuts.turn_boundary_before(view, rule.keep_messages)
        case LastTurns():
            return cuts.last_turns(view, rule.turns, max_tokens=_keep(rule.keep, budget, effective))
        case LastMessages():
            return max(0, len(view) - rule.messages)
        case Exchanges():
            return min(view.suffix_within(_keep(rule.keep, budget, effective)), max(0, len(view) - 1))


def _keep(size: Tokens | Share, budget: Budget, effective: int) -> int:
    """What is kept, never more than there is room for."""
    return min(tokens_of(size, budget, effective=effective), effective)


def _squeezed(
    folded: Folded,
    frame: Frame,
    now: Now,
    reason: str,
    edits: tuple[Edit, ...],
    decision: Decision = "reduce",
) -> Plan:
    """Make it fit without any summary, where it does not."""
    if _fits(folded, frame, now):
        return _finished(
            folded, frame, decision if edits or decision == "summarise" else "keep", reason, edits
        )
    fitting, more = _emergency(folded, _room(folded, frame, now), frame)
    found = _finished(fitting, frame, decision, reason, (*edits, *more))
    if _fits(fitting, frame, now):
        return found
    text = f"{_content(fitting, frame):,} tokens do not fit into {_limit(frame, now):,}, and nothing more can be taken away"
    return structs.replace(found, decision="refuse", refusal=text)


def _emergency(folded: Folded, room: Room, frame: Frame) -> tuple[Folded, tuple[Edit, ...]]:
    shown, edits = _reduce(folded.items, frame.policy.emergency, room)
    return (folded.show(shown.items) if edits else folded), edits


def _finished(
    folded: Folded, frame: Frame, decision: Decision, reason: str, edits: tuple[Edit, ...] = ()
) -> Plan:
    placed = tuple(summary_message(summary, frame.policy) for summary in folded.summaries)
    window = assemble(frame.fixed, folded.shown.messages(), summaries=placed)
    summary = TokenCount.of(folded.summary_tokens, folded.shown.counter.source)
    sizes = measure(folded.shown, frame.cost, frame.budget, summary=summary)
    return Plan(window, sizes, decision, reason, folded, edits)


def summary_message(summary: Summary, policy: Policy) -> Message:
    """A summary as it is sent: between words that say what it is."""
    from refold.model.message import assistant, user

    text = f"{policy.texts.opening}{summary.text}{policy.texts.closing}"
    return assistant(text) if policy.placement == "assistant" else user(text)
