"""Telling whoever listens to a conversation.

One idea: there is one mouth. Whatever is done to a context is told by it, in the order in which it was done, and a compaction that
has a start has an end, whatever happens in between. What was done and then not kept, because somebody else had written first, was
never done, and is not told.

A compaction that waits for a model is an act of its own, from the question to the switch; the switch inside of it is a part of it:

    manual, rerun     act ──────────── waits ──────────── [start … end] ── end
    all others                                             start … end
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from refold.engine.describing import (
    NOTHING,
    is_compaction,
    path_of,
    problem_of,
    reductions,
    sized,
    whole_of,
    why_not,
)
from refold.engine.events import (
    CompactionEnd,
    CompactionStart,
    Event,
    Listener,
    Outcome,
    Path,
    Pruned,
    Recovered,
    Size,
    SummaryFailed,
    SummaryWritten,
    Undone,
)
from refold.model.errors import InvalidWindow
from refold.model.tokens import Usage

if TYPE_CHECKING:
    from refold.core.fold import Folded
    from refold.core.plan import Decision, Plan, SummaryRequest
    from refold.engine.memory import Memory
    from refold.engine.receipts import Change
    from refold.model.summary import Summary
    from refold.model.trigger import Moment

Price: TypeAlias = Callable[[str, Usage], float]
"""What a model's usage costs, in dollars."""

_log = logging.getLogger("refold")

ASKED = "asked for"
OVERTAKEN = "the conversation was compacted meanwhile"
UNFIT = "no summary passed its checks"
NO_SIZE = Size(0, "counted", 0, 0)
"""Where nobody listens, nothing is measured."""
_held: ContextVar[tuple[Telling, list[tuple[Act | None, Event]]] | None] = ContextVar("held", default=None)
"""Events that are held back until the act that raised them is stored, and whose they are. It belongs to the task of that act, and to
the thread that does it: what others tell at the same time is not a part of the act and is not held."""
_within: ContextVar[Act | None] = ContextVar("within", default=None)
"""The compaction that what is done now is a part of, likewise."""


class Act:
    """A compaction that takes its time, and what came of it so far."""

    def __init__(self, start: CompactionStart) -> None:
        self.told = CompactionEnd(
            path=start.path,
            moment=start.moment,
            reason=start.reason,
            outcome="skipped",
            problem=NOTHING,
            before=start.before,
            after=start.before,
        )

    def take(self, end: CompactionEnd) -> None:
        """What the switch inside of it has done."""
        own = self.told
        self.told = structs.replace(end, path=own.path, moment=None, reason=own.reason, before=own.before)

    def end(self, outcome: Outcome, problem: str = "") -> None:
        self.told = structs.replace(self.told, outcome=outcome, problem=problem)

    def reduced(self, change: Change) -> None:
        self.told = structs.replace(self.told, reductions=reductions(change.receipt.edits, change.before))

    def written(self, summary: Summary, dollars: float = 0.0) -> None:
        """It stands on this summary now."""
        self.told = structs.replace(
            self.told,
            author="model" if summary.kind == "model" else "digest",
            model=summary.model,
            covered=summary.last - summary.first,
            digested=summary.digested,
            usage=summary.usage,
            dollars=dollars,
        )


