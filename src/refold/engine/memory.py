"""A conversation in memory: messages go in, windows come out.

One idea: the state is one immutable value, so undoing is putting an earlier value back and adding what was said since. All
decisions are made by `core.plan`; this class only remembers, and tells what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from refold.core.budget import check_room
from refold.core.fold import Folded
from refold.core.measure import Meter, count_fixed, current_size, record_call
from refold.core.overflow import classify
from refold.core.plan import Decision, Frame, Now, Plan, SummaryRequest, plan, resolve
from refold.core.policy import Policy
from refold.core.stages.shown import Edit, Item, Room, Shown, part_of
from refold.core.summary.search import find
from refold.core.verify import verify_window
from refold.core.view import View
from refold.model.budget import Budget
from refold.model.errors import DoesNotFit, InvalidWindow, NotFound, RecoverySpent
from refold.model.message import Message, Part
from refold.model.overflow import Overflow
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter, Usage
from refold.model.trigger import Moment
from refold.model.window import Fixed, Window

Summarise: TypeAlias = Callable[[SummaryRequest, Folded], Summary | None]
"""Writes the summary that a plan asks for, or gives up with None: then the history stays."""

MAX_RECOVERIES = 2
"""Per call: the first smaller window should do; a second covers a wrong limit; more would only burn money."""
RECOVERY_MARGIN = 0.95
"""A learnt limit is the provider's count; ours differs from it by a few percent."""
BLIND_RECOVERY = 0.7
"""How much of the last window to try next where the provider stated no limit."""


class Receipt(Struct, frozen=True):
    """What was done on its own, and why."""

    decision: Decision
    reason: str
    before: int
    """Tokens of the messages and summaries before and after."""
    after: int
    edits: tuple[Edit, ...] = ()
    summary: Summary | None = None


