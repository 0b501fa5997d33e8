"""Actions on a conversation: pure functions from a `State` to an `Outcome`.

An action reads no clock, waits for nothing and changes none of its arguments. The outcome holds the next
state, the window if one was asked for, the changes to the shown messages, and the events. `refold.core.plan`
makes all decisions; `Conversation.apply` commits the outcome.

If no window can be made, the outcome says why in `problem`, and the changes up to that point are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil

from msgspec import Struct, structs

from refold.core import extractive_summary
from refold.core.assemble import Lead, broken_rules, lead_of, own_compaction, with_last_word
from refold.core.budget import (
    OUTPUT_PART,
    Now,
    fits,
    limit_for,
    lowered_output,
    output_after,
    output_for,
    room_of,
    size_of,
    target_for,
)
from refold.core.digest.extract import find
from refold.core.digest.shorten import with_ends
from refold.core.digest.typed_text import request_text
from refold.core.fold import REASON as BROKEN
from refold.core.fold import (
    SIGNATURES_REFUSED,
    FoldedBranch,
    forget_thoughts,
    is_broken,
    is_native_error,
    is_signature_error,
    mend,
    thought_edits,
)
from refold.core.long_messages import arrive, terms_in_sight
from refold.core.measure import (
    anchor,
    count_fixed,
    forget_size,
    forget_sums,
    observe,
    observe_refusal,
    record_call,
)
from refold.core.overflow import classify
from refold.core.plan import FREE, Decision, Plan, SummaryRequest, give_up, plan, resolve
from refold.core.plan import ahead as plan_ahead
from refold.core.policy import Moment, Policy, TopicChange
from refold.core.prompt_cache import mark_window
from refold.core.stage import Edit, handle_of
from refold.core.system_messages import moved_edits
from refold.core.triggers import (
    QUESTION_TEXT,
    TURN_TEXT,
    TopicTrack,
    fold_point,
    has_rule,
    rewrite_pays,
    with_digests,
)
from refold.core.verify import is_instruction, verify_fit
from refold.embeddings import static_vector
from refold.engine.events import (
    Event,
    Recovered,
    UsageRecorded,
    compaction_events,
    pruned,
    sized,
    summary_switched,
)
from refold.engine.state import (
    NO_ROOM,
    NO_SUMMARISER,
    RECOVERY,
    STILL_WRITING,
    TOO_LITTLE,
    UNUSABLE,
    Change,
    Receipt,
    SentWindow,
    State,
)
from refold.model.errors import (
    DoesNotFit,
    InvalidWindow,
    NotAnOverflow,
    Overflow,
    RecoverySpent,
    RefoldError,
)
from refold.model.message import Message, Role, holds_sealed
from refold.model.summary import Author, Summary
from refold.model.tokens import Budget, Usage, share_of, tokens_of
from refold.model.window import FixedFields, Window
from refold.ports.records import Call

LEAST_LEARNT = 500
"""Tokens of messages. A smaller call, or one that is mostly instructions, is not used for calibration: its
count depends more on the instructions than on the provider's tokenizer."""
FOREIGN = "only the provider that made this compaction can read it"
NATIVE_REFUSED = "the provider does not take its own compaction back, so a text is sent"
OUTPUTS = 8
"""Calls whose outputs are remembered: the fold point leaves room for the largest of them."""
TTL_S, LONG_TTL_S = 300.0, 3_600.0
"""Seconds after which a provider's prompt cache is cold."""
OPEN_PARTS, OPEN_CALLS = 2, 3
"""A fold is opened again if the whole history takes less than this part of the fold point, and so many calls in a row went
to the larger model: a client that only looks in with it, or goes to and fro, keeps its fold."""
OPENED = "the whole history takes less than half of the room that this model has"
SWITCHED = "the model's summary replaces the digest"
TOPIC_TURNS = 64
"""Turns that are read for the topic of a conversation that was loaded: they show its topic, and take some milliseconds."""
LONGEST_SAID = 20_000
"""Characters of a user's message that are searched for the text that the user typed."""
CLIPPED = "the provider reported more input than the window holds"


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of an action."""

    state: State
    window: Window | None = None
    """The window to send; None if the action makes none, or none could be made."""
    problem: RefoldError | None = None
    """Why no window could be made. The caller raises it after the commit."""
    changes: tuple[Change, ...] = ()
    """The changes to the shown messages, in order."""
    events: tuple[Event, ...] = ()
    calls: tuple[Call, ...] = ()
    """Calls to store with the outcome."""
    imported: bytes = b""
    """The request that the conversation was imported with, without its messages, to store with the outcome."""
    sent: SentWindow | None = None
    """The data to store with the call that sends the window; set after the commit."""
    has_skipped: bool = False
    """Whether a compaction was skipped because no summary could be written."""
    wanted: SummaryRequest | None = None
    """The summary to request from a model, without waiting for it."""
    wanted_from: State | None = None
    """The state that `wanted` is about, if that is not the next state: a digest stands for its messages now."""
    awaited: SummaryRequest | None = None
    """The summary that has to be written before a window can be made."""

    @property
    def sendable(self) -> Window:
        """The window.

        Raises:
            RefoldError: the `problem`, if no window could be made.
        """
        if self.problem is not None:
            raise self.problem
        assert self.window is not None, "the action makes no window"
        return self.window


class RequestTerms(Struct, frozen=True):
    """The instructions, the budget and the policy of one stateless request."""

    fixed: FixedFields
    budget: Budget
    policy: Policy
    twins: Mapping[int, Message] = {}
    """Readable replacements for compactions that another provider or model made, by message number."""


def add(state: State, messages: Sequence[Message], *, sensitive: bool = False) -> Outcome:
    """Add messages. Sensitive ones stay out of every summary."""
    draft = _Draft(state)
    draft.add(messages, sensitive=sensitive)
    return draft.outcome()


def load(state: State, messages: Sequence[Message]) -> Outcome:
    """Add messages that were written elsewhere, and run no trigger: they are compacted as a whole afterwards."""
    draft = _Draft(state)
    draft.load(messages)
    return draft.outcome()


def context(state: State) -> Outcome:
    """Make the window of the next call. The `problem` may be DoesNotFit or InvalidWindow."""
    draft = _Draft(state)
    draft.may_go_on = True
    draft.send(draft.plan_call)
    return draft.outcome()


def compact(state: State, *, keep: int | None = None, cut: int | None = None) -> Outcome:
    """Compact now, regardless of the thresholds. `keep` is the number of tokens to keep, `cut` the first
    message to keep.
    """
    draft = _Draft(state)
    draft.may_end_with_assistant = True
    draft.send(lambda: draft.act("manual", keep, cut))
    return draft.outcome()


def record(state: State, usage: Usage | None) -> Outcome:
    """Record the usage that the provider reported for the last window."""
    draft = _Draft(state)
    draft.record(usage)
    return draft.outcome()


def at_once(action: Callable[[State], Outcome]) -> Callable[[State], Outcome]:
    """Return the action without a wait for a summary: it was waited for already, and the summary is there or
    the policy goes on without it.
    """

    def act(state: State) -> Outcome:
        why = state.no_model or (UNUSABLE if state.has_model else "")
        return action(structs.replace(state, has_model=False, no_model=why))

    return act


def take_count(state: State, tokens: int) -> Outcome:
    """Record the provider's own token count of the last window, taken before it was sent."""
    found = anchor(Usage(input=tokens), state.sent.shown, counted=size_of(state.sent, state.frame))
    meter = structs.replace(state.meter, anchor=found or state.meter.anchor)
    flag = CLIPPED if tokens > state.frame.budget.window else state.flag
    return Outcome(state=structs.replace(state, meter=meter, flag=flag))