class Telling:
    """What is told of one conversation. Nobody listens unless somebody was given."""

    def __init__(self, listener: Listener | None = None, price: Price = lambda _model, _usage: 0.0) -> None:
        self.listener, self.price = listener, price
        self.conversation, self.branch = "", ""
        self._changes: list[Change] | None = None

    @property
    def is_heard(self) -> bool:
        return self.listener is not None

    def tell(self, event: Event) -> None:
        if not self.is_heard:
            return
        held, act = _held.get(), _within.get()
        if held is not None and held[0] is self:
            held[1].append((act, event))
        else:
            self._deliver(act, event)

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Hold back what is told inside; what is given tells it, once it counts. An act that fails is told at once; one that is
        stopped never was.
        """
        held = list[tuple[Act | None, Event]]()
        before = _held.set((self, held))

        def release() -> None:
            for act, event in held:
                self._deliver(act, event)

        try:
            yield release
        except Exception:
            release()
            raise
        finally:
            _held.reset(before)

    def _deliver(self, act: Act | None, event: Event) -> None:
        """To whoever listens; a start and an end that are a part of something larger, to that."""
        if act is not None and isinstance(event, CompactionStart | CompactionEnd):
            if isinstance(event, CompactionEnd):
                act.take(event)
            return
        if self.listener is None:
            return
        try:
            self.listener(structs.replace(event, conversation=self.conversation, branch=self.branch))
        except Exception as error:  # noqa: BLE001  # somebody else's code: its failure must not stop the conversation
            _log.warning("a listener failed on %s: %s", event.kind, type(error).__name__)

    @contextmanager
    def act(
        self, memory: Memory, path: Path, reason: str = ASKED, moment: Moment | None = None
    ) -> Iterator[Act]:
        """A compaction from its start to its end. It is told as skipped unless something comes of it."""
        before = sized(memory) if self.is_heard else NO_SIZE
        start = CompactionStart(path=path, moment=moment, reason=reason, before=before)
        act = Act(start)
        self.tell(start)
        try:
            yield act
        except InvalidWindow:
            raise  # about the request that was to follow, not about what was done
        except BaseException as error:
            act.end("failed", problem_of(error))
            raise
        finally:
            if self.is_heard:
                self.tell(structs.replace(act.told, after=sized(memory)))

    @contextmanager
    def within(self, act: Act) -> Iterator[None]:
        """What is compacted inside is a part of the act. Nothing may be waited for in here."""
        before = _within.set(act)
        try:
            yield
        finally:
            _within.reset(before)

    def changed(self, memory: Memory, change: Change) -> None:
        """What is shown was changed: as a part of what is being carried out, or in passing."""
        if self._changes is not None:
            self._changes.append(change)
        elif self.is_heard:
            self._prune(memory, change, "arrival" if change.raw else "automatic")

    def carry_out(self, memory: Memory, planned: Plan, act: Callable[[], Plan], *, is_ahead: bool) -> Plan:
        """Carry a plan out, and tell what comes of it."""
        if not self.is_heard:
            return act()
        changes: list[Change] = []
        moment, is_done = planned.now.moment, False
        path = path_of(moment, is_ahead=is_ahead)
        if is_compaction(planned, memory.folded):
            with self.act(memory, path, planned.reason, moment) as told:
                done = self._carried_out(act, changes)
                is_done = self._settle(told, planned, done, changes)
        else:
            done = self._carried_out(act, changes)
        for change in changes if not is_done else ():
            self._prune(memory, change, path, moment)
        return done

    def _carried_out(self, act: Callable[[], Plan], changes: list[Change]) -> Plan:
        self._changes = changes
        try:
            return act()
        finally:
            self._changes = None

    def _settle(self, told: Act, asked: Plan, done: Plan, changes: Sequence[Change]) -> bool:
        """Say what came of a compaction; was anything installed?"""
        change = changes[-1] if changes else None
        summary = change.receipt.summary if change else None
        if done.refusal:
            told.end("failed", done.refusal)
        elif change is None or (asked.request and not summary and change.after.lead is change.before.lead):
            told.end("skipped", why_not(asked, done))
        else:
            told.end("installed")
            told.reduced(change)
            if summary is not None:
                told.written(summary, self.price(summary.model, summary.usage))
            return True
        return False

    def _prune(self, memory: Memory, change: Change, path: Path, moment: Moment | None = None) -> None:
        """Messages stay and are smaller now."""
        before = whole_of(change)
        self.tell(
            Pruned(
                path=path,
                moment=moment,
                reason=change.receipt.reason,
                before=sized(memory, before),
                after=sized(memory, change.after),
                reductions=reductions(change.receipt.edits, before),
            )
        )

    def undone(self, memory: Memory, before: Folded, decision: Decision, reason: str) -> None:
        if self.is_heard:
            sizes = sized(memory, before), sized(memory)
            self.tell(Undone(decision=decision, reason=reason, before=sizes[0], after=sizes[1]))

    def asked(
        self,
        request: SummaryRequest,
        summary: Summary | None,
        bill: Mapping[str, Usage],
        problem: str,
        *,
        is_awaited: bool,
    ) -> None:
        """A summariser has answered, or could not; the bill is by model."""
        first, last, usage = request.first, request.last, sum(bill.values(), Usage())
        dollars = sum(self.price(model, used) for model, used in bill.items())
        if summary is None:
            event: Event = SummaryFailed(
                first=first, last=last, is_awaited=is_awaited, problem=problem, usage=usage, dollars=dollars
            )
        else:
            event = SummaryWritten(
                first=first,
                last=last,
                is_awaited=is_awaited,
                tokens=summary.tokens,
                digested=summary.digested,
                model=summary.model,
                usage=usage,
                dollars=dollars,
            )
        self.tell(event)

    def recovered(self, memory: Memory, attempts: int) -> None:
        if self.is_heard:
            stated, size = memory.limits.stated, sized(memory, memory.sent)
            self.tell(Recovered(attempts=attempts, stated=stated, size=size))
