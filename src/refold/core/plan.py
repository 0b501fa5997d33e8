"""The plan: what to send now, and why.

One idea: there is one pure entry that every front door uses, so that they can never disagree. It measures, asks the policy's
triggers, runs its stages, cuts, and says what has to be summarised. Writing the summary is somebody else's work, and may
fail: `resolve` takes it in, and without it the plan's window is sendable already, or the plan says why nothing is.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, structs

from refold.core import cut as cuts
from refold.core.assemble import assemble, lead_of
from refold.core.budget import exact, limit_of, share_of, tokens_of
from refold.core.cut import cut_at
from refold.core.emergency import reduce, squeeze_in
from refold.core.fold import Folded
from refold.core.measure import measure
from refold.core.plan_inputs import (
    BEFORE_CALL,
    Frame,
    Now,
    effective_for,
    fits,
    limit_for,
    lowered_output,
    output_for,
    room_for,
    size_of,
    target_for,
)
from refold.core.secrets.redact import redact
from refold.core.shown import Edit, Item, Room
from refold.core.stages import DescribeMedia, DropReasoning, Supersede
from refold.core.stages.units import units
from refold.core.summary_checks.accept import check_summary
from refold.core.system_messages import holds_more, is_setting, newest_instruction
from refold.core.triggers import message_limit, reason_to_act, reason_to_reduce
from refold.core.unread_cut import KEPT_QUESTION_SHARE, LEAST_BESIDE, fit_unread
from refold.core.user_requests import MAX_ROOM, request_lines, with_requests
from refold.model.budget import Tokens
from refold.model.message import compaction_span
from refold.model.summary import Summary
from refold.model.tokens import Measurement, TokenCount
from refold.model.window import Window

Decision: TypeAlias = Literal["keep", "reduce", "summarise", "refuse"]

_BY_MESSAGE = (DescribeMedia, DropReasoning, Supersede)
"""Stages that make single messages smaller and remember no boundary."""
LEAST_SUMMARY = 0.15
"""Of the room: a summary may take so much even where less would be left below the target, if what stays leaves so much."""
SUMMARY_BESIDE = 0.45
"""Likewise, if what stays leaves that and `FREE` besides: a large result that stays now leaves with the next fold, so a summary
need not be small for its sake."""
FREE = 0.1
"""Of the room, for what comes until the next fold."""


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
    """What the summary may take in the window, the words around it included."""
    turn_from: int | None = None
    """Where a turn is split: the number of the message that began it."""
    apart: frozenset[int] = frozenset()
    """Numbers of messages that the summary does not cover: a provider's own compaction, the results of its calls, and what it stands
    for but the user's own words."""
    since: int = 0
    """The number of the first message after that compaction."""

    @property
    def leaving(self) -> tuple[Item, ...]:
        """Those of the items that are shown no more."""
        kept = {item.seq for item in self.kept}
        return tuple(item for item in self.items if item.seq not in kept)


class Plan(Struct, frozen=True):
    frame: Frame
    now: Now
    sent: Folded
    """What leaves; where a summary is asked for, what would leave with it not yet taken in."""
    next: Folded
    """What the branch is shown as from now on."""
    decision: Decision
    reason: str
    edits: tuple[Edit, ...] = ()
    request: SummaryRequest | None = None
    refusal: str = ""

    @property
    def sendable(self) -> Folded:
        """What can leave as things are, with or without the summary that was asked for."""
        return give_up(self).sent if self.request else self.sent

    @property
    def window(self) -> Window:
        sent = self.sendable
        return assemble(self.frame.fixed, sent.shown.messages(), sent.lead)

    @property
    def measurement(self) -> Measurement:
        sent = self.sendable
        shown, summary = sent.shown, TokenCount.of(sent.lead.tokens, sent.shown.counter.source)
        budget = structs.replace(self.frame.budget, max_output=output_for(sent, self.frame, self.now))
        return measure(shown, self.frame.cost, budget, summary=summary)