def recover(state: State, status: int | None, body: object, *, held: int | None = 0) -> Outcome:
    """Make the next smaller window after a provider's refusal, without asking a model.

    `body` is the provider's response body, or the `Overflow` that was found in it. `held` is the number of
    tokens in the provider's figures that belong to messages stored at the provider, outside of the budget;
    None if it is not known. The `problem` is NotAnOverflow if the refusal was not about length, and
    RecoverySpent if the policy's attempts for this call are used up, or if no smaller window exists.
    """
    draft = _Draft(state)
    draft.may_end_with_assistant = (
        True  # as the refused request did, if it does: for a compaction, or to be continued
    )
    draft.recover(status, body, held)
    return draft.outcome()


def take_request(state: State, messages: Sequence[Message], request: RequestTerms) -> Outcome:
    """Add the messages of a stateless request, and make the window for it. Triggers run only at the end of
    the messages: no call was made between the earlier ones.
    """
    draft = _Draft(structs.replace(state, twins=request.twins))
    problem = draft.meet(request)
    draft.add(messages, at_once=True)
    if problem is None:
        draft.send(draft.plan_call)
    return draft.outcome(problem)


def take_part(state: State, messages: Sequence[Message], request: RequestTerms) -> Outcome:
    """Add the first messages of a stateless request whose other messages follow. The last reply is among those,
    so no trigger runs yet. Adds nothing, and returns the `problem`, if no window can be made for the request.
    """
    draft = _Draft(structs.replace(state, twins=request.twins))
    if problem := draft.meet(request):
        return Outcome(state=state, problem=problem)
    draft.add_part(messages)
    return draft.outcome()


class AnsweredWindow(Struct, frozen=True):
    """A window that the provider has answered before."""

    prompt: int
    """Its size by the provider's count."""
    window: int = 0
    """The window of the request at that time; 0 if it is not known."""


def repeat_request(state: State, request: RequestTerms, answered: AnsweredWindow | None = None) -> Outcome:
    """Make the window of a request that was taken before, in the `state` of that time. Nothing is compacted: the
    `problem` is DoesNotFit if the messages need more room than the request has now. If the provider has
    `answered` the same window, that goes before our count, which may have learnt since from other messages.
    """
    draft = _Draft(structs.replace(state, twins=request.twins))
    problem = draft.meet(request)
    if problem is None:
        draft.send(lambda: draft.plan_again(answered))
    return draft.outcome(problem)


def take_answer(state: State, usage: Usage | None) -> Outcome:
    """Record that the last window was answered, and the usage that the provider reported for it."""
    draft = _Draft(state)
    draft.answered()
    if usage is not None:
        draft.record(usage)
    return draft.outcome()


def ahead(state: State) -> SummaryRequest | None:
    """Return the summary to request before it is needed; None if none is due."""
    if state.prepared is not None:
        return None
    request = plan_ahead(state.folded, state.frame, state.now("after_call"))
    if request is None or state.late is None:
        return request
    switched = _with_late_summary(state)
    return plan_ahead(switched.folded, state.frame, switched.now("after_call"))


def wanted_now(state: State, cut: int | None = None, keep: int | None = None) -> SummaryRequest | None:
    """Return the summary that a manual compaction would need now; `keep` and `cut` as in `compact`."""
    request = plan(state.folded, state.frame, state.now("manual", keep, cut)).request
    if request is not None and state.late is not None:
        switched = _with_late_summary(state)
        request = plan(switched.folded, state.frame, switched.now("manual", keep, cut)).request
    return request if request is not None and request.asks_model else None


def _with_late_summary(state: State) -> State:
    """Return the state in which the next compaction is made: with the model's summary in place of the digest,
    so that the model is not asked again about messages that it has read.
    """
    draft = _Draft(state)
    draft.use_late_summary()
    return draft.state


def suffices(state: State, last: int) -> bool:
    """Whether a summary of the messages before `last` would be enough for a compaction now."""
    planned = plan(state.folded, state.frame, state.now("manual"))
    return _suffices(planned, Summary("A summary.", 0, last, 0, "model", state.frame.policy.scope))


