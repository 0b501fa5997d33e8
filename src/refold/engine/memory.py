"""A conversation in memory: messages go in, windows come out.

One idea: the state is one immutable value, so undoing is putting an earlier value back and showing what was said since. All
decisions are made by `core.plan`; this class only remembers, and tells what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import TypeAlias

from msgspec import structs

from refold.core import extractive
from refold.core.arrival import arrive
from refold.core.assemble import broken_rules
from refold.core.breakpoints import breakpoint_edits, mark_window
from refold.core.budget import tokens_of
from refold.core.calibrate import Calibration, forget_sums, observe
from refold.core.cost import Prices
from refold.core.fold import Folded
from refold.core.frame import Frame, fits, limit_for, lowered_output, output_for, room_of, size_of
from refold.core.measure import Meter, anchor, forget_size, record_call
from refold.core.mend import REASON as BROKEN
from refold.core.mend import VOID, forget_thoughts, is_broken, mend
from refold.core.output_room import OutputRoom, output_after
from refold.core.overflow import classify
from refold.core.plan import Decision, Plan, SummaryRequest, ahead, give_up, plan, resolve
from refold.core.policy import Policy
from refold.core.reasons import with_digests
from refold.core.sight import terms_in_sight
from refold.core.stages.shown import Edit, handle_of
from refold.core.summary.search import find
from refold.core.system_messages import is_instruction, moved_edits
from refold.core.thoughts import is_void, thought_edits
from refold.core.verify import verify_fit
from refold.core.view import View
from refold.engine.bill import Bill
from refold.engine.framing import frame_for
from refold.engine.limits import Limits
from refold.engine.lookup import look_up
from refold.engine.moments import measured, now_of, ratio_of
from refold.engine.receipts import Change, Receipt
from refold.engine.secrecy import Secrecy
from refold.engine.telling import Telling
from refold.model.budget import Budget
from refold.model.compaction import holds_sealed
from refold.model.errors import DoesNotFit, InvalidWindow, RecoverySpent
from refold.model.message import Message, Part, Role
from refold.model.overflow import Overflow
from refold.model.summary import Summary
from refold.model.tokens import Measurement, TokenCounter, Usage
from refold.model.trigger import Moment
from refold.model.window import Fixed, Window

Summarise: TypeAlias = Callable[[SummaryRequest, Folded, Frame], Summary | None]
"""Writes the summary that a plan asks for, or gives up with None: then the policy says what happens."""

LEAST_LEARNT = 500
"""Tokens of messages: in a smaller call, or one that is mostly instructions, these say more than how the provider counts."""
FOREIGN = "only the provider that made this compaction can read it"
CLIPPED = "the provider reported more input than the window holds"


class Memory:
    """The state of one conversation. Whoever calls it, in whichever thread, holds the conversation's lock."""

    def __init__(
        self,
        fixed: Fixed,
        budget: Budget,
        policy: Policy,
        counter: TokenCounter,
        summarise: Summarise = extractive.summarise,
        prices: Prices | None = None,
        secrecy: Secrecy | None = None,
    ) -> None:
        self.frame = frame_for(fixed, budget, policy, counter, prices)
        self.folded = Folded.of(View(fixed.dialect, counter))
        self.meter, self.calibration, self.bill = Meter(), Calibration(), Bill()
        self.receipts: list[Receipt] = []
        self.summarise, self.secrecy = summarise, secrecy or Secrecy()
        self.changes: list[Change] = []
        self.telling = Telling()
        self._prepared: Summary | None = None
        self._sent = self.folded
        self._window: Window | None = None
        self.limits = Limits()
        self.in_vain = 0
        self.flag = ""
        self.twins: Mapping[int, Message] = {}
        """What to show instead of compactions that another provider or model made, by their numbers."""

    def add(self, *messages: Message, sensitive: bool = False, at_once: bool = False) -> None:
        """Take in what was said; what is sensitive stays out of every summary.

        Of a history that comes `at_once` only the end is acted on: nobody was asked between the others. These are indexed later.
        """
        replies = (at for at, one in enumerate(messages) if one.role == "assistant")
        last = max(replies, default=len(messages) - 1) if at_once else 0
        for at, message in enumerate(messages):
            if message.role == "assistant":
                self.answered()
            elif message.role == "user":
                self.limits.turn()
            self._show_next(self.secrecy.take(self.folded, message, is_marked=sensitive, later=at < last))
            is_followed = at + 1 < len(messages) and is_instruction(messages[at + 1])
            if at >= last and not is_followed:  # an instruction belongs to the message that it comes with
                self._look_around(message)

    def answered(self) -> None:
        """A provider has taken the last window: it was not too large."""
        attempts = self.limits.attempts
        self.limits.answer()
        if attempts:
            self.telling.recovered(self, attempts)

    def instruct(self, fixed: Fixed) -> None:
        """Go on with another system prompt or other tools; the format stays.

        Raises:
            BudgetError: they leave no room for a conversation.
        """
        old, counter = self.frame, self.folded.shown.counter
        self.frame = frame_for(fixed, old.budget, old.policy, counter, old.prices)

    def context(self) -> Window:
        """What to send now.

        Raises:
            DoesNotFit: nothing more can be taken away, and it is still too much.
            InvalidWindow: the messages break a rule of the dialect.
        """
        if self._spoke_last() == "user":
            self._act("turn_start")
        done, planned = len(self.receipts), self._act("before_call")
        if len(self.receipts) > done and "before_call" in self.frame.policy.reduce_at:
            planned = self._act("before_call")  # a new summary leaves less room for what the stages have left
        return self._send(planned)

    def _spoke_last(self) -> Role | None:
        """Whose the last message is; what the system says after it belongs to it."""
        branch = self.folded.branch
        said = (branch[at].message for at in range(len(branch) - 1, -1, -1))
        return next((message.role for message in said if not is_instruction(message)), None)

    def record(self, usage: Usage | None) -> None:
        """Take in what the provider reported for the last window."""
        sent, instructions = self._sent, self.frame.instructions
        counted = size_of(sent, self.frame)
        self.meter = record_call(self.meter, usage, sent.shown, counted=counted)
        is_ignored = sent.shown.progress.compaction > 0
        if is_ignored:  # the provider does not read, nor count, what stands before its own compaction
            self.meter = forget_size(self.meter)
        is_sealed = _holds_sealed(sent.shown)
        if is_sealed:  # how many tokens that is depends on what it holds, and not on how the provider counts
            self.meter = structs.replace(self.meter, ratio=0.0)
        if usage is None:
            return
        self.bill = self.bill.add(usage, self.frame.prices, whole=instructions + sent.whole, sent=counted)
        if is_ignored or anchor(usage, sent.shown, counted=counted) is None:
            return  # no count of what was sent: nothing is learnt from it, and nothing done
        if usage.context > self.frame.budget.window:
            self.flag = CLIPPED
        if sent.tokens >= max(LEAST_LEARNT, instructions) and not is_sealed:
            self.calibration = observe(
                self.calibration, prompt=usage.context, counted=sent.tokens, instructions=instructions
            )

    def measured(self, tokens: int) -> None:
        """Take in what the provider counted of the last window, before it was sent."""
        found = anchor(Usage(input=tokens), self._sent.shown, counted=size_of(self._sent, self.frame))
        self.meter = structs.replace(self.meter, anchor=found or self.meter.anchor)
        if tokens > self.frame.budget.window:
            self.flag = CLIPPED

    @property
    def measurement(self) -> Measurement:
        """The size of the window as it is now, region by region."""
        return measured(self, self.folded)

    def compact(self, keep: int | None = None, cut: int | None = None) -> Window:
        """Compact now, whatever the thresholds say; `keep` is how many tokens are to stay, `cut` the first message that is."""
        return self._send(self._act("manual", keep, cut))

    def undo(self) -> bool:
        """Take back the last change to what is shown; False where there is none."""
        if not self.changes:
            return False
        change, known = self.changes.pop(), self.folded
        since = known.size - change.before.size
        folded = known.shown_as(change.before)
        for offset, message in enumerate(known.shown.messages(len(known.shown) - since)):
            original = known.original(change.before.size + offset).message
            folded = folded.display(original if offset < change.raw else message)
        self.folded, self._prepared = folded, None
        self.telling.undone(self, known, change.receipt.decision, change.receipt.reason)
        return True

    def recall(self, handle: str) -> Message | Part | Summary:
        """The original behind a handle, such as `#m12` or `#m12.2`.

        Raises:
            NotFound: there is no such message or part.
        """
        return look_up(handle, self.folded)

    def search(self, query: str, *, max_tokens: int = 1_000) -> str:
        """Passages of everything ever said that fit the query, each with its handle; what is not in sight comes first."""
        # A model asks by a call that waits for its result: the words of that are neither known to it nor an answer.
        folded, start = self.folded, self.folded.asking
        look = partial(find, folded.facts, query, budget=max_tokens, before=start)
        look = partial(look, window=self.frame.budget.window, counter=folded.shown.counter)
        return look(covered=terms_in_sight(folded, self.frame, before=start)) or look()

    def recover(self, status: int | None, body: object, *, held: int | None = 0) -> Window:
        """The next smaller window after a provider's refusal, made without any model.

        The body is the provider's, or what somebody found in it before. Of the provider's numbers, `held` tokens are of messages that
        the provider alone has and that the budget leaves out; None where nobody knows how many.

        Raises:
            RecoverySpent: as many windows as the policy allows were tried for this call, or none can be smaller.
        """
        policy, shown = self.frame.policy, self._sent if self._window else self.folded
        if is_void(status, body) and self._forget_thoughts():
            return self._send(self._act("before_call"))
        sent, asked = size_of(shown, self.frame), self.output
        allowed = self.frame.budget.window - asked
        found = body if isinstance(body, Overflow) else classify(status, body, estimated=sent, budget=allowed)
        found = found.without(held or 0)
        if not found.is_overflow or not policy.enabled or self.limits.attempts >= policy.recovery.attempts:
            raise RecoverySpent
        lowered, is_enough = self._output_after(found, sent)
        try:
            if is_enough:
                self.limits.lower_output(found, lowered, sent=sent)
                same = Plan(
                    self.frame, now_of(self, "before_call"), shown, shown, "keep", "less output is enough"
                )
                return self._send(same)
            is_lower = lowered < asked or self.limits.output is not None
            self.limits.refuse(
                found,
                sent=sent,
                ratio=ratio_of(self),
                max_output=asked,
                lowered=lowered if is_lower else None,
                is_counted=held == 0 and not _holds_sealed(shown.shown),
            )
            return self._send(self._act("overflow"))
        except (DoesNotFit, InvalidWindow) as error:
            self.limits.give_up()
            raise RecoverySpent(error.message) from None

    def _output_after(self, found: Overflow, sent: int) -> tuple[int, bool]:
        """The output to ask for after a refusal, and whether that is enough for the same messages to be sent again."""
        budget, ratio, asked = self.frame.budget, now_of(self, "before_call").ratio, self.output
        if not budget.is_output_stated:
            return asked, False
        prompt = max(found.prompt or 0, ceil(sent * ratio))
        instructions = ceil(self.frame.instructions * max(ratio, prompt / sent if sent else ratio))
        reserve = tokens_of(budget.reserve, budget)
        sizes = {"prompt": prompt, "instructions": instructions, "reserve": reserve}
        lowered = output_after(found, budget, output=asked, **sizes)
        is_first = found.kind == "input_plus_output" and self.limits.output is None
        window = min(found.limit or budget.window, budget.window)
        return lowered, is_first and lowered < asked and prompt + lowered + reserve <= window

    def _forget_thoughts(self) -> bool:
        """Show no thought that was signed before something else changed; False where there is none."""
        forgotten, edits = forget_thoughts(self.folded)
        if edits:
            self._note(forgotten, "reduce", VOID, edits)
            self.folded = forgotten
        return bool(edits)

    def ahead(self) -> SummaryRequest | None:
        """What to have summarised before it is needed; None where there is no hurry."""
        return ahead(self.folded, self.frame, now_of(self, "after_call")) if self._prepared is None else None

    def asked_for(self, cut: int | None = None) -> SummaryRequest | None:
        """What a compaction would have summarised if it were asked for now."""
        return plan(self.folded, self.frame, now_of(self, "manual", cut=cut)).request

    @property
    def text_size(self) -> int:
        """How much text an act may read, in characters: the originals that are held, what is shown of them, the system prompt."""
        folded = self.folded
        held = max(folded.branch.characters, folded.shown.characters)
        return held + sum(one.characters for one in self.frame.fixed.system)

    @property
    def last_window(self) -> Window | None:
        """What was sent last; None where nothing was."""
        return self._window

    @property
    def sent(self) -> Folded:
        """The state that it was made of."""
        return self._sent

    @property
    def last_marks(self) -> tuple[Edit, ...]:
        """The cache breakpoints that were set in it, and the output that was lowered: edits too, made anew with every call."""
        if self._window is None:
            return ()
        return (*breakpoint_edits(self._window, self._sent), *self._output_edits(self._window))

    def _output_edits(self, window: Window) -> tuple[Edit, ...]:
        if window.output is None or not self.frame.budget.is_output_stated:
            return ()
        return (self.room.edit(window.output),)

    @property
    def output(self) -> int:
        """The output to ask for with the last window: less than was asked for where it had to be lowered."""
        lowered = self._window.output if self._window else None
        return self.frame.budget.max_output if lowered is None else lowered

    @property
    def room(self) -> OutputRoom:
        """What instructions and output leave for messages."""
        return room_of(self.frame, now_of(self, "before_call"))

    def restore(self, folded: Folded) -> None:
        """Go on from a state that was kept somewhere else."""
        self.folded = self._sent = folded
        self._prepared, self._window = None, None
        self.changes.clear()

    def suffices(self, last: int) -> bool:
        """Would a compaction that is asked for now be content with a summary of the messages before this one?"""
        planned = plan(self.folded, self.frame, now_of(self, "manual"))
        return _suffices(
            planned, Summary("Somebody sums it up.", 0, last, 0, "model", self.frame.policy.scope)
        )

    def prepare(self, summary: Summary) -> None:
        """Keep a summary that was written ahead for the moment at which the window is full."""
        self._prepared = summary

    def _show_next(self, folded: Folded) -> None:
        """Show the newest original, whole or cut to its share."""
        number = folded.size - 1
        message, edits = arrive(folded, self.frame, number)
        shown = folded.display(message)
        if edits:
            self._note(shown, "reduce", "larger than its share", edits, raw=1)
        self.folded = shown

    def _look_around(self, message: Message) -> None:
        """Act on what a new message brings about: after a reply, or ahead of the next call."""
        is_waiting, policy = bool(self.folded.shown.progress.open_calls), self.frame.policy
        if message.role == "assistant":
            if policy.deferred or not is_waiting:
                self._act("after_call")
        elif policy.prepares and not is_waiting and self._spoke_last() != "assistant":
            self._act("before_call")

    def _put_in_words(self) -> None:
        """Show compactions of other providers and models in words, and those that are the model's own as they were made."""
        before = self.folded
        if before.shown.progress.compaction < 0 and not before.made:
            return
        self.folded = before.in_words(self.twins)
        after = {item.seq: item.tokens for item in self.folded.items.items}
        edits = tuple(
            Edit("twin", item.seq, item.tokens, after[item.seq], FOREIGN, handle_of(item.seq))
            for item in before.items.items
            if item.seq in self.folded.made and item.seq not in before.made
        )
        if edits:
            receipt = Receipt("reduce", FOREIGN, before.tokens, self.folded.tokens, edits)
            self.receipts.append(receipt)
            self.telling.changed(self, Change(before, self.folded, receipt))

    def _act(self, moment: Moment, keep: int | None = None, cut: int | None = None) -> Plan:
        self._put_in_words()
        if moment != "after_call" and is_broken(self.folded):
            mended, edits = mend(self.folded)
            self._note(mended, "reduce", BROKEN, edits)
            self.folded = mended
        planned = plan(self.folded, self.frame, now_of(self, moment, keep, cut))
        if moment == "after_call" and self.frame.policy.deferred:
            self.flag = planned.reason if planned.request is not None else self.flag
            return planned
        ready = self._ready(planned) if planned.request is not None else None
        act = partial(self._carry_out, planned, ready)
        return self.telling.carry_out(self, planned, act, is_ahead=ready is not None)

    def _carry_out(self, planned: Plan, ready: Summary | None) -> Plan:
        """Do what is planned, with the summary that is ready or another one; the plan as it was done."""
        summary = None
        if planned.request is not None:
            planned, summary = self._fulfil(planned, planned.request, ready)
        if planned.next is not self.folded and not planned.refusal:
            if planned.edits or summary or planned.next.lead is not self.folded.lead:
                self._note(planned.next, planned.decision, planned.reason, planned.edits, summary)
            self.folded = planned.next
        return planned

    def _fulfil(
        self, planned: Plan, request: SummaryRequest, ready: Summary | None
    ) -> tuple[Plan, Summary | None]:
        """The plan with the summary it asks for, and that summary if it was of use."""
        summary = ready or self._written(planned, request)
        if summary is None:
            return give_up(planned), None  # the flag stays, and the next request may have more luck
        if not summary.text.strip():
            summary = None  # nothing can stand for messages that leave
        if summary is not None:
            files = self.folded.ledger
            summary = structs.replace(summary, read=files.read, modified=files.modified)
        done = resolve(planned, summary) if summary else give_up(planned)
        if summary is None or done.decision != "summarise":
            self.in_vain += 1
            return done, None
        self._prepared, self.flag, self.in_vain = None, "", 0
        self.calibration = forget_sums(self.calibration)
        number = planned.next.numbered + len(planned.next.past)
        return done, next(one for one in done.next.past[::-1] if one.number == number)

    def _ready(self, planned: Plan) -> Summary | None:
        """The summary that was written ahead, if with it nothing more has to go."""
        covered = planned.next.summaries[-1].last if planned.next.summaries else 0
        if self._prepared is None or self._prepared.last <= covered:
            return None
        return self._prepared if _suffices(planned, self._prepared) else None

    def _written(self, planned: Plan, request: SummaryRequest) -> Summary | None:
        summary = self.summarise(request, planned.next, self.frame)
        if summary is not None:
            return summary
        on_failure, is_full = self.frame.policy.on_failure, not fits(planned.next, self.frame, planned.now)
        if on_failure == "digest":
            return extractive.summarise(request, planned.next, self.frame)
        if on_failure == "mechanical" or (on_failure == "mechanical_if_full" and is_full):
            return extractive.mechanical_summary(request, planned.next, self.frame)
        return None

    def _note(
        self,
        after: Folded,
        decision: Decision,
        reason: str,
        edits: tuple[Edit, ...],
        summary: Summary | None = None,
        raw: int = 0,
    ) -> None:
        """Write down a change to what is shown, so that it can be told and taken back."""
        before = self.folded
        if before.shown.dialect.signed_thinking and not raw:
            edits = (*edits, *thought_edits(before.items.items, after.items.items, edits))
        if before.shown.dialect.system_follows_user and not raw:
            edits = (*edits, *moved_edits(before.items.items, after.items.items))
        grown = after.whole - before.whole
        reason = with_digests(reason, summary.digested if summary else 0)
        receipt = Receipt(decision, reason, before.tokens + grown, after.tokens, edits, summary)
        self.changes.append(Change(before, after, receipt, raw))
        self.receipts.append(receipt)
        self.telling.changed(self, self.changes[-1])

    def _send(self, planned: Plan) -> Window:
        if planned.refusal:
            raise DoesNotFit(planned.refusal, hint=self._no_room(planned))
        window = self._marked(planned)
        found = broken_rules(window, planned.sent.shown)
        if found:
            planned = self._without_open_calls(planned)
            window = self._marked(planned)
            found = broken_rules(window, planned.sent.shown)
        window = self._with_output(window, planned)
        if found:
            first = found[0]
            where = f"message {first.index}: " if first.index is not None else ""
            raise InvalidWindow(f"{where}{first.message}", hint=first.hint)
        self._sent, self._window = planned.sent, window
        return window

    def _with_output(self, window: Window, planned: Plan) -> Window:
        """The window with the output to ask for, where that is less than was asked for.

        Raises:
            DoesNotFit: input, output and reserve are more than the window.
        """
        frame, now = planned.frame, planned.now
        asked, output = frame.budget.max_output, output_for(planned.sent, frame, now)
        if frame.policy.enabled:
            found = verify_fit(tokens=size_of(planned.sent, frame), limit=limit_for(frame, now, output))
            if found:
                raise DoesNotFit(found[0].message, hint=self._no_room(planned))
        return structs.replace(window, output=output) if output < asked else window

    def _no_room(self, planned: Plan) -> str:
        """Why nothing fits, as a sum."""
        room = room_of(planned.frame, planned.now)
        return f"{room.arithmetic(lowered_output(planned.frame, planned.now))}; {DoesNotFit.default_hint}"

    def _marked(self, planned: Plan) -> Window:
        """The window with cache breakpoints, where its format takes them."""
        policy = self.frame.policy
        return mark_window(
            planned.window, planned.sent, policy.cache if policy.enabled else None, self._window
        )

    def _without_open_calls(self, planned: Plan) -> Plan:
        """For this request only, leave out what waits for a result: when that comes, the call is shown again."""
        mended, edits = mend(planned.sent, as_request=True)
        if edits and not (self.receipts and self.receipts[-1].edits == edits):
            receipt = Receipt("reduce", BROKEN, planned.sent.tokens, mended.tokens, edits)
            self.receipts.append(receipt)
            self.telling.changed(self, Change(planned.sent, mended, receipt))
        return structs.replace(planned, sent=mended)


def mark(memory: Memory) -> Callable[[], None]:
    """How to put memory back as it is now; a summary that was written meanwhile is not lost by it."""
    parts = (memory, memory.limits, memory.secrecy)
    known = [vars(part).copy() for part in parts]
    receipts, changes = tuple(memory.receipts), tuple(memory.changes)

    def put_back() -> None:
        prepared: Summary | None = vars(memory)["_prepared"]
        for part, state in zip(parts, known, strict=True):
            vars(part).update(state)
        memory.receipts[:], memory.changes[:] = receipts, changes
        if prepared is not None:
            memory.prepare(prepared)

    return put_back


def _holds_sealed(shown: View) -> bool:
    """Does the provider read a compaction whose size nobody else knows?"""
    newest = shown.progress.compaction
    return newest >= 0 and holds_sealed(shown[newest].message)


def _suffices(planned: Plan, summary: Summary) -> bool:
    """Is the plan done with this summary, and nothing more has to go?"""
    done = resolve(planned, summary)
    return done.decision == "summarise" and done.edits == planned.edits and not done.refusal
