"""The plan: the window to send now, and the reasons for its changes.

`plan` is the one pure entry that the library, the gateway, the command line and the replay use, so they cannot
disagree. It measures, evaluates the policy's triggers, runs its stages, cuts, and requests a
summary if one is needed. Writing the summary happens outside of this module and may fail: `resolve`
applies it. Without it, the plan's window can be sent as it is, or the plan has a `refusal`. `squeeze_in` makes a
window fit without a summary from a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from refold.core import cut as cuts
from refold.core.assemble import assemble, lead_of, summary_handle
from refold.core.budget import (
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
from refold.core.cut import cut_at
from refold.core.digest.pieces import head
from refold.core.digest.typed_text import is_typed
from refold.core.fold import FoldedBranch, UserRequest, has_thoughts, unread_by_model, without_thoughts
from refold.core.long_messages import KEPT_QUESTION_SHARE, LEAST_BESIDE, fit_unread, needed
from refold.core.measure import measure
from refold.core.policy import Policy
from refold.core.secrets import redact
from refold.core.stage import Edit, Item, Room, handle_of, reduce
from refold.core.stages import AnyStage, DescribeMedia, DropReasoning, Supersede, Tiers
from refold.core.stages.removal import REASONING_STAGE, units
from refold.core.stages.tool_results import CODE, PROSE, PRUNE_STAGE
from refold.core.summary_checks import check_summary
from refold.core.summary_text import MAX_ROOM, missing_lines, request_lines, rules_section, with_requests
from refold.core.system_messages import INSTRUCTION_ROLES, holds_more, newest_instruction
from refold.core.triggers import (
    fold_count,
    fold_point,
    is_triggered,
    is_wanted,
    reason_to_act,
    reason_to_reduce,
    topic_start,
)
from refold.model.message import Message
from refold.model.summary import Summary, joined
from refold.model.tokens import Measurement, Share, TokenCount, Tokens, exact, share_of, tokens_of
from refold.model.window import FixedFields, Window

Decision: TypeAlias = Literal["keep", "reduce", "summarise", "refuse"]

_BY_MESSAGE = (DescribeMedia, DropReasoning, Supersede)
"""Stages that shrink single messages and keep no boundary."""
_OF_PARTS = (DescribeMedia, DropReasoning)
"""Stages that take out parts of messages."""
_WITHOUT_BOUNDARY = (*_BY_MESSAGE, Tiers)
"""Stages that keep no boundary."""
LEAST_SUMMARY = 0.15
"""Share of the room that a summary may take in any case, if the kept messages leave so much."""
FREE = 0.1
"""Share of the room that stays free for messages until the next compaction."""
MANUAL_SHARE, LEAST_MANUAL = 0.3, 400
"""Room for a summary that was asked for: a share of the messages that leave, or of the window if they are larger, and
the least number of tokens."""
MOST_OF_SOURCE = 0.9
"""Share of the text that a summary replaces: a summary that takes more frees nothing and loses the exact words."""
WORTHWHILE = 1.5
"""A model is asked only if the summary replaces so many times the least room that a summary gets: the answer is
paid for, and must free room."""
LEAST_ASKED = 100
"""Tokens that a summary on request must replace for a model to be asked: fewer are their own summary."""


class SummaryRequest(Struct, frozen=True):
    """A request for a summary of the messages numbered `first` to `last` (exclusive)."""

    first: int
    last: int
    items: tuple[Item, ...]
    """Those messages in the form in which they were shown."""
    kept: tuple[Item, ...]
    """The messages that stay in the window after the summary, unchanged."""
    previous: tuple[Summary, ...]
    max_tokens: int
    """Most tokens of the summary in the window, including the frame text around it."""
    turn_from: int | None = None
    """If a turn is split: the number of its first message."""
    apart: frozenset[int] = frozenset()
    """Numbers of messages that the summary does not cover: a provider's own compaction, the results of its
    calls, and the messages that this compaction covers, except the user's."""
    since: int = 0
    """Number of the first message after the provider's compaction."""
    asks_model: bool = True
    """False if a model's answer is not worth its price: what leaves is hardly larger than a summary or holds only
    instructions and a client's own reminders, or the stages have freed enough. A summary that is ready is used."""

    @property
    def leaving(self) -> tuple[Item, ...]:
        """The items that are no longer shown after the summary."""
        kept = {item.seq for item in self.kept}
        return tuple([item for item in self.items if item.seq not in kept])