def plan(folded: Folded, frame: Frame, now: Now) -> Plan:
    """What to send of a branch at this moment.

    Below the thresholds only totals are looked at. A plan with a `request` gets better when `resolve` is given its summary.
    """
    policy = frame.policy
    is_due = reason_to_act(folded, frame, now) if policy.enabled else ""
    reason = is_due or (reason_to_reduce(folded, frame, now) if policy.enabled else "")
    if not reason:
        return Plan(frame, now, folded, folded, "keep", "below every threshold")
    if folded.is_bound and now.moment not in ("manual", "overflow") and fits(folded, frame, now):
        return Plan(frame, now, folded, folded, "keep", "waits for the end of a turn with signed thoughts")
    folded, cut = fit_unread(folded, frame, now) if is_due else (folded, ())
    room = structs.replace(room_for(folded, frame, now), is_due=bool(is_due))
    if is_due and (early := _overtaken(folded, frame, now, is_due, room)):
        return structs.replace(early, edits=cut)
    shown, more = reduce(folded.touchable, policy.stages, room)
    reduced, edits = folded.show(shown.items) if more else folded, (*cut, *more)
    found = Plan(frame, now, reduced, reduced, "reduce" if edits else "keep", reason, edits)
    if not is_due or _is_small(reduced, frame, now):
        return found
    if policy.hard and (dropped := _hardened(found)):
        return dropped
    request = _request(reduced, frame, now)
    if request is None:
        return _fitting(found)
    return structs.replace(found, decision="summarise", request=request)


def _overtaken(folded: Folded, frame: Frame, now: Now, reason: str, room: Room) -> Plan | None:
    """The plan as if the stages had done nothing, where they would do nothing to what stays and could not be enough."""
    stages, shown = frame.policy.stages, folded.touchable
    if frame.policy.hard or not all(isinstance(stage, _BY_MESSAGE) for stage in stages):
        return None
    request = _request(folded, frame, now)
    if request is None or reduce(shown.since(len(request.items)), stages, room)[1]:
        return None
    if now.moment != "manual":
        saved = sum(edit.before - edit.after for edit in reduce(shown, stages, room)[1])
        if size_of(folded, frame) - saved <= min(target_for(frame, now), limit_for(frame, now)):
            return None
    return Plan(frame, now, folded, folded, "summarise", reason, request=request)


def resolve(planned: Plan, summary: Summary) -> Plan:
    """The plan with its summary: the covered messages are no longer shown, the summary stands for them.

    The summary may have been written ahead, for fewer messages than leave now: those after it stay.
    """
    frame, now, shown = planned.frame, planned.now, planned.next
    earlier = () if summary.scope == "cumulative" else shown.summaries
    kept = _kept(shown, summary.last, effective_for(frame, now))
    lines = requests_for(shown, kept, summary.last, frame, planned.request)
    if summary.kind == "model":
        lines = tuple(map(redact, lines))
    summary = with_requests(summary, lines, shown.shown.counter)
    summaries = (*earlier, summary)
    view, older = shown.shown, tokens_of(frame.policy.ancestors, frame.budget)
    lead = lead_of(summaries, frame.policy, view.dialect, view.counter, older, frame.fixed)
    folded = shown.lead_by(summaries, lead).show(kept)
    verdicts = check_summary(summary.text, tokens=folded.tokens, source_tokens=shown.tokens)
    failed = next((verdict for verdict in verdicts if not verdict.passed), None)
    if failed and fits(shown, frame, now):
        reason = f"the summary was not used: {failed.reason}"
        decision: Decision = "reduce" if planned.edits else "keep"
        settled = shown.settle()
        return structs.replace(
            planned, decision=decision, reason=reason, sent=settled, next=settled, request=None
        )
    return _fitting(structs.replace(planned, decision="summarise", sent=folded, next=folded, request=None))


def requests_for(
    folded: Folded, kept: tuple[Item, ...], last: int, frame: Frame, request: SummaryRequest | None
) -> tuple[str, ...]:
    """What of the user's task and open question a summary has to hold word for word."""
    room = request_room(frame, request.max_tokens if request else MAX_ROOM)
    return request_lines(folded, kept, last, room, counter=folded.shown.counter)


def request_room(frame: Frame, max_tokens: int) -> int:
    """The room for messages, as shares of a summary are measured by it: twice the summary at most."""
    room = frame.budget.window - lowered_output(frame, BEFORE_CALL) - frame.instructions
    return max(0, min(room, 2 * max_tokens, MAX_ROOM))