def may_open_again(state: State) -> bool:
    """Whether the history could be shown as a whole again: a summary stands for a part of it, although all of it
    would take less than half of the room that the policy leaves now. Then the summary was made for a smaller
    window.
    """
    folded, frame = state.folded, state.frame
    if not folded.summaries or not frame.policy.enabled:
        return False
    whole = (frame.instructions + folded.whole) * max(1.0, state.ratio)
    return OPEN_PARTS * whole < fold_point(folded, frame, state.now("before_call"))


def search(state: State, query: str, *, max_tokens: int = 1_000) -> str:
    """Find passages of the whole conversation that match the query, each with its handle. Passages that are
    not in the window come first.
    """
    # A model searches by a tool call that has no result yet. The words of that call are left out: they
    # are the question, not an answer.
    folded, start = state.folded, state.folded.asking
    look = partial(find, folded.facts, query, budget=max_tokens, before=start)
    look = partial(look, window=state.frame.budget.window, counter=state.counter)
    return look(covered=terms_in_sight(folded, state.frame, before=start)) or look()


class _Draft:
    """The next state while an action builds it. It lives as long as the action, and only the action sees it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.window: Window | None = None
        self.problem: RefoldError | None = None
        self.changes: list[Change] = []
        self.events: list[Event] = []
        self.has_skipped = self.has_grown = self.may_wait = self.may_go_on = False
        self.may_end_with_assistant = self.is_accepted = False
        self.wanted: SummaryRequest | None = None
        self.wanted_from: State | None = None
        self.awaited: SummaryRequest | None = None
        self._planned: Plan | None = None
        """The last plan that leaves the branch as it is: with equal inputs it is not made again."""

    def outcome(self, problem: RefoldError | None = None) -> Outcome:
        wanted = self.wanted
        if wanted is None and self.has_grown and self.state.looks_ahead:
            wanted = ahead(self.state)
        return Outcome(
            state=self.state,
            window=self.window,
            problem=self.problem or problem,
            changes=tuple(self.changes),
            events=tuple(self.events),
            has_skipped=self.has_skipped,
            wanted=wanted,
            wanted_from=self.wanted_from,
            awaited=self.awaited,
        )

    def set(self, **fields: object) -> None:
        self.state = structs.replace(self.state, **fields)

    # Messages

    def add(self, messages: Sequence[Message], *, sensitive: bool = False, at_once: bool = False) -> None:
        """Add messages. With `at_once`, triggers run only at the end of the history, and earlier messages are
        indexed lazily, as all are in a window with much room.
        """
        self.has_grown = True
        replies = (at for at, one in enumerate(messages) if one.role == "assistant")
        last = max(replies, default=len(messages) - 1) if at_once else 0
        self._take_in_earlier(messages[:last], sensitive=sensitive)
        for at, message in enumerate(messages[last:], last):
            self._take_in(message, sensitive=sensitive, later=not self.state.reads_ahead)
            is_followed = at + 1 < len(messages) and is_instruction(messages[at + 1])
            if not is_followed:  # an instruction belongs to the message that it comes with
                self._act_after(message)

    def add_part(self, messages: Sequence[Message]) -> None:
        """Add messages that others follow at once: as `add` does with `at_once`, before the last reply."""
        self._take_in_earlier(messages)

    def _take_in_earlier(self, messages: Sequence[Message], *, sensitive: bool = False) -> None:
        """Add messages that are not the last of their batch: no trigger runs, and they are indexed lazily."""
        state = self.state
        if not messages:
            return
        is_each_own = state.limits.attempts or state.frame.policy.arrival or state.secrecy.patterns
        if sensitive or is_each_own:  # each has effects of its own
            for message in messages:
                self._take_in(message, sensitive=sensitive, later=True)
            return
        if any(message.role == "user" for message in messages):
            self.state = state = state.with_limits(state.limits.begin_turn())
        folded = state.folded.with_tools(state.frame.policy.file_tools)
        self.set(folded=folded.take_earlier(messages))

    def _take_in(self, message: Message, *, sensitive: bool, later: bool) -> None:
        if message.role == "assistant":
            self.answered()
        elif message.role == "user":
            self.state = self.state.with_limits(self.state.limits.begin_turn())
        self._show_next(message, sensitive=sensitive, later=later)

    def load(self, messages: Sequence[Message]) -> None:
        for at, message in enumerate(messages):
            self._show_next(message, sensitive=False, later=at + 1 < len(messages))

    def answered(self) -> None:
        """Record that a provider accepted the last window."""
        attempts, stated = self.state.limits.attempts, self.state.limits.stated_window
        self.state = state = self.state.with_limits(self.state.limits.answer())
        if attempts:
            size = sized(state, state.sent)
            self.events.append(Recovered(attempts=attempts, stated=stated, size=size))

    def _show_next(self, message: Message, *, sensitive: bool, later: bool) -> None:
        """Add one message to the branch, and show it whole or cut to its share."""
        state = self.state
        folded = state.folded.with_tools(state.frame.policy.file_tools)
        secrecy, folded = state.secrecy.take(folded, message, is_marked=sensitive, later=later)
        message, edits = folded.original(folded.size - 1).message, tuple[Edit, ...]()
        if state.frame.policy.arrival:
            message, edits = arrive(folded, state.frame, folded.size - 1)
        shown = folded.display(message)
        if edits:
            self.set(secrecy=secrecy)
            change = self._change(shown, "reduce", "larger than its share", edits, raw=1)
            self.events.append(pruned(self.state, change, "arrival"))
        self.set(secrecy=secrecy, folded=shown)

    def _act_after(self, message: Message) -> None:
        """Run the triggers that a new message fires: after a reply, or ahead of the next call."""
        is_waiting, policy = bool(self.state.folded.shown.progress.open_calls), self.state.frame.policy
        if message.role == "assistant":
            if policy.deferred or not is_waiting:
                self._act_by_rule("after_call")
        elif policy.prepares and not is_waiting and self._last_speaker() != "assistant":
            self.act("before_call")

    def _last_speaker(self) -> Role | None:
        """The role of the last message that is not an instruction."""
        branch = self.state.folded.branch
        messages = (branch[at].message for at in range(len(branch) - 1, -1, -1))
        return next((message.role for message in messages if not is_instruction(message)), None)

    def record(self, usage: Usage | None) -> None:
        state = self.state
        sent = state.sent
        counted = size_of(sent, state.frame)
        meter = record_call(state.meter, usage, sent.shown, counted=counted)
        is_ignored = sent.shown.progress.compaction > 0
        if is_ignored:  # the provider neither reads nor counts messages before its own compaction
            meter = forget_size(meter)
        is_sealed = _holds_sealed(sent)
        if is_sealed:  # its token count depends on hidden content, not on the provider's tokenizer
            meter = structs.replace(meter, ratio=0.0)
        self.set(meter=meter)
        if usage is None:
            return
        budget = state.frame.budget
        self.events.append(
            UsageRecorded(usage=usage, counted=counted, window=budget.window, window_source=budget.source)
        )
        self.set(bill=state.billed(usage))
        if is_ignored or anchor(usage, sent.shown, counted=counted) is None:
            return  # the report has no count of this window, so nothing can be learnt from it
        self.state = state = self.state.with_limits(state.limits.observe(usage))
        if usage.context > state.frame.budget.window:
            self.set(flag=CLIPPED)
        estimate = state.frame.cost.total.tokens
        if sent.tokens >= max(LEAST_LEARNT, estimate) and not is_sealed:
            learnt = observe(
                state.calibration, prompt=usage.context, counted=sent.tokens, instructions=estimate
            )
            self.state = self.state.with_calibration(learnt)

    # Plans

    def plan_call(self) -> Plan:
        """Run the triggers before a call, and plan its window. If a summary has to be waited for, the plan is
        not complete, and `awaited` is set.
        """
        self.may_wait, before = True, self.state.folded
        self.set(outputs=(*self.state.outputs, self.state.frame.budget.max_output)[-OUTPUTS:])
        is_turn_start = self._last_speaker() == "user"
        if is_turn_start and self.state.late is not None and self._may_switch():
            self.use_late_summary()
        if is_turn_start:
            started = self._act_by_rule("turn_start")
            if started is not None and self.awaited is not None:
                return started
        done, planned = len(self.state.receipts), self.act("before_call")
        if len(self.state.receipts) > done and "before_call" in self.state.frame.policy.reduce_at:
            planned = self.act("before_call")  # a new summary leaves less room for the reduced messages
        if is_turn_start and self.state.late is not None and self.state.folded.lead is not before.lead:
            self.use_late_summary()  # the prefix changes anyway
            planned = self.act("before_call")
        return planned

    def plan_again(self, answered: AnsweredWindow | None) -> Plan:
        """Plan the window as it is shown. A window that the provider has answered fits, unless the request's window
        has become smaller: the provider's own may be larger than the one that is set here.
        """
        self._repair("before_call")
        folded, frame, now = self.state.folded, self.state.frame, self.state.now("before_call")
        if answered is not None:
            self.is_accepted = min(answered.prompt, answered.window or answered.prompt) <= frame.budget.window
        if answered is not None and self.is_accepted:
            now = structs.replace(now, ratio=answered.prompt / max(1, size_of(folded, frame)))
        return Plan(frame, now, folded, folded, "keep", "taken before")

    def _act_by_rule(self, moment: Moment) -> Plan | None:
        """Act at a moment at which nothing is due if the policy has no rule for it."""
        if has_rule(self.state.frame.policy, moment):
            return self.act(moment)
        self._repair(moment)
        return None

    def _repair(self, moment: Moment) -> None:
        """Show compactions in the form that is sent, and before a call mend messages that arrived broken."""
        self._show_twins()
        if moment != "after_call" and is_broken(self.state.folded):
            mended, edits = mend(self.state.folded)
            change = self._change(mended, "reduce", BROKEN, edits, moment=moment)
            self.events.append(pruned(self.state, change, "automatic"))
            self.set(folded=mended)

    def act(self, moment: Moment, keep: int | None = None, cut: int | None = None) -> Plan:
        """Plan at a moment, and carry out the plan."""
        self._repair(moment)
        if (rule := self.state.frame.policy.topic_change) is not None:
            self.set(topics=_follow_topic(self.state, rule))
        planned = self._plan(self.state.now(moment, keep, cut))
        is_told = planned.request is not None or planned.next.lead is not self.state.folded.lead
        if is_told and self._search_secrets():
            planned = plan(self.state.folded, self.state.frame, self.state.now(moment, keep, cut))
        if planned.request is not None and self.state.late is not None:
            self.use_late_summary()  # this fold builds on it, and not on the digest
            planned = plan(self.state.folded, self.state.frame, self.state.now(moment, keep, cut))
        state = self.state
        if moment == "after_call" and state.frame.policy.deferred:
            is_wanted = planned.request is not None and planned.request.asks_model
            self.set(flag=planned.reason if is_wanted else state.flag)
            return planned
        request = planned.request
        ready = self._prepared_for(planned, request) if request is not None else None
        if request is not None and ready is None:
            if self._is_stage_work_enough(planned, request):
                planned = self._without_summary(planned)
            elif self._is_left_to_model(moment):
                planned = self._leave_to_model(planned, request)
        done, made = self._carry_out(planned, ready)
        is_ahead = ready is not None
        self.events.extend(compaction_events(state, self.state, planned, done, made, is_ahead=is_ahead))
        return done

    def _plan(self, now: Now) -> Plan:
        """Plan at a moment. A request brings messages and asks for a window: both plan the same call."""
        state, last = self.state, self._planned
        is_same = last is not None and last.sent is state.folded and last.frame is state.frame
        if last is not None and is_same and last.now == now:
            return last
        planned = plan(state.folded, state.frame, now)
        self._planned = planned if planned.decision == "keep" and planned.sent is state.folded else None
        return planned

    def _search_secrets(self) -> bool:
        """Search the messages for secrets before a summary tells of them. Return True if there are new ones."""
        secrecy, folded = self.state.secrecy.search(self.state.folded), self.state.folded
        self.set(secrecy=secrecy)
        if secrecy.known == folded.secrets:
            return False
        self.set(folded=structs.replace(folded, secrets=secrecy.known))
        return True

    def _carry_out(self, planned: Plan, ready: Summary | None) -> tuple[Plan, Change | None]:
        """Apply a plan, with the ready summary or another one. Return the plan as it was carried out, and the
        change it made.
        """
        summary: Summary | None = None
        change: Change | None = None
        if planned.request is not None:
            planned, summary = self._fulfil(planned, planned.request, ready)
        folded = self.state.folded
        planned = self._with_reason(planned)
        if planned.next is not folded and not planned.refusal:
            if planned.edits or summary or planned.next.lead is not folded.lead:
                change = self._change(
                    planned.next,
                    planned.decision,
                    planned.reason,
                    planned.edits,
                    summary,
                    moment=planned.now.moment,
                )
            self.set(folded=planned.next)
        return planned, change

    def _fulfil(
        self, planned: Plan, request: SummaryRequest, ready: Summary | None
    ) -> tuple[Plan, Summary | None]:
        """Return the plan with the summary it asks for, and that summary if it was used."""
        summary = ready or self._write_now(planned, request)
        if summary is None:
            return give_up(planned), None  # the flag stays, so the next request tries again
        if not summary.text.strip():
            summary = None  # an empty text cannot replace messages
        if summary is not None:
            files = planned.next.ledger
            is_models = summary.kind == "model"
            why = summary.why if is_models else self._why_digest(planned.now.moment, request)
            summary = structs.replace(summary, read=files.read, modified=files.modified, why=why)
        done = resolve(planned, summary) if summary else give_up(planned)
        if summary is None or done.decision != "summarise":
            self.set(in_vain=self.state.in_vain + 1)
            return done, None
        self.set(prepared=None, flag="", in_vain=0, calibration=forget_sums(self.state.calibration))
        number = planned.next.numbered + len(planned.next.past)
        return done, next(one for one in done.next.past[::-1] if one.number == number)

    def _prepared_for(self, planned: Plan, request: SummaryRequest) -> Summary | None:
        """The summary that was written ahead, if it is enough for this plan. If it covers too few messages, a
        digest of the others is added to it.
        """
        covered = planned.next.summaries[-1].last if planned.next.summaries else 0
        prepared = self.state.prepared
        if prepared is None or prepared.last < covered:
            return None  # one of the same messages is the summary before, written again and shorter
        is_enough = _suffices(planned, prepared)
        if is_enough and not _leaves_full(planned, prepared):
            return prepared
        longer = extractive_summary.extended(prepared, request, planned.next, self.state.frame)
        if longer is not prepared and _suffices(planned, longer):
            return longer
        return prepared if is_enough else None

    def _is_left_to_model(self, moment: Moment) -> bool:
        """Whether the compaction is put off until a model has written its summary."""
        state, policy = self.state, self.state.frame.policy
        return state.has_model and policy.on_switch != "bridge" and moment not in ("manual", "overflow")

    def _is_stage_work_enough(self, planned: Plan, request: SummaryRequest) -> bool:
        """Whether the window can be sent without the summary, and a model should not be asked for it: it would
        free almost nothing, or one that is ready waits for a compaction that it fits. Without a model, a policy
        whose target is 0 summarises in any case.
        """
        frame, now = planned.frame, planned.now
        if now.moment in ("manual", "overflow") or (request.asks_model and not now.is_prepared):
            return False
        return (self.state.has_model or target_for(frame, now) > 0) and fits(planned.next, frame, now)

    def _without_summary(self, planned: Plan) -> Plan:
        """Return the plan by its stages alone. The messages that would leave now leave with the next compaction."""
        if planned.edits:
            return give_up(planned)
        self.set(in_vain=self.state.in_vain + 1)
        return give_up(structs.replace(planned, next=planned.next.settle()))

    def _leave_to_model(self, planned: Plan, request: SummaryRequest) -> Plan:
        """Request the summary of a plan, and wait for it if the policy does and a call is due. Return the
        plan as far as it can be carried out without the summary.
        """
        state = self.state
        is_full = not fits(planned.next, state.frame, state.now("before_call"))
        if self.may_wait and (is_full or state.frame.policy.on_switch == "wait"):
            self.awaited = request
        else:
            self.wanted = request
            self.set(flag=planned.reason)
        if self.awaited is not None or is_full:
            return structs.replace(planned, next=self.state.folded, edits=(), request=None)
        return give_up(planned)

    def _write_now(self, planned: Plan, request: SummaryRequest) -> Summary | None:
        """Write a summary without a model: a digest, or the fallback of the policy after a failure. If a
        model could write, its summary replaces this one later.
        """
        state, frame = self.state, self.state.frame
        on_failure, is_full = frame.policy.on_failure, not fits(planned.next, frame, planned.now)
        if state.has_model and planned.now.moment != "manual" and request.asks_model:
            self.wanted, self.wanted_from = request, state
        if state.has_failed and on_failure != "digest":
            self.has_skipped = True
        elif (summary := self._summarise(request, planned.next)) is not None:
            return summary
        if on_failure == "digest" or (on_failure == "digest_if_full" and is_full):
            return extractive_summary.summarise(request, planned.next, frame)
        if on_failure == "mechanical":
            return extractive_summary.mechanical_summary(request, planned.next, frame)
        return None

    def _summarise(self, request: SummaryRequest, folded: FoldedBranch) -> Summary | None:
        state = self.state
        own = own_compaction(request.previous[-1:], state.frame.fixed)
        if own and not own[0].since:  # it stays, and a digest of the messages since follows it
            return extractive_summary.extended(request.previous[-1], request, folded, state.frame)
        if state.summarise is not None:
            return state.summarise(request, folded, state.frame)
        is_mechanical = state.frame.policy.fallback == "mechanical"
        write = extractive_summary.mechanical_summary if is_mechanical else extractive_summary.summarise
        return write(request, folded, state.frame)

    def _with_reason(self, planned: Plan) -> Plan:
        """Return the plan in which a note about removed messages says why no model wrote it."""
        why, before = self._why_without_model(NO_ROOM), self.state.folded
        if planned.next is before and planned.sent is before:
            return planned
        kept, sent = (one if one is before else one.with_reason(why) for one in (planned.next, planned.sent))
        return structs.replace(planned, next=kept, sent=kept if planned.sent is planned.next else sent)

    def _why_digest(self, moment: Moment, request: SummaryRequest) -> str:
        """Say why no model wrote the summary of a compaction at this moment."""
        if not request.asks_model:
            return self._why_without_model(TOO_LITTLE)
        if moment == "overflow":
            return self._why_without_model(RECOVERY)
        return self._why_without_model(UNUSABLE if moment == "manual" else STILL_WRITING)

    def _why_without_model(self, reason: str) -> str:
        """Return the reason for which no model was asked: `reason`, if one is configured and may be asked."""
        state = self.state
        return state.no_model or (reason if state.has_model else NO_SUMMARISER)

    def _may_switch(self) -> bool:
        """Whether a late summary replaces its digest at this call: the cache is cold, or the smaller window
        pays for the cache that is written again.
        """
        state, policy = self.state, self.state.frame.policy
        if state.idle_s is not None and state.idle_s >= (LONG_TTL_S if policy.cache == "1h" else TTL_S):
            return True
        late, prices = state.late, state.frame.prices
        if late is None or prices is None:
            return False
        now = size_of(state.folded, state.frame)
        then = now - state.folded.lead.tokens + late.tokens
        growth = state.folded.whole / max(1, state.folded.replies)
        calls = (fold_point(state.folded, state.frame, state.now("before_call")) - now) / max(1.0, growth)
        return rewrite_pays(now, then, calls=calls, prices=prices)

    def use_late_summary(self) -> None:
        """Replace the digest of the last fold by the model's summary of the same messages."""
        self._search_secrets()
        state, late = self.state, self.state.late
        self.set(late=None)
        if late is None or not state.folded.summaries:
            return
        switched = extractive_summary.switch_summary(
            state.folded, state.frame, state.now("before_call"), late
        )
        if switched is None:
            return  # it does not fit now, and may after the next compaction
        summary = switched.summaries[-1]
        change = self._change(switched, "summarise", SWITCHED, (), summary, moment="before_call")
        self.set(folded=switched)
        self.events.append(summary_switched(state, self.state, change, summary))

    def _show_twins(self) -> None:
        """Show compactions of other providers and models as text, and those of the current model in their
        original form.
        """
        self._lead_for_model()
        before = self.state.folded
        if before.shown.progress.compaction < 0 and not before.made:
            return
        folded = before.in_words(self.state.twins)
        self.set(folded=folded)
        after = {item.seq: item.tokens for item in folded.items.items}
        edits = tuple(
            Edit("twin", item.seq, item.tokens, after[item.seq], FOREIGN, handle_of(item.seq))
            for item in before.items.items
            if item.seq in folded.made and item.seq not in before.made
        )
        if edits:
            self._record_for_call(before, folded, FOREIGN, edits)

    def _lead_for_model(self) -> None:
        """Show a compaction that a provider made on request as it came to the model that made it, and as text to others."""
        before, frame = self.state.folded, self.state.frame
        if not before.summaries:
            return
        older = tokens_of(frame.policy.ancestors, frame.budget)
        after = before.led_for(frame.policy, frame.fixed, older)
        if after is before:
            return
        self.set(folded=after)
        if not after.lead.is_native:
            self._record_for_call(before, after, FOREIGN, ())

    def _change(
        self,
        after: FoldedBranch,
        decision: Decision,
        reason: str,
        edits: tuple[Edit, ...],
        summary: Summary | None = None,
        raw: int = 0,
        moment: str = "",
    ) -> Change:
        """Record a change to the shown messages, so that it is stored and can be undone."""
        before = self.state.folded
        if before.shown.dialect.signed_thinking and not raw:
            edits = (*edits, *thought_edits(before.items.items, after.items.items, edits))
        if before.shown.dialect.system_follows_user and not raw:
            edits = (*edits, *moved_edits(before.items.items, after.items.items))
        author: Author = summary.author if summary else ""
        why = summary.why if summary else ""
        is_noted = after.lead is not before.lead and reason != NATIVE_REFUSED
        if summary is None and is_noted and after.lead.tokens:
            author, why = "mechanical", self._why_without_model(NO_ROOM)
        grown = after.whole - before.whole
        reason = with_digests(reason, summary.digested if summary else 0)
        sizes = before.tokens + grown, after.tokens
        receipt = Receipt(decision, reason, *sizes, edits, summary, author, why)
        change = Change(before, after, receipt, raw, moment)
        self.changes.append(change)
        self.set(receipts=(*self.state.receipts, receipt))
        return change

    def _record_for_call(
        self, before: FoldedBranch, after: FoldedBranch, reason: str, edits: tuple[Edit, ...]
    ) -> None:
        """Record a change for the current call only: it is not stored, and cannot be undone."""
        receipt = Receipt("reduce", reason, before.tokens, after.tokens, edits, is_for_call=True)
        self.set(receipts=(*self.state.receipts, receipt))
        self.events.append(pruned(self.state, Change(before, after, receipt), "automatic"))

    # Windows

    def send(self, plan_window: Callable[[], Plan]) -> None:
        """Make the window of a plan; on failure, set `problem`."""
        try:
            planned = plan_window()
            if self.awaited is None:
                self._send(planned)
        except (DoesNotFit, InvalidWindow) as error:
            self.problem = error.with_traceback(None)  # it would refer to this object
        limits = self.state.limits
        if isinstance(self.problem, DoesNotFit) and limits.for_turn is not None and not limits.attempts:
            # A refusal earlier in this turn has taught a limit that leaves too little room: the provider decides again.
            self.state, self.problem = self.state.with_limits(limits.begin_turn()), None
            self.send(plan_window)

    def _send(self, planned: Plan) -> None:
        if planned.refusal:
            raise DoesNotFit(planned.refusal, hint=self._room_hint(planned))
        window = self._marked(planned)
        found = broken_rules(window, planned.sent.shown)
        if found:
            planned = self._without_open_calls(planned)
            window = self._marked(planned)
            found = broken_rules(window, planned.sent.shown)
        if found and self.may_go_on and self.state.frame.policy.goes_on:
            window = with_last_word(window)
            found = broken_rules(window, planned.sent.shown)
        window = self._with_output(window, planned)
        if self.may_end_with_assistant:  # the next message is the user's, and no call comes before it
            found = tuple(one for one in found if one.rule != "ends_with_assistant")
        if found:
            first = found[0]
            where = f"message {first.index}: " if first.index is not None else ""
            raise InvalidWindow(f"{where}{first.message}", hint=first.hint)
        self.set(sent=planned.sent, window=window, called_at=self.state.at)
        self.window = window

    def _with_output(self, window: Window, planned: Plan) -> Window:
        """Return the window with a lowered output, if the stated one does not fit.

        Raises:
            DoesNotFit: input, output and reserve together exceed the window.
        """
        frame, now = planned.frame, planned.now
        asked, output = frame.budget.max_output, output_for(planned.sent, frame, now)
        if frame.policy.enabled and not self.is_accepted:
            found = verify_fit(tokens=size_of(planned.sent, frame), limit=limit_for(frame, now, output))
            if found:
                raise DoesNotFit(found[0].message, hint=self._room_hint(planned))
        return structs.replace(window, output=output) if output < asked else window

    def _room_hint(self, planned: Plan) -> str:
        """Explain as a sum why nothing fits."""
        frame, now = planned.frame, planned.now
        return f"{room_of(frame, now).arithmetic(lowered_output(frame, now))}; {DoesNotFit.default_hint}"

    def _marked(self, planned: Plan) -> Window:
        """Return the window with cache breakpoints, if its format takes them."""
        if not planned.window.fixed.dialect.max_breakpoints:
            return planned.window
        policy = self.state.frame.policy
        cache = policy.cache if policy.enabled else None
        return mark_window(planned.window, planned.sent, cache, self.state.window)

    def _without_open_calls(self, planned: Plan) -> Plan:
        """Leave out tool calls without a result, for this request only. A call is shown again once its result
        arrives.
        """
        mended, edits = mend(planned.sent, as_request=True)
        receipts = self.state.receipts
        if edits and not (receipts and receipts[-1].edits == edits):
            self._record_for_call(planned.sent, mended, BROKEN, edits)
        return structs.replace(planned, sent=mended)

    # Refusals

    def recover(self, status: int | None, body: object, held: int | None) -> None:
        state = self.state
        policy, shown = state.frame.policy, state.sent if state.window else state.folded
        if is_signature_error(status, body) and self._forget_thoughts():
            self.send(lambda: self.act("before_call"))
            return
        if shown.lead.is_native and is_native_error(status, body):
            self._give_up_native()
            self.send(lambda: self.act("before_call"))
            return
        sent, asked = size_of(shown, state.frame), state.output
        allowed = state.frame.budget.window - asked
        found = body if isinstance(body, Overflow) else classify(status, body, estimated=sent, budget=allowed)
        limits, found = state.limits.ignore(found.without(held or 0))
        if limits is not state.limits:
            self.state = state = state.with_limits(limits)
        if not found.is_overflow and status in (400, 422) and self._mend_all():
            self.send(lambda: self.act("before_call"))
            return
        if not found.is_overflow:
            self.problem = NotAnOverflow("the provider's error is not about the length of the request")
            return
        if not policy.enabled or state.limits.attempts >= policy.recovery.attempts:
            self.problem = RecoverySpent()
            return
        lowered, is_enough = self._output_after(found, sent)
        is_counted = held == 0 and not _holds_sealed(shown)
        if is_counted:
            self.set(meter=observe_refusal(state.meter, found.prompt, counted=sent))
        if is_enough:
            limits = state.limits.lower_output(found, lowered, sent=sent, is_counted=is_counted)
            self.state = self.state.with_limits(limits)
            now = self.state.now("before_call")
            same = Plan(self.state.frame, now, shown, shown, "keep", "less output is enough")
            self.send(lambda: same)
        else:
            is_lower = lowered < asked or state.limits.output is not None
            limits = state.limits.refuse(
                found,
                sent=sent,
                ratio=state.ratio,
                max_output=asked if state.given.is_output_stated else _usual_output(found, asked),
                lowered=lowered if is_lower else None,
                is_counted=is_counted,
            )
            self.state = self.state.with_limits(limits)
            self.send(lambda: self.act("overflow"))
        if self.problem is not None:
            self.state = self.state.with_limits(self.state.limits.give_up())
            self.problem = RecoverySpent(self.problem.message)

    def _output_after(self, found: Overflow, sent: int) -> tuple[int, bool]:
        """Return the output to ask for after a refusal, and whether it is enough for the same messages to be
        sent again.
        """
        state = self.state
        budget, ratio, asked = state.frame.budget, state.now("before_call").ratio, state.output
        if not budget.is_output_stated:
            return asked, False
        prompt = max(found.prompt or 0, ceil(sent * ratio))
        instructions = ceil(state.frame.instructions * max(ratio, prompt / sent if sent else ratio))
        reserve = tokens_of(budget.reserve, budget)
        sizes = {"prompt": prompt, "instructions": instructions, "reserve": reserve}
        lowered = output_after(found, budget, output=asked, **sizes)
        is_first = found.kind == "input_plus_output" and state.limits.output is None
        window = min(found.limit or budget.window, budget.window)
        return lowered, is_first and lowered < asked and prompt + lowered + reserve <= window

    def _mend_all(self) -> bool:
        """Repair what only some servers of the format refuse, as this one has; False if there is nothing."""
        mended, edits = mend(self.state.folded)
        if edits:
            change = self._change(mended, "reduce", BROKEN, edits, moment="overflow")
            self.events.append(pruned(self.state, change, "automatic"))
            self.set(folded=mended)
        return bool(edits)

    def _give_up_native(self) -> None:
        """Send the text of a summary from now on: the provider does not take its own compaction back."""
        state = self.state
        bare = state.folded.without_native(NATIVE_REFUSED)
        shown = structs.replace(bare, lead=self._text_lead(bare)).show(bare.items.items)
        change = self._change(shown, "reduce", NATIVE_REFUSED, (), moment="overflow")
        self.events.append(pruned(state, change, "automatic"))
        self.set(folded=shown)

    def _text_lead(self, folded: FoldedBranch) -> Lead:
        frame, view = self.state.frame, folded.shown
        older = tokens_of(frame.policy.ancestors, frame.budget)
        return lead_of(folded.summaries, frame.policy, view.dialect, view.counter, older, frame.fixed)

    def _forget_thoughts(self) -> bool:
        """Drop signed thinking whose prefix has changed; False if there is none."""
        forgotten, edits = forget_thoughts(self.state.folded)
        if edits:
            change = self._change(forgotten, "reduce", SIGNATURES_REFUSED, edits, moment="overflow")
            self.events.append(pruned(self.state, change, "automatic"))
            self.set(folded=forgotten)
        return bool(edits)

    # Stateless requests

    def meet(self, request: RequestTerms) -> RefoldError | None:
        """Switch to a request's own instructions, budget and policy. Return the error if no window can be
        made with them.
        """
        now, given = self.state.frame, self.state.given
        if (now.fixed, given, now.policy) == (request.fixed, request.budget, request.policy):
            return None
        try:
            self.state = self.state.with_frame(request.fixed, request.budget, request.policy)
        except RefoldError as error:
            # The request is sent with its own instructions even if no window can be planned for it.
            cost = count_fixed(request.fixed, self.state.counter)
            frame = structs.replace(
                now, fixed=request.fixed, cost=cost, budget=request.budget, policy=request.policy
            )
            self.set(frame=frame, given=request.budget)
            return error
        return None