class Plan(Struct, frozen=True):
    frame: Frame
    now: Now
    sent: FoldedBranch
    """The state to send. With a pending `request`: the state before the summary is applied."""
    next: FoldedBranch
    """The state of the branch from now on."""
    decision: Decision
    reason: str
    edits: tuple[Edit, ...] = ()
    request: SummaryRequest | None = None
    refusal: str = ""
    thoughtful: frozenset[int] = frozenset()
    """Numbers of the messages that were shown with their thoughts before this plan, if it asks for a summary."""

    @property
    def sendable(self) -> FoldedBranch:
        """The state that can be sent now, whether or not the requested summary exists."""
        return give_up(self).sent if self.request else self.sent

    @property
    def window(self) -> Window:
        sent = self.sendable
        return assemble(self.frame.fixed, sent.shown.messages(), sent.lead)

    @property
    def measurement(self) -> Measurement:
        sent = self.sendable
        shown, summary = sent.shown, TokenCount.of(sent.lead.tokens, sent.shown.counter.source)
        budget, output = self.frame.budget, output_for(sent, self.frame, self.now)
        if output != budget.max_output:
            budget = structs.replace(budget, max_output=output)
        return measure(shown, self.frame.regions, budget, summary=summary)


def plan(folded: FoldedBranch, frame: Frame, now: Now) -> Plan:
    """Decide which window to send for a branch at this moment.

    Below the thresholds only totals are read. If the plan has a `request`, `resolve` applies the summary
    to it.
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
    if is_due and (early := _plan_span_first(folded, frame, now, is_due, room)):
        return structs.replace(early, edits=(*cut, *early.edits), thoughtful=_thoughtful(folded))
    thoughtful = _thoughtful(folded)
    shown, more = reduce(folded.touchable, (*policy.stages, *policy.plugin_stages), room)
    reduced, edits = _prune_until(folded.show(shown.items), more) if more else folded, (*cut, *more)
    found = Plan(frame, now, reduced, reduced, "reduce" if edits else "keep", reason, edits)
    is_small = bool(is_due) and _is_small(reduced, frame, now)
    if not is_due or (is_small and not now.is_prepared):
        return found
    if policy.hard and not now.is_prepared and (dropped := _plan_with_hard_stages(found)):
        return dropped
    if not policy.summarises_at_wall and not is_wanted(folded, frame, now):
        return _make_fit(found)
    request = _request(reduced, frame, now)
    if request is None:
        return _make_fit(found)
    if is_small:
        request = structs.replace(request, asks_model=False)
    elif edits and not now.is_prepared and _is_hardly_shorter(request, reduced, frame, now):
        return found
    return structs.replace(found, decision="summarise", request=request, thoughtful=thoughtful)


def _thoughtful(folded: FoldedBranch) -> frozenset[int]:
    """Numbers of the messages that are shown with signed thoughts."""
    if not folded.shown.dialect.signed_thinking:
        return frozenset()
    return frozenset(item.seq for item in folded.items.items if has_thoughts(item.message))


def _is_hardly_shorter(request: SummaryRequest, folded: FoldedBranch, frame: Frame, now: Now) -> bool:
    """True if there is room for all that a summary would replace, or almost: it then stays as it is, since a summary
    would lose its words and save nothing. The presets of other systems, which have no target, summarise all the same.
    """
    is_asked_for = now.moment in ("manual", "overflow")
    if is_asked_for or frame.policy.target == Share(0.0) or not fits(folded, frame, now):
        return False
    return request.max_tokens >= share_of(MOST_OF_SOURCE, _source_size(folded, request.kept, frame, now))


def _prune_until(folded: FoldedBranch, edits: tuple[Edit, ...]) -> FoldedBranch:
    """The state with the prune boundary after the last message that was pruned now."""
    last = max((edit.seq for edit in edits if edit.stage == PRUNE_STAGE), default=-1)
    return structs.replace(folded, pruned=last + 1) if last >= folded.pruned else folded


def _plan_span_first(folded: FoldedBranch, frame: Frame, now: Now, reason: str, room: Room) -> Plan | None:
    """The plan with a summary of messages that no stage has changed: the stages run only over those that may stay.

    In a manual compaction a summary is written in any case, and what the stages take out of its messages is
    thrown away. None if there are media or thoughts to take out, which may be most of the messages that could stay.
    At any other moment the stages go first: None if they change a message that stays, or if they free enough
    without a summary.
    """
    policy, is_manual = frame.policy, now.moment == "manual"
    known = _WITHOUT_BOUNDARY if is_manual else _BY_MESSAGE
    if policy.plugin_stages or policy.hard or not all(isinstance(stage, known) for stage in policy.stages):
        return None
    span, shown = _leaving_span(folded, frame, now), folded.touchable
    if span is None:
        return None
    start, before = span.at, 0
    if is_manual and (tiers := _tiers(policy.stages)):
        if reduce(shown, [stage for stage in policy.stages if isinstance(stage, _OF_PARTS)], room)[1]:
            return None
        start, before = _may_stay(folded, tiers, start)
    tail, edits = reduce(shown.since(start), policy.stages, structs.replace(room, before=before))
    if not is_manual and (edits or _is_enough(folded, frame, now, room)):
        return None
    if edits:  # messages that are smaller now leave room for others
        folded = folded.show((*shown.items[:start], *tail.items))
        span = _leaving_span(folded, frame, now)
    if span is None or (is_manual and span.at < start):
        return None  # messages would stay that no stage has seen
    request = _request_for(span, folded, frame, now)
    return Plan(frame, now, folded, folded, "summarise", reason, edits, request)


def _may_stay(folded: FoldedBranch, tiers: Tiers, cut: int) -> tuple[int, int]:
    """Index of the first message that may stay if its results are cut and the messages from `cut` on stay as they are,
    and the tokens of the messages before it with their results cut.
    """
    least = tiers.cut_tokens(folded.items.items, PROSE)
    left = folded.shown.tokens_between(cuts.pair_safe(folded.shown, cut - 1), len(least)).tokens
    start = len(least)
    while start > 0 and left > 0:
        start -= 1
        left -= least[start]
    start = cuts.pair_safe(folded.shown, start)
    return start, sum(least[:start])


def _tiers(stages: tuple[AnyStage, ...]) -> Tiers | None:
    return next((stage for stage in stages if isinstance(stage, Tiers)), None)


def _is_enough(folded: FoldedBranch, frame: Frame, now: Now, room: Room) -> bool:
    """True if the stages alone would reach the target."""
    saved = sum(edit.before - edit.after for edit in reduce(folded.touchable, frame.policy.stages, room)[1])
    return size_of(folded, frame) - saved <= min(target_for(frame, now), limit_for(frame, now))


def resolve(planned: Plan, summary: Summary) -> Plan:
    """Apply the summary to the plan: it replaces the messages that it covers.

    The summary may have been written ahead of time for fewer messages than leave now; the messages after
    it stay.
    """
    frame, now, shown = planned.frame, planned.now, planned.next
    earlier = () if summary.scope == "cumulative" else shown.summaries
    request = planned.request
    is_whole = request is not None and request.last == summary.last
    kept = request.kept if request and is_whole else _kept(shown, summary.last, effective_for(frame, now))
    lines = requests_for(shown, kept, summary.last, frame, request)
    lines = tuple(redact(line, known=shown.secrets) for line in lines)
    summary = shown.with_gaps(with_requests(summary, lines, shown.shown.counter))
    summaries = (*earlier, summary)
    view, older = shown.shown, tokens_of(frame.policy.ancestors, frame.budget)
    fixed = shown.native_for(frame.fixed)
    lead = lead_of(summaries, frame.policy, view.dialect, view.counter, older, fixed)
    led = shown.lead_by(summaries, lead)
    folded = led.show(kept)
    if lead.is_whole and (thoughts := _with_thoughts(planned, led, kept)):
        folded, planned = thoughts
    size, source = size_of(folded, frame), size_of(shown, frame)
    if summary.kind == "model":  # it is paid for, and was written from the messages as they came
        covered = (edit for edit in planned.edits if edit.seq < summary.last)
        source += sum(edit.before - edit.after for edit in covered)
    verdicts = check_summary(summary.text, tokens=size, source_tokens=source)
    failed = next((verdict for verdict in verdicts if not verdict.passed), None)
    if failed and fits(shown, frame, now):
        reason = f"the summary was not used: {failed.reason}"
        decision: Decision = "reduce" if planned.edits else "keep"
        settled = shown.settle()
        return structs.replace(
            planned, decision=decision, reason=reason, sent=settled, next=settled, request=None
        )
    return _make_fit(structs.replace(planned, decision="summarise", sent=folded, next=folded, request=None))


def _with_thoughts(
    planned: Plan, led: FoldedBranch, kept: Sequence[Item]
) -> tuple[FoldedBranch, Plan] | None:
    """The state with the thoughts that this plan took out of messages which stay, and the plan without those edits:
    after a compaction by the provider itself they stay valid. None if there are none, or no room for them.
    """
    lost = {
        item.seq: led.original(item.seq)
        for item in kept
        if item.seq in planned.thoughtful
        and item.seq >= led.origin
        and without_thoughts(led.original(item.seq).message) == without_thoughts(item.message)
    }
    whole = [
        Item(lost[item.seq].message, item.seq, lost[item.seq].tokens) if item.seq in lost else item
        for item in kept
    ]
    folded = led.show(whole) if lost else led
    if not lost or not any(map(has_thoughts, folded.shown.messages())):
        return None
    left = tuple(edit for edit in planned.edits if edit.stage != REASONING_STAGE or edit.seq not in lost)
    return (
        (folded, structs.replace(planned, edits=left)) if fits(folded, planned.frame, planned.now) else None
    )


def requests_for(
    folded: FoldedBranch, kept: tuple[Item, ...], last: int, frame: Frame, request: SummaryRequest | None
) -> tuple[str, ...]:
    """The lines of the user's task and open question that a summary must contain word for word."""
    room = request_room(frame, request.max_tokens if request else MAX_ROOM)
    return request_lines(folded, kept, last, room, counter=folded.shown.counter)