def give_up(planned: Plan) -> Plan:
    """The plan without a summary, where none could be written: what was to be sent is sent."""
    return _fitting(structs.replace(planned, decision="reduce" if planned.edits else "keep", request=None))


def ahead(folded: Folded, frame: Frame, now: Now) -> SummaryRequest | None:
    """What to have summarised before the window is full; None where it is too early, or nothing is new."""
    soft = frame.policy.soft
    if soft is None or not frame.policy.enabled or folded.settled == folded.size:
        return None
    share, most = exact(soft.fraction), message_limit(frame.policy.triggers)
    is_full = size_of(folded, frame) >= share * limit_of(frame.budget) / exact(now.ratio)
    is_soon = is_full or (most is not None and len(folded.shown) >= share * most)
    return _request(folded, frame, now) if is_soon else None


def _is_small(folded: Folded, frame: Frame, now: Now) -> bool:
    """Have stages alone made the window small enough?"""
    if now.moment == "manual":
        return False
    return size_of(folded, frame) <= min(target_for(frame, now), limit_for(frame, now))


def _request(folded: Folded, frame: Frame, now: Now) -> SummaryRequest | None:
    """What to summarise; None where nothing can be cut off, or nothing is new since the last summary."""
    if folded.settled == folded.size and now.moment != "overflow":
        return None
    items, effective = folded.items.items, effective_for(frame, now)
    if not items:
        return None
    span = compaction_span([item.message for item in items])
    at = _cut(folded, frame, now, effective)
    at = max(at, span.stop) if at else 0
    first = folded.summaries[-1].last if folded.summaries else 0
    last = max(first, _number_at(items, at, folded.size))
    kept = _kept(folded, last, effective)
    if len(kept) == len(items) and not _is_summary_large(folded, frame, now):
        return None
    split = cuts.split_turn(folded.shown, at)
    return SummaryRequest(
        first=0 if frame.policy.scope == "cumulative" else first,
        last=last,
        items=items[:at],
        kept=kept,
        previous=folded.summaries,
        max_tokens=_summary_room(kept, frame, now, effective),
        turn_from=folded.number(split.start) if split else None,
        apart=_apart(items, span),
        since=items[span.stop - 1].seq + 1 if span else 0,
    )


def _is_summary_large(folded: Folded, frame: Frame, now: Now) -> bool:
    """Is it the summary that does not fit beside messages which all stay? Then it is written again, for less room."""
    policy = frame.policy
    is_rewritable = bool(folded.summaries) and policy.cut is not None and policy.scope == "cumulative"
    return is_rewritable and not fits(folded, frame, now)


def _cut(folded: Folded, frame: Frame, now: Now, effective: int) -> int:
    """The index of the first message that stays."""
    if now.cut is not None:
        items, wanted = folded.items.items, now.cut
        return next((index for index, item in enumerate(items) if item.seq >= wanted), len(items))
    is_full = not fits(folded, frame, now)
    budget, moment = frame.budget, now.moment
    return cut_at(folded, frame.policy, budget, effective, moment, is_full=is_full, keep=now.keep)


def _apart(items: tuple[Item, ...], span: range) -> frozenset[int]:
    """What a summary need not cover, since a provider's own compaction does: all before it, but what the user said."""
    before = (item for item in items[: span.start] if item.message.role != "user")
    return frozenset(item.seq for item in (*before, *items[span.start : span.stop]))


def _number_at(items: tuple[Item, ...], at: int, size: int) -> int:
    """The number from which messages stay, where those before the index `at` leave. A system message that was moved has a lower
    number than the messages before it, and says nothing about that.
    """
    highest = max((item.seq for item in items[:at]), default=-1)
    return next((item.seq for item in items[at:] if item.seq > highest), size)