def _follow_topic(state: State, rule: TopicChange) -> TopicTrack:
    """Return the track of the topic with the messages that it has not read. Vectors are made here, two for a turn, because no
    other feature that makes vectors is certain to have made these.
    """
    folded, track = state.folded, state.topics
    starts = folded.branch.turn_starts
    first = folded.origin + (starts[-TOPIC_TURNS] if len(starts) > TOPIC_TURNS else 0)
    if track.read < first or track.read > folded.size:
        track = TopicTrack(read=first)
    for number in range(track.read, folded.size):
        if folded.original(number).message.role != "user":
            continue
        if track.turn >= 0:
            said, is_answered = _said(state, track.turn, number, TURN_TEXT)
            if not is_answered:
                continue  # one more message of the same question
            track = track.end_turn(static_vector(said), rule)
        asked, _ = _said(state, number, number + 1, QUESTION_TEXT)
        track = track.ask(number, static_vector(asked), rule)
    return structs.replace(track, read=folded.size)


def _said(state: State, first: int, last: int, most: int) -> tuple[str, bool]:
    """Return the beginning of what user and assistant said in these messages, without sensitive ones, and whether the assistant
    is among them.
    """
    found, is_answered, left = list[str](), False, most
    for number in range(first, last):
        message = state.folded.original(number).message
        is_answered = is_answered or message.role == "assistant"
        if left <= 0 or message.role not in ("user", "assistant") or number in state.secrecy.numbers:
            continue
        text = request_text(with_ends(message, LONGEST_SAID)) if message.role == "user" else message.text
        found.append(text[:left])
        left -= len(found[-1])
    return "\n".join(filter(None, found)), is_answered