def request_room(frame: Frame, max_tokens: int) -> int:
    """The room that shares of a summary refer to, in tokens: at most twice the summary."""
    room = frame.budget.window - lowered_output(frame, BEFORE_CALL) - frame.instructions
    return max(0, min(room, 2 * max_tokens, MAX_ROOM))


def give_up(planned: Plan) -> Plan:
    """The plan without its summary, if none could be written."""
    return _make_fit(structs.replace(planned, decision="reduce" if planned.edits else "keep", request=None))


def ahead(folded: FoldedBranch, frame: Frame, now: Now) -> SummaryRequest | None:
    """The summary to request before the fold point; None if it is too early or no message is new."""
    soft = frame.policy.soft
    if soft is None or not frame.policy.enabled or folded.settled == folded.size:
        return None
    share, most = exact(soft), fold_count(frame.policy.triggers)
    # In integers: arithmetic with fractions takes many times as long, and this runs with every message.
    is_soon = size_of(folded, frame) * share.denominator >= share.numerator * fold_point(folded, frame, now)
    is_soon = is_soon or (most is not None and len(folded.shown) >= share * most)
    request = _request(folded, frame, now) if is_soon else None
    return request if request and request.asks_model else None


def _is_small(folded: FoldedBranch, frame: Frame, now: Now) -> bool:
    """True if the stages alone have reached the target, and no trigger fires any more."""
    if now.moment == "manual" or size_of(folded, frame) > min(target_for(frame, now), limit_for(frame, now)):
        return False
    return not is_triggered(folded, frame, now)