class Memory:
    """The state of one conversation. Not for use from several threads at once."""

    def __init__(
        self, fixed: Fixed, budget: Budget, policy: Policy, counter: TokenCounter, summarise: Summarise
    ) -> None:
        cost = count_fixed(fixed, counter)
        check_room(budget, instructions=cost.total.tokens)
        self.frame = Frame(fixed, cost, budget, policy)
        self.folded = Folded.of(View(fixed.dialect, counter))
        self.meter = Meter()
        self.receipts: list[Receipt] = []
        self._summarise = summarise
        self._before: list[Folded] = []
        self._recoveries = 0
        self._last_size = 0

    def add(self, *messages: Message) -> None:
        for message in messages:
            self.folded = self.folded.extend([message])
            self._arrive()
            if message.role == "assistant":
                self._act("after_call")
            elif self.frame.policy.prepares and not self.folded.shown.progress.open_calls:
                self._act("before_call")

    def context(self) -> Window:
        """What to send now.

        Raises:
            DoesNotFit: nothing more can be taken away, and it is still too much.
            InvalidWindow: the messages break a rule of the dialect.
        """
        last = self.folded.branch.last
        if last is not None and last.message.role == "user":
            self._act("turn_start")
        return self._send(self._act("before_call"))

    def record(self, usage: Usage | None) -> None:
        """Take in what the provider reported for the last window."""
        counted = self.frame.cost.total.tokens + self.folded.summary_tokens + self.folded.shown.tokens.tokens
        self.meter = record_call(self.meter, usage, self.folded.shown, counted=counted)
        self._recoveries = 0

    def compact(self) -> Window:
        """Compact now, whatever the thresholds say."""
        return self._send(self._act("manual"))

    def undo(self) -> bool:
        """Take back the last change to what is shown; False where there is none."""
        if not self._before:
            return False
        earlier = self._before.pop()
        self.folded = earlier.extend(self.folded.branch.messages(len(earlier.branch)))
        return True

    def recall(self, handle: str) -> Message | Part:
        """The original behind a handle, such as `#m12` or `#m12.2`.

        Raises:
            NotFound: there is no such message or part.
        """
        number, _, part = handle.removeprefix("#m").partition(".")
        branch = self.folded.branch
        if not number.isdecimal() or int(number) >= len(branch) or (part and not part.isdecimal()):
            raise NotFound(f"nothing has the handle {handle[:40]!r}")
        message = branch[int(number)].message
        found = part_of(message, int(part)) if part else message
        if found is None:
            raise NotFound(f"message {number} has no part {part}")
        return found

    def search(self, query: str, *, max_tokens: int = 1_000) -> str:
        """Passages of everything ever said that fit the query, each with the handle of its original."""
        window, counter = self.frame.budget.window, self.folded.shown.counter
        return find(self.folded.facts, query, budget=max_tokens, window=window, counter=counter)

    def recover(self, status: int | None, body: object) -> Window:
        """The next smaller window after a provider's refusal, made without any model.

        Raises:
            RecoverySpent: two windows were tried for this call, or none can be smaller.
        """
        found = classify(status, body)
        if not found.is_overflow or not self.frame.policy.enabled or self._recoveries >= MAX_RECOVERIES:
            raise RecoverySpent
        self._recoveries += 1
        try:
            return self._send(self._act("overflow", limit=self._next_limit(found)))
        except DoesNotFit as error:
            raise RecoverySpent(error.message) from None

    def _next_limit(self, found: Overflow) -> int:
        sent = self._last_size
        if found.limit is None or found.limit_of != "window":
            return int(sent * BLIND_RECOVERY)
        room = int((found.limit - (found.output or self.frame.budget.max_output)) * RECOVERY_MARGIN)
        return room if 0 < room < sent else int(sent * BLIND_RECOVERY)

    def _arrive(self) -> None:
        """Give stages for new messages the newest one; what was there before is never touched by them."""
        if not self.frame.policy.arrival:
            return
        view = self.folded.shown
        item = Item(view[-1].message, len(self.folded.branch) - 1, view[-1].tokens)
        limit = self.frame.budget.window - self.frame.budget.max_output
        room = Room(
            max(0, limit - self.frame.cost.total.tokens),
            self.frame.cost.total.tokens,
            view.counter,
            view.dialect,
        )
        shown, edits = Shown((item,), 1), list[Edit]()
        for stage in self.frame.policy.arrival:
            result = stage.apply(shown, room)
            shown = result.shown
            edits += result.edits
        if edits:
            before, rest = self.folded, self.folded.items.items[:-1]
            self._replace(
                before.show((*rest, *shown.items)), "reduce", "too large for its share", tuple(edits)
            )

    def _act(self, moment: Moment, limit: int | None = None) -> Plan:
        size = current_size(self.meter, self.folded.shown, self.frame.cost) if self.meter.anchor else None
        now = Now(moment, size=size, limit=limit)
        before = self.folded
        planned = plan(before, self.frame, now)
        summary = None
        if planned.request is not None:
            summary = self._summarise(planned.request, planned.next)
            if summary is not None:
                planned = resolve(planned, summary, self.frame, now)
        if planned.next is not before:
            self._replace(planned.next, planned.decision, planned.reason, planned.edits, summary)
        return planned

    def _replace(
        self,
        folded: Folded,
        decision: Decision,
        reason: str,
        edits: tuple[Edit, ...],
        summary: Summary | None = None,
    ) -> None:
        """Show the branch another way from now on, and write down why."""
        before, after = _size(self.folded), _size(folded)
        self._before.append(self.folded)
        self.folded = folded
        self.receipts.append(Receipt(decision, reason, before, after, edits, summary))

    def _send(self, planned: Plan) -> Window:
        if planned.refusal:
            raise DoesNotFit(planned.refusal)
        self._last_size = planned.measurement.content.tokens
        found = verify_window(planned.window)
        if found:
            first = found[0]
            where = f"message {first.index}: " if first.index is not None else ""
            raise InvalidWindow(f"{where}{first.message}", hint=first.hint)
        return planned.window


def _size(folded: Folded) -> int:
    return folded.summary_tokens + folded.shown.tokens.tokens