def _kept(folded: Folded, last: int, effective: int) -> tuple[Item, ...]:
    """What stays when the messages numbered below `last` leave: the others, the question that is being answered, the newest
    instruction given on the way, what is pinned, what was set at the provider, and its own compaction with the results of its calls.
    """
    items = folded.items.items
    question = None if folded.is_turn_over or not items else items[folded.active]
    if question and (
        question.message.role != "user" or question.tokens > exact(KEPT_QUESTION_SHARE) * effective
    ):
        question = None
    newest, compacted = newest_instruction(items), folded.compacted
    pinned = _pinned(folded)
    return tuple(
        _alone(folded, item) if item.seq == newest else item
        for item in items
        if item.seq >= last
        or item is question
        or item.seq == newest
        or item.seq in compacted
        or item.seq in pinned
        or is_setting(item.message)
    )


def _pinned(folded: Folded) -> frozenset[int]:
    """Numbers of the messages that a person pinned, with those that can only stay together with them: a call and its results."""
    if not folded.pinned:
        return folded.pinned
    items = folded.items.items
    together = units([item.message for item in items], folded.shown.dialect)
    held = (unit for unit in together if any(items[index].seq in folded.pinned for index in unit))
    return frozenset(items[index].seq for unit in held for index in unit)


def _alone(folded: Folded, item: Item) -> Item:
    """The newest instruction without the words of older ones that had to be joined with it; those fold now."""
    original = folded.original(item.seq) if item.seq >= folded.origin else None
    if original is None or not holds_more(item.message, original.message):
        return item
    return Item(original.message, item.seq, original.tokens)


def _summary_room(kept: tuple[Item, ...], frame: Frame, now: Now, effective: int) -> int:
    """As much as the policy gives a summary, but not so much that the next one would be due at once."""
    tail, share = sum(item.tokens for item in kept), frame.policy.summary_share
    level = target_for(frame, now) - frame.instructions - tail
    left = max(effective - tail, share_of(LEAST_BESIDE, effective))
    level = max(level, min(share_of(SUMMARY_BESIDE, effective), left - share_of(FREE, effective)))
    wanted = min(share_of(share.fraction, effective), level, left)
    return max(wanted, min(left, share_of(LEAST_SUMMARY, effective)))


def _fitting(planned: Plan) -> Plan:
    """Make it fit without any summary, where it does not. What fits only into the reserve is sent, too: the reserve is for errors of
    our count, and the provider does not know of it.
    """
    frame, now, folded = planned.frame, planned.now, planned.next
    if fits(folded, frame, now):
        return structs.replace(planned, sent=folded)
    fitting, more = _emergency(folded, frame, now)
    if not fits(fitting, frame, now):
        frame = structs.replace(frame, budget=structs.replace(frame.budget, reserve=Tokens(0)))
        fitting, more = _emergency(folded, frame, now)
    decision: Decision = "summarise" if planned.decision == "summarise" else "reduce"
    found = structs.replace(
        planned, frame=frame, decision=decision, sent=fitting, next=fitting, edits=(*planned.edits, *more)
    )
    if fits(fitting, frame, now):
        return found
    text = f"{size_of(fitting, frame):,} tokens do not fit into {limit_for(frame, now):,}, and nothing more can be taken away"
    return structs.replace(found, decision="refuse", refusal=text, next=folded)


def _hardened(planned: Plan) -> Plan | None:
    """The plan by the policy's hard stages alone: where a call waits, and they make it fit beside a note of what is gone."""
    frame, now, folded = planned.frame, planned.now, planned.next
    if now.moment not in ("before_call", "overflow") or fits(folded, frame, now):
        return None
    room = _whole_room(folded, frame, now)
    fitting, more = squeeze_in(folded, frame.policy, frame.policy.hard, room, frame.fixed)
    if not fits(fitting, frame, now) or fitting.lead is folded.lead:
        return None
    edits = (*planned.edits, *more)
    return structs.replace(planned, decision="reduce", sent=fitting, next=fitting, edits=edits)


def _emergency(folded: Folded, frame: Frame, now: Now) -> tuple[Folded, tuple[Edit, ...]]:
    room = _whole_room(folded, frame, now)
    return squeeze_in(folded, frame.policy, frame.policy.emergency, room, frame.fixed)


def _whole_room(folded: Folded, frame: Frame, now: Now) -> Room:
    """What summaries and messages together may fill."""
    room, before = room_for(folded, frame, now), folded.lead.tokens
    return structs.replace(room, tokens=room.tokens + before, instructions=room.instructions - before)