class _LeavingSpan(Struct, frozen=True):
    """The messages that a summary would replace."""

    at: int
    """Index of the first message that stays."""
    last: int
    """Number of the first message that the summary does not cover."""
    kept: tuple[Item, ...]
    """The messages that stay."""


def _request(folded: FoldedBranch, frame: Frame, now: Now) -> SummaryRequest | None:
    """The summary to request; None if no message can be cut off or none is new since the last summary."""
    span = _leaving_span(folded, frame, now)
    return None if span is None else _request_for(span, folded, frame, now)


def _leaving_span(folded: FoldedBranch, frame: Frame, now: Now) -> _LeavingSpan | None:
    if folded.settled == folded.size and now.moment != "overflow":
        return None
    items, effective = folded.items.items, effective_for(frame, now)
    if not items:
        return None
    at = _cut(folded, frame, now, effective)
    at = max(at, folded.shown.compaction_span.stop) if at else 0
    first = folded.summaries[-1].last if folded.summaries else 0
    last = max(first, _number_at(items, at, folded.size))
    kept = _kept(folded, last, effective)
    if len(kept) == len(items) and not _is_summary_large(folded, frame, now):
        return None
    return _LeavingSpan(at, last, kept)


def _request_for(leaving: _LeavingSpan, folded: FoldedBranch, frame: Frame, now: Now) -> SummaryRequest:
    """The request for a summary of the messages that leave."""
    at, kept, items = leaving.at, leaving.kept, folded.items.items
    span = folded.shown.compaction_span
    first = folded.summaries[-1].last if folded.summaries else 0
    split, source = cuts.split_turn(folded.shown, at), _source_size(folded, kept, frame, now)
    room = _summary_room(kept, frame, now, effective_for(frame, now))
    request = SummaryRequest(
        first=0 if frame.policy.scope == "cumulative" else first,
        last=leaving.last,
        items=items[:at],
        kept=kept,
        previous=folded.summaries,
        max_tokens=room if now.cut is not None else min(room, _most_for(source, folded, frame, now)),
        turn_from=folded.number(split.start) if split else None,
        apart=_covered_by_provider(items, span),
        since=items[span.stop - 1].seq + 1 if span else 0,
    )
    is_worthwhile = _is_worthwhile(request, source, folded, frame, now)
    return request if is_worthwhile else structs.replace(request, asks_model=False)