def _holds_sealed(sent: FoldedBranch) -> bool:
    """Whether the window holds a sealed compaction, whose size only its provider knows."""
    if sent.lead.is_native:
        return any(map(holds_sealed, sent.lead.messages))
    newest = sent.shown.progress.compaction
    return newest >= 0 and holds_sealed(sent.shown[newest].message)


def _usual_output(found: Overflow, asked: int) -> int:
    """The output to expect of a request that states none, in the window that the provider stated."""
    is_window = found.limit is not None and found.limit_of == "window"
    return min(asked, (found.limit or 0) // OUTPUT_PART) if is_window else asked


def _leaves_full(planned: Plan, summary: Summary) -> bool:
    """Whether the window would soon be full again with this summary, which covers fewer messages than leave now.
    A policy without a target leaves what its summary does not cover.
    """
    frame, now = planned.frame, planned.now
    target = target_for(frame, now)
    left = target + share_of(FREE, limit_for(frame, now))
    return target > 0 and size_of(resolve(planned, summary).next, frame) > left


def _suffices(planned: Plan, summary: Summary) -> bool:
    """Whether the plan is complete with this summary and needs no further reduction."""
    done = resolve(planned, summary)
    return done.decision == "summarise" and {*done.edits} <= {*planned.edits} and not done.refusal
