"""Summary jobs: a model writes summaries, ahead of time or while a caller waits.

A job is stored as a row before it begins, and its result is stored before it is used. The id of a job is
derived from the messages it summarises and from its recipe, so the same work is found again after a crash or
in another process. One process at a time holds the lease of a job and extends it by heartbeats. A result that
was paid for is never asked for again.

    planned -> running -> summarised -> installed
                  |            |
                failed ->  superseded

The count of failures ends once a model has written for the branch again. A summary for a session that has
ended in the meantime is superseded; if it covers all of that session, it becomes the session's own summary.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import ref

import msgspec
from msgspec import Struct, structs

from refold.core.assemble import assemble
from refold.core.plan import SummaryRequest
from refold.core.prompts import Count
from refold.engine import actions
from refold.engine.arguments import check_summariser, is_async
from refold.engine.events import UNFIT, EventQueue, Price, SummaryDiscarded
from refold.engine.journal import Journal
from refold.engine.state import MODEL_FAILED, OUT_OF_MONEY, State
from refold.engine.summary_source import SummarySource
from refold.model.dialect import Dialect
from refold.model.errors import Conflict, RefoldError, StoreError, SummaryError
from refold.model.message import replace_lone_surrogates
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.models import PaidQuestion, Summariser, SummaryFunction, SummaryTask
from refold.ports.records import (
    Batch,
    Call,
    Compaction,
    CompactionState,
    Embedding,
    Session,
    StoredSummary,
    SummaryOrder,
)
from refold.ports.store import SessionRows, Store, SummaryQueue
from refold.summarisers import SummaryWriter, checked
from refold.text_work import call_in_thread, run_text_work
from refold.wire.sdk import plain_message

T = TypeVar("T")
Place = tuple[object, ...]
"""The open session and the shown summaries. A summary that was written for one place cannot be used at
another."""

_log = logging.getLogger("refold")

ENOUGH = 0.25
"""Share of the messages that a compaction would take out now: a summary that covers so many is used, and no
other is paid for."""
LEASE_S = 60.0
"""Lease on a summary job: longer than a pause of the machine. A crashed program's job is free again after a
minute."""
BEATS = 3
"""Heartbeats per lease, so that one may get lost."""
ATTEMPTS = 3
"""How many times the same job is tried: after so many failures the cause is in the job."""
TRIED_OFTEN = f"the model was not asked: it failed {ATTEMPTS} times at the same messages"
PAUSE_S = 60.0
"""Pause before an automatic retry: a provider that is down or out of capacity needs about so long."""
PATIENCE_S, POLL_S = 60.0, 0.2
"""How long a caller waits for a summary that another process writes, and how often it polls: about as long as
its own request would take, and much cheaper than a second answer."""
QUEUE_POLL_S = 2.0
"""How often a process looks at a summary that a worker writes, if it is not told of its end."""
BILLS = 20
"""How many times the commit of a bill is retried after a conflict."""
MOVED_ON = "the conversation has moved on to another session"
UNDONE = "the compaction was undone"
REPLACED = "another summary was asked for in its place"
CLOSED = "the conversation was closed while it was written"
NEWER = "a newer summary covers its messages"
UNUSED = "the compaction before it stays"
LEFT = "the program that was writing it ended"
HELD = "another program writes the same summary"
IN_PROGRESS = ("planned", "running")

MAX_WRITE_S = 600.0
"""Seconds after which a summariser that gives no answer has failed: it would keep all later summaries waiting."""
MAX_FAILURES = 3
"""Failures in a row after which the model is not asked for a while: each costs money and yields nothing."""
REST_S = 300.0
"""Seconds after which it is asked again: most outages last a few minutes."""

_running: dict[asyncio.Task[Any], HasState] = {}
"""The jobs of this process, each with its conversation. An event loop holds only weak references to its tasks, and a
job that is paid for must not vanish; its conversation is needed to stop it (`Engine.rest`)."""


class HasState(Protocol):
    """A conversation, for its jobs."""

    @property
    def state(self) -> State: ...


class PendingSummary(Struct, frozen=True):
    """A summary that is being written or is ready: its place, the session it is about, and the message it
    ends before.
    """

    place: Place
    session: str
    last: int
    first: int = 0
    is_queued: bool = False
    """Whether another process writes it: then it goes on if this conversation is closed."""


class SummaryJobs:
    """Runs the summary jobs of one conversation, one at a time, and holds the summary that is ready.

    It refers to the conversation weakly, so that one which nobody uses any more is freed at once: a reference
    cycle would wait for a full garbage collection. A running job holds the conversation.
    """

    def __init__(
        self,
        journal: Journal,
        conversation: HasState,
        events: EventQueue,
        *,
        holder: str,
        summariser: Summariser | None,
        price: Price,
        max_spend: float | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self.summariser = summariser
        """Writes the summaries; None for digests only. A job that has begun keeps the summariser it began
        with."""
        self.queue: SummaryQueue | None = None
        """Has them written by another process; None writes them in this one."""
        self.leases, self.breaker = LeasedJobs(journal, holder, lease_s), Breaker(journal, max_spend)
        self._journal, self._conversation_ref = journal, ref(conversation)
        self._events, self._price = events, price
        self._task: asyncio.Task[Summary | None] | None = None
        self._asked: PendingSummary | None = None
        self._ready: tuple[Place, Summary] | None = None
        self._late: tuple[Place, Summary] | None = None
        """A summary that was ready after a digest had taken its place, and the place of that digest."""
        self._early: tuple[Place, Summary] | None = None
        """One that covers more messages than the digest at this place: it waits for the next compaction."""
        self._failed: Place | None = None
        """The place for which no summary could be written."""
        self._problem = ""
        """Why it could not be written."""
        self._has_skipped = False
        """Whether a compaction was skipped since then, so that the model may be asked again."""
        self._undone: PendingSummary | None = None
        """A summary that was being written when an undo took its session back."""
        self._released: PendingSummary | None = None
        """A summary whose session was closed while it was written. The session's own summary builds upon it."""
        self._detached = list[PendingSummary]()
        """Summaries that `release` let go on. `stop` does not reach them."""
        self._waiters = 0

    def is_awaited(self) -> bool:
        """Whether a caller waits for the summary that is being written."""
        return self._waiters > 0

    @property
    def _conversation(self) -> HasState:
        held = self._conversation_ref()
        assert held is not None, "its methods are called by the conversation, or by a job that holds it"
        return held

    @property
    def state(self) -> State:
        """The conversation's present state."""
        return self._conversation.state

    @property
    def place(self) -> Place:
        return self.place_of(self.state)

    def place_of(self, state: State, session: str = "") -> Place:
        """Compare places by coverage, not by identity: a state that was loaded again has the same place, and so
        has one in which a model's summary took the place of a digest.
        """
        return session or self._journal.session.id, *state.place

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def with_prepared(self, state: State) -> State:
        """Return the state with the summary that is ready for it, and with what is known about the model. A
        failed summary is not requested again for the same place until a compaction was skipped, because a
        model that is down must not be asked with every message.
        """
        place = self.place_of(state)
        prepared = self._ready[1] if self._ready and self._ready[0] == place else None
        late = self._late[1] if self._late and self._late[0] == place else None
        late = late if late is not None and _is_replaceable(late, state) else None
        has_failed = self._failed is not None and self._failed == place
        may_ask = self.summariser is not None and (not has_failed or self._has_skipped)
        has_model, looks_ahead = may_ask and not self.breaker.is_open, may_ask and not self.is_running
        problem = self._problem if has_failed else ""
        no_model = "" if self.summariser is None or has_model else problem or self.breaker.reason
        model_before = (state.has_model, state.no_model, state.has_failed, state.looks_ahead)
        known = (state.prepared, state.late, *model_before)
        if known == (prepared, late, has_model, no_model, has_failed, looks_ahead):
            return state
        return structs.replace(
            state,
            prepared=prepared,
            late=late,
            has_model=has_model,
            no_model=no_model,
            has_failed=has_failed,
            looks_ahead=looks_ahead,
        )

    def prepare(self, summary: Summary) -> None:
        """Hold a summary for the moment at which the window is full."""
        place, session = self.place, self._journal.session.id
        self._ready, self._asked = (place, summary), PendingSummary(place, session, summary.last)

    def note_skipped(self) -> None:
        self._has_skipped = True

    def drop_pending(self) -> None:
        """Forget the pending summary, because an undo changed the shown messages."""
        self._undone = self._asked if self.is_running else None
        self._asked = None
        for held in (self._late, self._early):
            if held is not None and held[0] == self.place:
                self._discard(held[1], UNDONE)
        self._late = self._early = None

    def allow_retry(self) -> None:
        """Allow the model to be asked again after a failure, because the provider refused the window."""
        self._failed = None

    async def load(self) -> None:
        """Find a stored summary that is ready for the present place."""
        if not (self.is_running and self._asked and self._asked.place == self.place):
            self._asked = None
        found = await self.leases.stored_results() if self.leases.journal.has_unfinished else StoredResults()
        if found.ready is not None:
            self.prepare(found.ready)
        self._late = self._early = None
        if found.late is not None:
            self._hold(found.late)
        for one, reason in found.discarded:
            self._discard(one, reason)

    # Jobs

    def begin_ahead(
        self, request: SummaryRequest | None, state: State | None = None, session: Session | None = None
    ) -> None:
        """Start a job in the background if one is due. Call it without an await after the action that wants
        it. If a digest has just taken the place of the messages, `state` and `session` are those before it.
        """
        if state is not None and self._late is not None:
            return  # one that became ready while the digest was made replaces it
        if request is not None and self.summariser and not self.is_running and not self.breaker.is_open:
            self._begin(request, self.summariser, state=state, session=session)

    async def write_within(self, request: SummaryRequest, seconds: float, waited_s: float = 0.0) -> None:
        """Have a summary written, and wait for it so long, less the time that the caller has waited already. After
        that the policy goes on without it; the job continues.
        """
        place = self.place
        if self.summariser is None:
            return
        with self.awaiting():
            if not self.is_running:
                self._begin(request, self.summariser)
            task = self._task
            if task is not None:
                await asyncio.wait({task}, timeout=max(0.0, seconds - waited_s))
            problem = self._problem if self._failed == place else MODEL_FAILED
            if task is not None and not task.done():
                problem = f"the model took longer than {seconds:g} second{'' if seconds == 1 else 's'}"
        if self.place == place and not (self._ready and self._ready[0] == place):
            # A skip before this wait is no reason to ask again: the model was waited for since.
            self._failed, self._problem, self._has_skipped = place, problem, False

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Within the block a caller waits for the summary."""
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1

    async def ensure_written(
        self, wanted: Callable[[], Awaitable[SummaryRequest | None]], focus: str, patience_s: float
    ) -> None:
        """Wait for the summary that a manual compaction needs: the one in progress if it suffices, else a new
        one. Before that, one in progress that replaces a digest is waited for, `patience_s` seconds at most.
        """
        if self.summariser is None:
            return
        request, place = await wanted(), self.place
        with self.awaiting():
            if request is None:
                await self._wait_for_late(patience_s)
                return
            if not focus and await self._is_pending(request):
                await self.wait()
                if self._asked is not None or self._failed == self.place or self.place != place:
                    return
                # The job ended without a result: it began with no caller waiting, while another program held
                # the lease.
            await self._wait_for_late(patience_s)
            if self.place != place:
                return
            await self.stop(REPLACED)
            self._begin(await wanted() or request, self.summariser, focus)
            await self.wait()

    async def _wait_for_late(self, patience_s: float) -> None:
        """Wait for a summary that replaces a digest: it is paid for."""
        if self._task is not None and self._asked is not None and self._asked.place != self.place:
            await asyncio.wait({self._task}, timeout=patience_s)

    async def wait(self) -> None:
        """Wait until no summary is being written. Cancelling the waiter does not stop the job."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    async def stop(self, reason: str) -> None:
        """Cancel the running job. The provider may bill it, so it is reported as discarded."""
        task, asked = self._task, self._asked
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if self._task is task:
            self._task = None  # its exception refers to this object
        if task.cancelled() and asked is not None:
            if not asked.is_queued:
                self.report_discarded(asked.first, asked.last, reason)
            if self._asked is asked:
                self._asked = None

    @property
    def is_current(self) -> bool:
        """Whether the summary in progress, or the ready one, is about the messages that are shown now."""
        return self._asked is not None and self._asked.place == self.place

    def release(self) -> asyncio.Task[Summary | None] | None:
        """Detach the running job, and return it: it goes on, although the conversation begins a new session."""
        task = self._task
        if task is None or not (self.is_running and self._journal.keeps_content):
            return None
        self._released = self._asked if self.is_current else None
        if self._asked is not None:
            self._detached.append(self._asked)
        self._task = None
        return task

    async def write_for(
        self,
        request: SummaryRequest,
        summariser: Summariser,
        state: State,
        session: Session,
        *,
        is_given: bool,
    ) -> Summary:
        """Run one job about a session for which another summary stands, and return its summary. It is not held
        as ready. A summariser that was given for this summary alone is not one of a worker's; a function is asked
        in any case, because another function may have its name.

        Raises:
            SummaryError: there is none; its hint says why.
        """
        question, queue = SummariserCall(summariser), None if is_given else self._queue_for("")

        async def write() -> Summary | None:
            source = await self._source(state)
            task = partial(source.shown_task, request)
            return await self.answer(
                question,
                request,
                task,
                source.text_size,
                is_awaited=self.is_awaited,
                finish=source.with_text,
            )

        recipe = self.recipe(summariser, state, "")
        if is_given and isinstance(summariser, FunctionSummariser):
            recipe = sha256(f"{recipe} {self._journal.new_id()}".encode()).hexdigest()[:32]
        spec = structs.replace(self.job_spec(question, write, recipe), is_wanted=True)
        if queue is not None:
            spec = structs.replace(spec, queue=queue, order=partial(self._order, request, state))
        result = await self.run(request, spec, session)
        if queue is not None and result.is_asked:
            self._report_written_elsewhere(request, result)
        if result.summary is None:
            why = result.not_asked or result.error or question.failure or self.breaker.reason or MODEL_FAILED
            raise SummaryError("no summary could be written, and the old compaction stays", hint=why)
        return result.summary

    async def drop_written(self, summary: Summary, reason: str) -> None:
        """Report a summary of `write_for` that is not used, and end its job."""
        store, owner = self._journal.store, self._journal.head.owner
        with suppress(StoreError):
            known = await store.compaction(owner, summary.id)
            if known is not None and known.state == "summarised":
                await supersede_job(store, owner, known, reason)
                self._discard(summary, reason)

    def _begin(
        self,
        request: SummaryRequest,
        summariser: Summariser,
        focus: str = "",
        *,
        state: State | None = None,
        session: Session | None = None,
    ) -> None:
        self._task = self.in_background(self._write(request, summariser, focus, state or self.state, session))

    def in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that continues when nobody else uses the conversation."""
        task = asyncio.create_task(work)
        _running[task] = self._conversation
        task.add_done_callback(_running.pop)
        return task

    def _write(
        self,
        request: SummaryRequest,
        summariser: Summariser,
        focus: str,
        state: State,
        session: Session | None = None,
    ) -> Coroutine[Any, Any, Summary | None]:
        """Run one job, and hold its summary as the one that is ready."""
        self._has_skipped = False
        session = session or self._journal.session
        asked = PendingSummary(
            self.place_of(state, session.id),
            session.id,
            request.last,
            request.first,
            is_queued=self._queue_for(focus) is not None,
        )
        self._asked = asked
        return self._run(asked, request, summariser, focus, state, session)

    async def _run(
        self,
        asked: PendingSummary,
        request: SummaryRequest,
        summariser: Summariser,
        focus: str,
        state: State,
        session: Session,
    ) -> Summary | None:
        summary = None
        try:
            if await self._is_in_effect(asked):
                summary = await self._summarise(asked, request, summariser, focus, state, session)
        except asyncio.CancelledError:
            if asked in self._detached and not asked.is_queued:
                self.report_discarded(asked.first, asked.last, CLOSED)
            raise
        finally:
            if self._asked is asked and not (summary is not None and self.place == asked.place):
                self._asked = None
        if summary is not None:
            await self._use(summary, asked)
        return summary

    async def _use(self, summary: Summary, asked: PendingSummary) -> None:
        """Hold a summary for the messages that it is about, or report that it cannot be used."""
        if self.place == asked.place:
            self._failed = None
            self.prepare(summary)
            return
        is_folded = self._journal.session.id != asked.session and await self._is_in_effect(asked)
        if any(one.id == summary.id for one in self.state.folded.summaries):
            self._failed = None  # a call found it in the store and used it before this job had returned
        elif is_folded:
            self._failed = None
            # A digest stands for the messages now.
            if not self._hold(summary):
                self._discard(summary, MOVED_ON)
        elif asked is not self._released:
            self._discard(summary, UNDONE if asked is self._undone else MOVED_ON)

    def note_compaction(self, closed: Session, *, is_switched: bool) -> None:
        """Hold the summaries that were not used yet for the digest of a compaction that closed a session.
        `is_switched` says that the one for the digest before was used now.
        """
        opened = self._journal.session
        self._late = None if is_switched else self._late
        if opened.id == closed.id:
            return
        is_next = opened.kind == "compaction" and opened.parent == closed.id
        held, self._late, self._early = (self._late, self._early), None, None
        used = {one.id for one in self.state.folded.summaries}
        for place, summary in (one for one in held if one is not None and one[1].id not in used):
            if not is_next or place[0] != closed.id or not self._hold(summary):
                self._queue_discarded(summary, MOVED_ON)
        ready = self._ready
        if ready is not None and is_next and ready[0][0] == closed.id and self._hold(ready[1]):
            self._ready = self._asked = None  # it was not used: a digest was made at the same time

    def _hold(self, summary: Summary) -> bool:
        """Hold a summary for the digest that stands in its place, or for the next one if it covers more. False
        if a model has described all of its messages already.
        """
        shown = self.state.folded.summaries
        if _is_replaceable(summary, self.state):
            if self._late is not None:
                self._queue_discarded(self._late[1], NEWER)
            self._late = self.place, summary
        elif shown and shown[-1].last < summary.last:
            if self._early is not None:
                self._queue_discarded(self._early[1], NEWER)
            self._early = self.place, summary
        else:
            return False
        return True

    async def _is_in_effect(self, asked: PendingSummary) -> bool:
        """Whether the messages that a job is about are still shown, or folded into the present session."""
        return self.place == asked.place or await self.leases.is_folded(asked.session)

    def _discard(self, summary: Summary, reason: str) -> None:
        self.report_discarded(summary.first, summary.last, reason)

    def report_discarded(self, first: int, last: int, reason: str) -> None:
        """Report that a summary of these messages was paid for, or may be billed, and cannot be used."""
        self._events.put([SummaryDiscarded(first=first, last=last, reason=reason)])
        self._events.deliver()

    def _queue_discarded(self, summary: Summary, reason: str) -> None:
        """The same under the conversation's lock: events are delivered after it is released."""
        self._events.put([SummaryDiscarded(first=summary.first, last=summary.last, reason=reason)])

    async def _summarise(
        self,
        asked: PendingSummary,
        request: SummaryRequest,
        summariser: Summariser,
        focus: str,
        state: State,
        session: Session,
    ) -> Summary | None:
        place, question = asked.place, SummariserCall(summariser)

        async def write() -> Summary | None:
            source = await self._source(state)
            if not await self._is_in_effect(asked):
                raise Conflict("the conversation has moved on")
            task = partial(source.shown_task, request, focus)
            return await self.answer(
                question,
                request,
                task,
                source.text_size,
                is_awaited=self.is_awaited,
                finish=source.with_text,
            )

        async def is_enough(last: int) -> bool:
            return self.place == place and await self._is_enough(request, last)

        spec = structs.replace(
            self.job_spec(question, write, self.recipe(summariser, state, focus)),
            is_wanted=self.is_awaited(),
            is_enough=is_enough,
        )
        if asked.is_queued and (queue := self.queue) is not None:
            order = partial(self._order, request, state)
            spec = structs.replace(spec, queue=queue, order=order)
        result = await self.run(request, spec, session)
        if asked.is_queued and result.is_asked:
            self._report_written_elsewhere(request, result)
        if result.has_failed or result.not_asked:
            problem = result.not_asked or result.error or question.failure or MODEL_FAILED
            self._failed, self._problem = place, problem
        return result.summary

    def _queue_for(self, focus: str) -> SummaryQueue | None:
        """Return the queue for a job. One with a focus stays here: the focus is a user's text, and an order holds none."""
        return self.queue if not focus and self._journal.keeps_content else None

    def _order(self, request: SummaryRequest, state: State, planned: Compaction) -> SummaryOrder:
        head = self._journal.head
        return SummaryOrder(
            owner=head.owner,
            conversation=head.conversation,
            branch=planned.branch,
            session=planned.base,
            id=planned.id,
            recipe=planned.recipe,
            size=state.size,
            first=request.first,
            last=request.last,
            items=tuple(item.seq for item in request.items),
            kept=tuple(item.seq for item in request.kept),
            max_tokens=request.max_tokens,
            turn_from=request.turn_from,
            apart=tuple(sorted(request.apart)),
            since=request.since,
            model=self._journal.model,
            budget=state.frame.budget,
            policy=state.frame.policy.without_plugins,
            has_sent=state.window is not None,
            is_awaited=self.is_awaited(),
        )

    def _report_written_elsewhere(self, request: SummaryRequest, result: JobResult) -> None:
        summary = result.summary
        asked = ((summary.model, summary.usage),) if summary else ()
        event = self._events.summary_event(
            request, summary, asked, result.error or UNFIT, is_awaited=self.is_awaited()
        )
        self._events.put([event])
        self._events.deliver()

    async def fulfil(self, order: SummaryOrder, summariser: Summariser, state: State) -> JobResult:
        """Write the summary of an order, in the process of a worker. `state` is the branch as it is now.

        Raises:
            RefoldError: the store failed, or the branch is damaged; the order can be tried again.
        """
        journal, owner = self._journal, self._journal.head.owner
        session = await journal.store.session(owner, order.session)
        if session is None or not await self._is_session_in_effect(session.id):
            return JobResult()
        frame = structs.replace(state.frame, policy=order.policy, budget=order.budget)
        found = await journal.store.last_change(owner, session.id, ("summarise", "reduce"))
        state = structs.replace(state, frame=frame)
        state = state.showing(await journal.shown_after(state, found, order.size))
        request, question = _request_of(order, state), SummariserCall(summariser)

        async def write() -> Summary | None:
            source = await self._source(state)
            if order.has_sent and source.sent is None:
                folded = state.folded
                sent = assemble(frame.fixed, folded.shown.messages(), folded.lead)
                source = structs.replace(source, sent=sent)
            if not await self._is_session_in_effect(session.id):
                raise Conflict("the conversation has moved on")
            task = partial(source.shown_task, request, "")
            return await self.answer(
                question,
                request,
                task,
                source.text_size,
                is_awaited=lambda: order.is_awaited,
                finish=source.with_text,
            )

        async def is_enough(last: int) -> bool:
            is_open = session.id == journal.session.id
            return is_open and not order.is_awaited and await self._is_enough(request, last)

        spec = structs.replace(
            self.job_spec(question, write, order.recipe),
            is_wanted=order.is_awaited,
            is_enough=is_enough,
        )
        result = await self.leases.summarise(request, spec, session)
        self.breaker.note(result)
        return structs.replace(result, error=question.failure) if result.has_failed else result

    async def _is_session_in_effect(self, which: str) -> bool:
        return which == self._journal.session.id or await self.leases.is_folded(which)

    async def _source(self, state: State) -> SummarySource:
        """Return the messages that a summary is made from: the whole conversation, or the part that no model
        has read.
        """
        source, folded = SummarySource.of(state), state.folded
        if state.frame.policy.source == "all":
            folded = await self._journal.with_originals(state, folded, 0)
        else:
            folded = await self._journal.with_unread(state, folded)
        return structs.replace(source, folded=folded)

    def job_spec(self, question: SummariserCall, write: Write, recipe: str) -> JobSpec:
        return JobSpec(
            recipe=recipe,
            write=write,
            questions=question.questions,
            failure=lambda: question.failure,
            price=self._price,
            upstream=question.upstream_of,
            may_ask=self.breaker.may_ask,
        )

    async def run(self, request: SummaryRequest, spec: JobSpec, session: Session | None = None) -> JobResult:
        """Run a job under its lease. An error of the store does not count as a failure of the model."""
        try:
            result = await self.leases.summarise(request, spec, session)
        except RefoldError as error:
            _log.warning("a summary could not be written: %s", type(error).__name__)
            return JobResult(error=f"the store failed ({type(error).__name__})")
        self.breaker.note(result)
        return result

    async def answer(
        self,
        summariser: Summariser,
        request: SummaryRequest,
        task: Callable[[], SummaryTask],
        size: int,
        *,
        is_awaited: Callable[[], bool],
        finish: Callable[[Summary, SummaryRequest], Summary] = lambda summary, _: summary,
    ) -> Summary | None:
        """Give a task, made from `size` characters of text, to a summariser, and queue the event of its
        result. `finish` completes the summary.
        """
        problem = UNFIT
        try:
            made = await run_text_work(size, task)
            async with asyncio.timeout(MAX_WRITE_S):
                summary = valid_unicode(await summariser.write(made))
            if summary is not None:
                summary = await run_text_work(size, finish, summary, request)
            if summary is not None and made.digested:
                summary = structs.replace(summary, digested=made.digested)
        except Exception as error:  # noqa: BLE001  # code of the user's: its failure must not stop the conversation
            summary, problem = None, str(error) if isinstance(error, NotText) else type(error).__name__
            _log.warning("a summary could not be written: %s", problem)
        if summary is None and isinstance(summariser, SummariserCall):
            problem = summariser.failure or problem
        asked = questions_of(summariser, summary)
        self._events.put(
            [self._events.summary_event(request, summary, asked, problem, is_awaited=is_awaited())]
        )
        self._events.deliver()
        return summary

    def recipe(self, summariser: Summariser, state: State, focus: str) -> str:
        """Return the hash of the settings that a summary is made with."""
        policy = state.frame.policy
        parts = (policy.recipe, policy.scope, policy.source, focus, name_of(summariser))
        return sha256(msgspec.json.encode(parts)).hexdigest()[:32]

    async def _is_pending(self, request: SummaryRequest) -> bool:
        """Whether the summary in progress, or the ready one, covers enough of the messages that would leave
        now.
        """
        asked = self._asked
        if asked is None or asked.place != self.place:
            return False
        return await self._is_enough(request, asked.last)

    async def _is_enough(self, request: SummaryRequest, last: int) -> bool:
        """Whether a summary up to this message covers enough of the messages that would leave now."""
        state = self.state
        shown = state.folded.summaries
        begins = shown[-1].last if shown else 0
        covered, wanted = last - begins, request.last - begins
        if not ENOUGH * wanted <= covered <= wanted:
            return False
        return await run_text_work(
            state.text_size, actions.suffices, state, last, is_apart=state.runs_plugins
        )