def _source_size(folded: FoldedBranch, kept: tuple[Item, ...], frame: Frame, now: Now) -> int:
    """Tokens that a summary tells of: the messages that leave, and the summary before if it is written into the new one.
    For a manual compaction, whose stages do not run over them, results count as if they were cut.
    """
    stay, items = {item.seq for item in kept}, folded.items.items
    tiers = _tiers(frame.policy.stages) if now.moment == "manual" else None
    sizes = tiers.cut_tokens(items, CODE) if tiers else [item.tokens for item in items]
    leaving = sum([size for item, size in zip(items, sizes, strict=True) if item.seq not in stay])
    return leaving + (folded.lead.tokens if frame.policy.scope == "cumulative" else 0)


def _is_worthwhile(
    request: SummaryRequest, source: int, folded: FoldedBranch, frame: Frame, now: Now
) -> bool:
    """True if a model should be asked for the summary."""
    if now.moment == "manual":
        return source >= LEAST_ASKED
    # A trigger by the number of messages may fire in an almost empty window: the share refers to what is there.
    room = min(effective_for(frame, now), folded.tokens)
    least = share_of(min(frame.policy.least_summary, LEAST_SUMMARY), room)
    if source < share_of(WORTHWHILE, least):
        return False
    is_unread = bool(request.previous) and request.previous[-1].kind != "model"
    leaving = request.leaving
    return is_unread or not leaving or any(_is_conversation(item.message) for item in leaving)


def _is_conversation(message: Message) -> bool:
    """False for an instruction, and for a message of the user's in which a client wrote all of the text."""
    return message.role not in INSTRUCTION_ROLES and (message.role != "user" or is_typed(message))


def _is_summary_large(folded: FoldedBranch, frame: Frame, now: Now) -> bool:
    """True if all messages stay and the summary is the part that does not fit: it is written again, shorter."""
    policy = frame.policy
    is_rewritable = bool(folded.summaries) and policy.cut is not None and policy.scope == "cumulative"
    return is_rewritable and not fits(folded, frame, now)


def _cut(folded: FoldedBranch, frame: Frame, now: Now, effective: int) -> int:
    """Index of the first message that stays."""
    if now.cut is not None:
        items, wanted = folded.items.items, now.cut
        return next((index for index, item in enumerate(items) if item.seq >= wanted), len(items))
    is_full = not fits(folded, frame, now)
    budget, moment = frame.budget, now.moment
    topic = topic_start(folded, frame, now)
    own = cut_at(folded, frame.policy, budget, effective, moment, is_full=is_full, keep=now.keep)
    if topic is None or frame.policy.cut is None:
        return own
    first = next((at for at, item in enumerate(folded.items.items) if item.seq >= topic), own)
    return max(own, first) if is_full else first  # the messages of the new topic stay, if they fit