def _request_of(order: SummaryOrder, state: State) -> SummaryRequest:
    """Return the request of an order, with the messages as the session shows them."""
    shown = {item.seq: item for item in state.folded.items.items}
    return SummaryRequest(
        first=order.first,
        last=order.last,
        items=tuple(shown[number] for number in order.items if number in shown),
        kept=tuple(shown[number] for number in order.kept if number in shown),
        previous=state.folded.summaries,
        max_tokens=order.max_tokens,
        turn_from=order.turn_from,
        apart=frozenset(order.apart),
        since=order.since,
    )


def _is_replaceable(summary: Summary, state: State) -> bool:
    """Whether the newest summary covers these messages, and no model has described all of them yet."""
    shown = state.folded.summaries
    if not shown or shown[-1].last < summary.last:
        return False
    return shown[-1].kind != "model" or shown[-1].told_until < summary.last


# Leases

Write = Callable[[], Awaitable[Summary | None]]

_in_hand: set[tuple[str, str]] = set()
"""Holder and id of the jobs that run in this process. A lease of ours that is not listed here was left by a
crash."""


class JobSpec(Struct, frozen=True, kw_only=True):
    """The terms of one summary job: how to write it, and how to bill it."""

    recipe: str
    """The hash of its settings: another focus or another model is another job."""
    write: Write
    """Writes the summary. Raises Conflict if the conversation has moved on, before a model is asked."""
    questions: Callable[[Summary | None], Sequence[PaidQuestion]] = lambda _: ()
    """Returns the answered questions so far, with or without a summary."""
    failure: Callable[[], str] = lambda: ""
    """Returns why no model answered; empty if one did."""
    price: Callable[[str, Usage], float] = lambda _model, _usage: 0.0
    """Returns the cost of a model's usage in dollars; 0 if its prices are not known."""
    upstream: Callable[[str], str] = lambda _model: ""
    """Returns the name of the upstream at which a model was asked; empty if not known."""
    may_ask: Callable[[], Awaitable[bool]] | None = None
    """Whether a model may be asked now, see `Breaker`."""
    is_wanted: bool = False
    """Whether a caller waits: then a recent failure is retried at once."""
    is_enough: Callable[[int], Awaitable[bool]] | None = None
    """Whether a summary up to this message, by another job, would do as well."""
    queue: SummaryQueue | None = None
    """Takes the job to another process; None runs it in this one."""
    order: Callable[[Compaction], SummaryOrder] | None = None
    """Makes the order for the queue."""