def _covered_by_provider(items: tuple[Item, ...], span: range) -> frozenset[int]:
    """Numbers of messages that a summary need not cover, because a provider's compaction does: all before it
    except the user's.
    """
    before = (item for item in items[: span.start] if item.message.role != "user")
    return frozenset(item.seq for item in (*before, *items[span.start : span.stop]))


def _number_at(items: tuple[Item, ...], at: int, size: int) -> int:
    """Number from which messages stay, if those before index `at` leave. A system message that was moved has
    a lower number than its predecessors and is ignored here.
    """
    highest = max([item.seq for item in items[:at]], default=-1)
    return next((item.seq for item in items[at:] if item.seq > highest), size)


def _kept(folded: FoldedBranch, last: int, effective: int) -> tuple[Item, ...]:
    """The items that stay if the messages numbered below `last` leave.

    Besides the newer messages these are: the question in progress, the newest instruction within the
    conversation, pinned messages, provider settings, and the provider's own compaction with the results of
    its calls.
    """
    items = folded.items.items
    question = None if folded.is_turn_over or not items else items[folded.active]
    if question and (
        question.message.role != "user" or question.tokens > exact(KEPT_QUESTION_SHARE) * effective
    ):
        question = None
    newest = newest_instruction(folded.instructions)
    stay = {newest, *folded.compacted, *pinned_units(folded), *folded.settings}
    kept = [item for item in items if item.seq >= last or item.seq in stay or item is question]
    return tuple(_newest_alone(folded, item) if item.seq == newest else item for item in kept)


def pinned_units(folded: FoldedBranch) -> frozenset[int]:
    """Numbers of the pinned messages, each with the rest of its unit: a call stays together with its results."""
    if not folded.pinned:
        return folded.pinned
    items = folded.items.items
    together = units([item.message for item in items], folded.shown.dialect)
    held = (unit for unit in together if any(items[index].seq in folded.pinned for index in unit))
    return frozenset(items[index].seq for unit in held for index in unit)


def _newest_alone(folded: FoldedBranch, item: Item) -> Item:
    """The newest instruction without the older instructions that had to be joined to it; those are summarised now."""
    original = folded.original(item.seq) if item.seq >= folded.origin else None
    if original is None or not holds_more(item.message, original.message):
        return item
    return Item(original.message, item.seq, original.tokens)


def _summary_room(kept: tuple[Item, ...], frame: Frame, now: Now, effective: int) -> int:
    """Tokens for the summary: the policy's share, but not so many that the next compaction would be due at once."""
    tail, share = sum(item.tokens for item in kept), frame.policy.summary_share
    level = target_for(frame, now) - frame.instructions - tail
    left = max(effective - tail, share_of(LEAST_BESIDE, effective))
    least = frame.policy.least_summary
    level = max(level, min(share_of(least, effective), left - share_of(FREE, effective)))
    wanted = min(share_of(share.fraction, effective), level, left)
    return max(wanted, min(left, share_of(min(least, LEAST_SUMMARY), effective)))