class JobResult(Struct, frozen=True):
    """A summary or None, and whether a model was asked. A job that another process holds, or that is paused,
    has not failed.
    """

    summary: Summary | None = None
    is_asked: bool = False
    not_asked: str = ""
    """Why no model may be asked about these messages."""
    error: str = ""
    """Why a model wrote none, if it is known."""

    @property
    def has_failed(self) -> bool:
        return self.is_asked and self.summary is None


class StoredResults(Struct, frozen=True):
    """Summaries of a branch that are written and not used yet."""

    ready: Summary | None = None
    late: Summary | None = None
    """A summary of messages for which a digest stands."""
    discarded: tuple[tuple[Summary, str], ...] = ()
    """Summaries that cannot be used, and why."""


class LeasedJobs:
    """Runs the summary jobs of one branch under leases. `holder` identifies the process."""

    def __init__(self, journal: Journal, holder: str, lease_s: float = LEASE_S) -> None:
        self.journal, self.holder, self.lease_s = journal, holder, lease_s

    async def summarise(
        self, request: SummaryRequest, spec: JobSpec, session: Session | None = None
    ) -> JobResult:
        """Return the stored summary of this job, or run the job, unless another process holds it. By default
        it is about the open session.
        """
        # Read once: the journal's session and head may move during the job.
        session, owner = session or self.journal.session, self.journal.head.owner
        for attempt in range(ATTEMPTS):
            work = self._work(session, request, spec.recipe, attempt)
            known = await self.journal.store.compaction(owner, work.id)
            if known is None or known.state in IN_PROGRESS:
                return await self._begin(work, spec)
            found = await self._stored_summary(known)  # a superseded job still has its summary
            if found is not None or self._is_resting(known, spec):
                return JobResult(found)
        return JobResult(not_asked=TRIED_OFTEN)

    async def stored_results(self) -> StoredResults:
        """Return the stored summaries that are ready for the open session, or for the digest that it began
        with. Jobs for other sessions of the branch are superseded.
        """
        owner, branch, session = self.journal.head.owner, self.journal.head.branch, self.journal.session
        ready: Summary | None = None
        late: Summary | None = None
        discarded = list[tuple[Summary, str]]()
        for one in await self.journal.store.unfinished(owner, branch):
            written = await self._stored_summary(one) if one.state == "summarised" else None
            if one.base == session.id:
                ready = written if written and (ready is None or written.last >= ready.last) else ready
            elif written is not None and await self.is_folded(one.base):
                late = written if late is None or written.last >= late.last else late
            elif one.state == "planned" and await self._may_be_queued(one):
                continue
            elif one.state != "running" and (self.holder, one.id) not in _in_hand:
                base = await self.journal.store.session(owner, one.base)
                reason = UNDONE if base is not None and base.state == "undone" else MOVED_ON
                await supersede_job(self.journal.store, owner, one, reason)
                discarded += [(written, reason)] if written is not None else []
        return StoredResults(ready, late, tuple(discarded))

    async def _may_be_queued(self, planned: Compaction) -> bool:
        """Whether a worker may still write the summary of a job, and a digest stands for its messages meanwhile."""
        is_recent = planned.at > self.journal.clock() - MAX_WRITE_S
        return is_recent and await self.is_folded(planned.base)

    async def is_folded(self, which: str) -> bool:
        """Whether a session was closed by a compaction, and only compactions followed it."""
        session: Session | None = self.journal.session
        while session is not None and session.kind == "compaction" and session.parent:
            if session.parent == which:
                return True
            session = await self.journal.store.session(self.journal.head.owner, session.parent)
        return False

    def _work(self, session: Session, request: SummaryRequest, recipe: str, attempt: int) -> Compaction:
        journal, tried = self.journal, f"{recipe}-{attempt}" if attempt else recipe
        return Compaction(
            id=journal.id_of(session.id, request.last, tried),
            branch=session.branch,
            kind="summarise",
            state="planned",
            base=session.id,
            cut=request.last,
            size=journal.head.next_seq,
            moment="summary",
            recipe=recipe,
            at=journal.clock(),
        )

    def _is_resting(self, known: Compaction, spec: JobSpec) -> bool:
        """Whether the job failed a moment ago. The clock may have been set back since, so a negative age does
        not count.
        """
        age = self.journal.clock() - known.at
        return known.state == "failed" and not spec.is_wanted and 0 <= age < PAUSE_S

    async def _begin(self, work: Compaction, spec: JobSpec) -> JobResult:
        if (others := await self._result_elsewhere(work, spec)) is not None:
            return others
        if spec.may_ask is not None and not await spec.may_ask():
            return JobResult()  # `Breaker.reason` says why
        planned = await self.journal.store.plan(self.journal.head.owner, work)
        if planned.state not in IN_PROGRESS:
            return JobResult(await self._stored_summary(planned))
        if spec.queue is not None and spec.order is not None:
            await spec.queue.order_summary(spec.order(planned))
            return await self._written_elsewhere(planned, spec, spec.queue)
        key = (self.holder, planned.id)
        if key in _in_hand:
            return JobResult(await self._wait_for(planned, spec))
        _in_hand.add(key)
        try:
            return await self._do(planned, spec)
        finally:
            _in_hand.discard(key)

    async def _written_elsewhere(self, planned: Compaction, spec: JobSpec, queue: SummaryQueue) -> JobResult:
        """Wait until a worker has ended a job, and return its result. The row says so; a job that a worker dropped without
        changing its row is no longer queued.
        """
        owner, store = self.journal.head.owner, self.journal.store
        ends, known = time.monotonic() + MAX_WRITE_S, None
        with queue.watch(planned.id) as changed:
            while time.monotonic() < ends:
                changed.clear()
                with suppress(StoreError):
                    known = await store.compaction(owner, planned.id)
                    if known is None or known.state not in IN_PROGRESS:
                        break
                    if not await queue.is_queued(planned.id):
                        known = await store.compaction(owner, planned.id)
                        break
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), QUEUE_POLL_S)
        if known is not None and (found := await self._stored_summary(known)) is not None:
            return JobResult(found, is_asked=True)
        if known is not None and known.state == "failed":
            return JobResult(is_asked=True, error=known.error)
        return await self._result_elsewhere(planned, spec) or JobResult()

    async def _result_elsewhere(self, work: Compaction, spec: JobSpec) -> JobResult | None:
        """Return the result of another job on the same session with another end; None if there is no use for
        it.

        While another job runs, no automatic one begins, and its result serves if it covers enough. A caller
        that waits accepts only a summary with the same recipe.
        """
        known = await self.journal.store.unfinished(self.journal.head.owner, work.branch)
        for one in [one for one in known if one.base == work.base and one.id != work.id]:
            is_made_alike = one.recipe == spec.recipe or not spec.is_wanted
            serves = is_made_alike and spec.is_enough is not None and await spec.is_enough(one.cut)
            if (serves or not spec.is_wanted) and await self._is_in_progress(one, spec.queue):
                if spec.queue is not None:
                    return await self._written_elsewhere(one, spec, spec.queue)
                return JobResult(await self._wait_for(one, spec))
            if serves and (found := await self._stored_summary(one)) is not None:
                return JobResult(found)
        return None

    async def _is_in_progress(self, one: Compaction, queue: SummaryQueue | None) -> bool:
        """Whether a process is at work on a job, or will be because a worker gets it."""
        is_queued = queue is not None and one.state in IN_PROGRESS and await queue.is_queued(one.id)
        return is_queued or self._is_at_work(one)

    def _is_at_work(self, one: Compaction) -> bool:
        """Whether the job's lease is alive."""
        now = self.journal.clock()
        is_held = one.state == "running" and one.until > now and not is_from_later(one, now, self.lease_s)
        return is_held and (one.holder != self.holder or (one.holder, one.id) in _in_hand)

    async def _do(self, planned: Compaction, spec: JobSpec) -> JobResult:
        try:
            if await self._claim(planned) is None:
                found = await self._wait_for(planned, spec)
                # A program that was killed has left its lease, which has run out by now.
                if found is not None or not spec.is_wanted:
                    return JobResult(found)
                if await self._claim(planned) is None:
                    return JobResult(not_asked=HELD)
            summary = await self._write_with_heartbeat(planned, spec.write)
        except (asyncio.CancelledError, Conflict) as error:
            # The job itself is sound: any process may start it again.
            await settled(self._end(planned, "planned", "it was stopped", spec))
            if isinstance(error, Conflict):
                return JobResult()
            raise
        except Exception:
            await settled(self._end(planned, "failed", "it could not be written", spec))
            raise
        if summary is None:
            await settled(self._end(planned, "failed", spec.failure() or UNFIT, spec))
            return JobResult(is_asked=True)
        return JobResult(await settled(self._keep(planned, summary, spec)), is_asked=True)

    async def _claim(self, planned: Compaction) -> Compaction | None:
        now, owner, store = self.journal.clock(), self.journal.head.owner, self.journal.store
        if planned.holder == self.holder or is_from_later(planned, now, self.lease_s):
            await store.give_up(owner, planned.id, planned.holder, "planned", LEFT)
        return await store.claim(owner, planned.id, self.holder, now=now, until=now + self.lease_s)

    async def _wait_for(self, planned: Compaction, spec: JobSpec) -> Summary | None:
        """Return the summary that another process writes; wait for it only if a caller waits."""
        owner, store = self.journal.head.owner, self.journal.store
        for _ in range(int(PATIENCE_S / POLL_S) if spec.is_wanted else 0):
            known = await store.compaction(owner, planned.id)
            if known is None or known.state != "running" or known.until <= self.journal.clock():
                break
            await asyncio.sleep(POLL_S)
        return await self._stored_summary(planned)

    async def _write_with_heartbeat(self, planned: Compaction, write: Write) -> Summary | None:
        beating = asyncio.create_task(self._beat(planned))
        try:
            return await write()
        finally:
            # Not awaited: nothing may come between the answer and its commit.
            beating.cancel()

    async def _beat(self, planned: Compaction) -> None:
        owner, is_ours = self.journal.head.owner, True
        while is_ours:
            await asyncio.sleep(self.lease_s / BEATS)
            until = self.journal.clock() + self.lease_s
            with suppress(StoreError):
                is_ours = await self.journal.store.beat(owner, planned.id, self.holder, until)

    async def _keep(self, planned: Compaction, summary: Summary, spec: JobSpec) -> Summary:
        """Store the summary. If that fails, return it all the same: it was paid for."""
        journal, now = self.journal, self.journal.clock()
        summary = structs.replace(summary, id=planned.id)
        calls = self._calls(planned, spec.questions(summary), spec)
        written = journal.storable(StoredSummary(id=planned.id, summary=summary, at=now))
        try:
            is_first = await journal.store.reply(journal.head.owner, planned.id, self.holder, written, *calls)
            return summary if is_first else await self._stored_summary(planned) or summary
        except StoreError as error:
            _log.warning("a summary could not be stored: %s", error)
            return summary

    def _calls(
        self, planned: Compaction, questions: Sequence[PaidQuestion], spec: JobSpec
    ) -> tuple[Call, ...]:
        """Return a call for each question. A long text takes several, and so does an answer that fails its checks."""
        return tuple(
            Call(
                id=self.journal.new_id(),
                branch=planned.branch,
                session=planned.base,
                usage=usage,
                size=planned.size,
                kind="summary",
                model=model,
                dollars=spec.price(model, usage),
                at=self.journal.clock(),
                upstream=spec.upstream(model),
            )
            for model, usage in questions
        )

    async def _stored_summary(self, planned: Compaction) -> Summary | None:
        found = await self.journal.store.written(self.journal.head.owner, [planned.id])
        # Without stored content the text of a summary is empty.
        return structs.replace(found[0].summary, id=planned.id) if found and found[0].summary.text else None

    async def _end(self, planned: Compaction, state: CompactionState, error: str, spec: JobSpec) -> None:
        """Mark the job as ended without a summary, and store its cost. If the store fails too, the lease runs
        out.
        """
        with suppress(StoreError):
            await self.journal.store.give_up(self.journal.head.owner, planned.id, self.holder, state, error)
        with suppress(StoreError):
            await self._bill(planned, spec)

    async def _bill(self, planned: Compaction, spec: JobSpec) -> None:
        """Store the cost of a job without a summary: the provider charges for it all the same."""
        calls, seen = self._calls(planned, spec.questions(None), spec), self.journal.head
        store = self.journal.store
        if not calls:
            return
        for _ in range(BILLS):
            head = await store.head(seen.owner, seen.conversation, planned.branch)
            if head is None:
                return
            with suppress(Conflict):
                await store.commit(head, Batch(at=calls[-1].at, calls=calls))
                return


async def settled(act: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine to its end, even if the caller is cancelled in the meantime."""
    task = asyncio.create_task(act)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # a second cancellation does not end the wait
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        raise


def is_from_later(claimed: Compaction, now: float, lease_s: float = LEASE_S) -> bool:
    """Whether a lease was taken before the clock was set back. No valid lease is that long, even if another
    machine's clock is ahead.
    """
    return claimed.until > now + 2 * lease_s


async def sweep(store: Store, owner: str, now: float) -> int:
    """Clean up after crashed processes, and return the number of jobs.

    A job with an expired lease is free again; a job for a session that has ended is superseded. If a digest has taken
    the place of its messages a moment ago, the job is left alone: another process may wait for the summary.
    """
    swept = 0
    for one in await store.unfinished(owner):
        is_left = one.state == "running" and (one.until < now or is_from_later(one, now))
        if one.state == "running" and not is_left:
            continue
        session = await store.session(owner, one.base)
        is_folded = session is not None and has_own_summary(session)
        is_recent = is_folded and session is not None and (session.closed_at or 0.0) > now - MAX_WRITE_S
        if session is None or (session.last is not None and not is_recent):
            swept += await supersede_job(store, owner, one, LEFT)
        elif is_left:
            swept += await store.give_up(owner, one.id, one.holder, "planned", LEFT)
    return swept


# Limits on requests


class Breaker:
    """Stops requests for summaries when the budget is spent or the model failed several times in a row. Both
    are counted from the store, so a restart or another program does not reset them.
    """

    def __init__(self, journal: Journal, max_spend: float | None = None) -> None:
        self._journal, self._max_spend = journal, max_spend
        self.spent, self.failures, self._failed_at = 0.0, 0, 0.0
        self._is_known = False

    @property
    def is_open(self) -> bool:
        """Whether no model may be asked, by the figures read last."""
        return bool(self.reason)

    @property
    def reason(self) -> str:
        """Why no model may be asked; empty if one may be."""
        if self._max_spend is not None and self.spent >= self._max_spend:
            return OUT_OF_MONEY
        if self.failures < MAX_FAILURES:
            return ""
        # A clock that was set back must not make the pause longer.
        is_resting = 0 <= self._journal.clock() - self._failed_at < REST_S
        text = f"the model was not asked: it failed {self.failures} times in a row, and rests for a while"
        return text if is_resting else ""

    async def may_ask(self) -> bool:
        """Read the figures, and return whether a model may be asked. Call it before every request."""
        await self.look()
        return not self.is_open

    async def look(self) -> None:
        """Read the spending and the failures from the store."""
        head = self._journal.head
        self.spent = await self._journal.store.spent(head.owner, head.conversation, "summary")
        if not self._is_known:
            self.failures, self._failed_at = await self._journal.store.failures(head.owner, head.branch)
            self._is_known = True

    def note(self, result: JobResult) -> None:
        """Count the result of a request. A result that was already stored says nothing about the model."""
        if result.has_failed:
            self.failures, self._failed_at = self.failures + 1, self._journal.clock()
        elif result.is_asked:
            self.failures = 0


# Summarisers


class NotText(TypeError):
    """A user's function returned something else than a text. The message names the type, never the value."""


@runtime_checkable
class BillingSummariser(Protocol):
    """A summariser that reports the answered questions of its last task, also if the task yielded no summary."""

    @property
    def questions(self) -> Sequence[PaidQuestion]: ...


class FunctionSummariser:
    """Makes a summariser of a function: it passes plain messages, and checks the text like that of a model."""

    def __init__(self, function: SummaryFunction, dialect: Dialect, count: Count) -> None:
        self.function, self._dialect, self._count = function, dialect, count

    async def write(self, task: SummaryTask) -> Summary | None:
        size = task.characters
        messages = await run_text_work(size, self._plain, task)
        ask = partial(self.function, messages, previous=task.previous, max_tokens=task.max_tokens)
        answer = ask() if is_async(self.function) else await call_in_thread(ask)
        text: object = await answer if isawaitable(answer) else answer
        if not isinstance(text, str):
            kind = "None" if text is None else type(text).__name__
            raise NotText(f"the summariser returned {kind}, not text")
        text = text.strip()
        return await run_text_work(size + len(text), checked, text, task, self._count) if text else None

    def _plain(self, task: SummaryTask) -> list[dict[str, Any]]:
        return [plain_message(passage.message, self._dialect) for passage in task.passages]


def valid_unicode(summary: Summary | None) -> Summary | None:
    """Return a summary that can be stored and sent: a function or another class may write any text."""
    if summary is None or (text := replace_lone_surrogates(summary.text)) == summary.text:
        return summary
    return structs.replace(summary, text=text)


class SummariserCall:
    """One task of a summariser that may have other tasks at the same time."""

    def __init__(self, summariser: Summariser) -> None:
        # The bill of the last task is read afterwards: a copy has no other task in between.
        self._summariser = copy(summariser) if isinstance(summariser, BillingSummariser) else summariser
        self._is_asked, self._fault = False, ""

    async def write(self, task: SummaryTask) -> Summary | None:
        self._is_asked = True
        try:
            return await self._summariser.write(task)
        except NotText as error:
            self._fault = str(error)
            raise

    @property
    def is_asked(self) -> bool:
        return self._is_asked

    @property
    def failure(self) -> str:
        """Why no model answered; empty if one did, or if the summariser does not say."""
        return self._fault or getattr(self._summariser, "failure", "") if self._is_asked else ""

    def questions(self, summary: Summary | None = None) -> Sequence[PaidQuestion]:
        """Return the answered questions so far. A summary for which no model was asked now, because its answer was
        kept, has one without tokens.
        """
        asked = self._summariser
        if isinstance(asked, BillingSummariser):
            known = tuple(asked.questions) if self._is_asked else ()
            return known or (((summary.model, Usage()),) if summary else ())
        name = (summary.model if summary else "") or getattr(asked, "model", "")
        return ((name, summary.usage),) if summary else ()

    def upstream_of(self, model: str) -> str:
        """Return the name of the upstream at which the summariser asks a model; empty if it does not say."""
        writers = (*getattr(self._summariser, "chain", ()), getattr(self._summariser, "native", None))
        upstreams = [writer.upstream for writer in writers if writer is not None]
        return next((getattr(one, "name", "") for one in upstreams if one.model == model), "")


def summariser_of(
    value: Summariser | SummaryFunction | None, dialect: Dialect, count: Count
) -> Summariser | None:
    """Return a summariser, or wrap a function as one; `count` measures its texts.

    Raises:
        ConfigError: the value cannot write summaries.
    """
    check_summariser(value)
    return FunctionSummariser(value, dialect, count) if callable(value) else value


def questions_of(asked: Summariser, summary: Summary | None) -> Sequence[PaidQuestion]:
    """Return the answered questions for a summary, as far as they are known."""
    if isinstance(asked, SummariserCall):
        return asked.questions(summary)
    return ((summary.model, summary.usage),) if summary else ()


def name_of(summariser: Summariser) -> str:
    """Identify a summariser in a recipe: its code, its models with their servers, and its settings, as far as it states them."""
    if isinstance(summariser, FunctionSummariser):
        return _path(summariser.function)
    models = [_place_of(writer) for writer in getattr(summariser, "chain", ())]
    how = [getattr(summariser, "model", None), getattr(summariser, "recipe", None)]
    if (native := getattr(summariser, "native", None)) is not None:
        how.append(f"native {_place_of(native)}")
    return repr((_path(summariser), models, *how))


def _place_of(writer: SummaryWriter) -> str:
    return f"{writer.upstream.model}@{writer.server}" if writer.server else writer.upstream.model


def _path(value: object) -> str:
    code = value if hasattr(value, "__qualname__") else type(value)
    return f"{code.__module__}.{getattr(code, '__qualname__', '')}"


# Jobs for a session that has ended


def digest_id(session: Session) -> str:
    """Return the id of the digest that a session is closed with."""
    return f"closing-{session.id}"


def has_own_summary(session: Session) -> bool:
    """Whether the session has a summary other than the digest it was closed with."""
    return session.summary not in {"", digest_id(session)}


async def attach(
    store: SessionRows,
    owner: str,
    session: Session,
    written: StoredSummary,
    embedding: Embedding | None = None,
) -> bool:
    """Replace the digest of a closed session by a summary; False if the session has another summary."""
    if not written.summary.text or has_own_summary(session):
        return False
    return await store.attach_summary(owner, session.id, written, embedding, replaces=session.summary)


async def supersede_job(store: Store, owner: str, one: Compaction, why: str) -> bool:
    """End a job for a session that has ended. If its summary was written and covers all of the session, it
    replaces the digest.

    A session without even a digest has no vector either. It gets both when it is resumed.
    """
    session = await store.session(owner, one.base) if one.state == "summarised" else None
    if session is not None and (session.last, session.summary) == (one.cut, digest_id(session)):
        for written in await store.written(owner, [one.id]):
            await attach(store, owner, session, written)
    return await store.give_up(owner, one.id, one.holder, "superseded", why)