def _most_for(source: int, folded: FoldedBranch, frame: Frame, now: Now) -> int:
    """Most tokens of a summary that tells of so many. A summary that was asked for takes a smaller share: there is
    room for more in a window that is not full, but then the compaction would free nothing.
    """
    # Summaries of their own messages only are told in a line each once there is a newer one.
    replaced = source if frame.policy.scope == "cumulative" else source + folded.lead.tokens
    most = max(share_of(MOST_OF_SOURCE, replaced), LEAST_ASKED // 2)
    is_early = now.moment == "manual" or topic_start(folded, frame, now) is not None
    told = min(source, frame.budget.window)  # a history may be many times the window
    return min(most, max(share_of(MANUAL_SHARE, told), LEAST_MANUAL)) if is_early else most


def _make_fit(planned: Plan) -> Plan:
    """Make the plan fit without a summary, by the emergency stages.

    A window that fits only by using the reserve is sent as well: the reserve covers errors of our own
    count, and the provider does not know of it.
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


def _plan_with_hard_stages(planned: Plan) -> Plan | None:
    """The plan by the policy's hard stages alone: only if a call waits, and if the result fits together with
    a note about the removed messages.
    """
    frame, now, folded = planned.frame, planned.now, planned.next
    if now.moment not in ("before_call", "overflow") or fits(folded, frame, now):
        return None
    room = _whole_room(folded, frame, now)
    fitting, more = squeeze_in(folded, frame.policy, frame.policy.hard, room, frame.fixed)
    if not fits(fitting, frame, now) or fitting.lead is folded.lead:
        return None
    edits = (*planned.edits, *more)
    return structs.replace(planned, decision="reduce", sent=fitting, next=fitting, edits=edits)


def _emergency(folded: FoldedBranch, frame: Frame, now: Now) -> tuple[FoldedBranch, tuple[Edit, ...]]:
    room = _whole_room(folded, frame, now)
    return squeeze_in(folded, frame.policy, frame.policy.emergency, room, frame.fixed)


def _whole_room(folded: FoldedBranch, frame: Frame, now: Now) -> Room:
    """The room for summaries and messages together."""
    room, before = room_for(folded, frame, now), folded.lead.tokens
    return structs.replace(room, tokens=room.tokens + before, instructions=room.instructions - before)


# A window without a summary from a model: the policy's hardest stages

SHARES = ((0.35, 0.10), (0.15, 0.10), (0.0, 0.05), (0.0, 0.0))
"""Shares of the room for the summary so far and for the user's rules, if both do not fit in full. The next
pair is tried if the messages that must stay leave less. The last pair is for the emergency stages alone,
which have shrunk everything else by then."""
NAMES = 16
"""Tokens left for the names of the messages that are removed in addition, to make room for the names themselves."""
_CHARACTERS_PER_TOKEN = 3
"""A low estimate: text cut by it must fit."""


def squeeze_in(
    folded: FoldedBranch,
    policy: Policy,
    stages: tuple[AnyStage, ...],
    room: Room,
    fixed: FixedFields | None = None,
) -> tuple[FoldedBranch, tuple[Edit, ...]]:
    """Shrink the branch to `room`, which is for summaries and messages together, if the stages can.

    The stages remove as much as needed. If whole messages are removed, a note before the others holds the task,
    the open question, the user's rules and the previous summary, shortened if necessary, with the handles of the
    removed messages.
    """
    plain = _apply_stages(folded, stages, room)
    is_all_there = not _removed(folded, plain[0]) and _shows_requests(plain[0], room)
    if plain[0].tokens <= room.tokens and is_all_there:
        return plain
    folded = folded.with_ledger(folded.ledger)  # every note below needs it: read the messages once
    so_far, noted = folded.summaries, plain
    for shares in SHARES if stages == policy.emergency else SHARES[:-1]:
        note = partial(_with_note, so_far=so_far, policy=policy, room=room, fixed=fixed, shares=shares)
        begun = note(folded, gone=(), is_final=False)
        noted = _apply_stages(begun, stages, room)
        gone = _removed(folded, noted[0])
        named = note(noted[0], gone=gone, is_final=True)
        if gone and named.tokens > room.tokens:  # the names of the removed messages need room as well
            tokens = max(0, room.tokens - (named.lead.tokens - noted[0].lead.tokens) - NAMES)
            noted = _apply_stages(begun, stages, structs.replace(room, tokens=tokens))
            gone = _removed(folded, noted[0])
            named = note(noted[0], gone=gone, is_final=True)
        if named.lead is not noted[0].lead and named.tokens <= room.tokens:
            return named, noted[1]
        if gone and noted[0].lead is folded.lead:
            # No note names the removed messages, and there is no room for one: this window does not
            # fit.
            noted = named, noted[1]
        if noted[0].tokens <= room.tokens:
            return noted
    return noted if _removed(folded, plain[0]) else plain


def _apply_stages(
    folded: FoldedBranch, stages: tuple[AnyStage, ...], room: Room
) -> tuple[FoldedBranch, tuple[Edit, ...]]:
    lead = folded.lead.tokens
    left = structs.replace(room, tokens=max(0, room.tokens - lead), instructions=room.instructions + lead)
    shown, edits = reduce(folded.items, stages, left)
    return (folded.show(shown.items) if edits else folded), edits


def _removed(before: FoldedBranch, after: FoldedBranch) -> tuple[int, ...]:
    """Numbers of the messages that are shown before and not after."""
    left = {after.number(index) for index in range(len(after.shown))}
    numbers = (before.number(index) for index in range(len(before.shown)))
    return tuple(number for number in numbers if number not in left)


def _with_note(
    folded: FoldedBranch,
    *,
    so_far: tuple[Summary, ...],
    policy: Policy,
    room: Room,
    fixed: FixedFields | None,
    shares: tuple[float, float],
    gone: tuple[int, ...],
    is_final: bool,
) -> FoldedBranch:
    """The same messages after a note with the user's requests, their rules, the summary so far and the removed messages.

    The note follows the existing summaries in the list, so that their handles stay valid. A note that is
    not final includes the task and the rules even if they are still shown, because the stages may remove
    them.
    """
    counter, left, before = room.counter, _beside_needed(folded, room), ""
    if so_far:
        last, number = so_far[-1], so_far[-1].number
        most = min(left, share_of(shares[0], room.tokens))
        is_small = counter.text(last.text) <= most
        before = (
            last.text
            if is_small
            else f"{head(last.own_text, most * _CHARACTERS_PER_TOKEN)}\n[… {summary_handle(number)} …]"
        )
    covered = max((*gone, so_far[-1].last - 1 if so_far else -1)) + 1
    shown = _remaining_items(folded) if is_final else _remaining_items(folded, without=folded.task)
    opening = missing_lines(before, _requests(folded, shown, covered, room))
    typed = [item.message.text for item in shown if item.message.role == "user"] if is_final else []
    said = "\n".join((before, opening, *typed))
    most = min(left, share_of(shares[1], room.tokens)) * _CHARACTERS_PER_TOKEN
    rules = rules_section(folded.ledger.rules, most, shown=said)
    opening, rules = (redact(one, known=folded.secrets) for one in (opening, rules))  # a summary has none
    text = "\n".join(
        line for line in (opening.rstrip("\n"), rules, before, _dropped_text(gone, policy)) if line
    )
    if not text:
        return folded
    begins = min((*gone, *(item.seq for item in folded.items.items)), default=0)
    told = so_far[-1].told_until if so_far else begins
    note = Summary(
        text, 0, covered, counter.text(text), "mechanical", "cumulative", requests=len(opening), told=told
    )
    note = folded.with_gaps(unread_by_model(note, joined(so_far), folded, begins))
    return folded.lead_by((*so_far, note), lead_of((note,), policy, room.dialect, counter, 0, fixed))


def _beside_needed(folded: FoldedBranch, room: Room) -> int:
    """Tokens that a note may take beside the messages that must stay."""
    must = sum(folded.shown[index].tokens for index in needed(folded, room.tokens).all)
    return max(share_of(LEAST_BESIDE, room.tokens), room.tokens - must)


def _requests(folded: FoldedBranch, shown: Sequence[Item], covered: int, room: Room) -> tuple[str, ...]:
    """The user's requests that the messages shown beside a note do not hold; the note covers the messages below `covered`."""
    return request_lines(folded, shown, covered or folded.size, room.tokens, counter=room.counter)


def _shows_requests(folded: FoldedBranch, room: Room) -> bool:
    """True if every request of the user is shown, or is in the summary before the messages."""
    lead, covered = folded.lead, folded.summaries[-1].last if folded.summaries else 0
    before = "\n".join((lead.block, *(message.text for message in lead.messages)))
    return not missing_lines(before, _requests(folded, folded.items.items, covered, room))


def _remaining_items(folded: FoldedBranch, without: tuple[UserRequest, ...] = ()) -> tuple[Item, ...]:
    numbers = {asked.number for asked in without}
    return tuple(item for item in folded.items.items if item.seq not in numbers)


def _dropped_text(gone: tuple[int, ...], policy: Policy) -> str:
    """The policy's text about the removed messages."""
    if not gone:
        return ""
    return policy.texts.dropped.replace("{count}", str(len(gone))).replace("{handles}", _spans(gone))


def _spans(gone: Iterable[int]) -> str:
    """Handles of the removed messages; neighbours become one span."""
    spans: list[list[int]] = []
    for number in gone:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    said = [
        handle_of(first) if first == last else f"{handle_of(first)} to {handle_of(last)}"
        for first, last in spans
    ]
    return ", ".join(said)
