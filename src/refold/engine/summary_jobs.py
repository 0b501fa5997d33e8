"""Summary jobs: summaries that a model writes, ahead of time or because somebody waits.

A job is a row in the store before it begins, and its result is stored before anything is done with it. Its id is derived from what it
summarises and how, so the same work is found again after a crash or in another process. One holder at a time has the lease of a job
and keeps it by heartbeats; a result that was paid for is never asked for again.

    planned -> running -> summarised -> installed
                  |            |
                failed ->  superseded

A failure is past once a model has written for the branch again. A summary that was written for a session that has ended since is let
go; where it covers all of that session, it becomes the session's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from hashlib import sha256
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct, structs

from refold.core.plan import SummaryRequest
from refold.core.transcript_chunks import Count
from refold.engine import actions
from refold.engine.events import UNFIT, EventQueue, Price
from refold.engine.journal import Journal
from refold.engine.sessions import let_go
from refold.engine.state import State
from refold.engine.summary_source import SummarySource
from refold.model.dialect import Dialect
from refold.model.errors import ConfigError, Conflict, RefoldError, StoreError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.records import Batch, Call, Compaction, CompactionState, Session, StoredSummary
from refold.ports.store import Store
from refold.ports.summariser import Summariser, SummaryTask
from refold.summarisers import checked
from refold.text_work import run_text_work
from refold.wire.sdk import plain_message

T = TypeVar("T")
Place = tuple[object, ...]
"""The open session and the summaries that are shown: a summary that was written for one place is of no use at another."""

_log = logging.getLogger("refold")

ENOUGH = 0.5
"""Of the messages that a compaction would take out now: a summary of so many is used as it is, and no other is paid for."""
LEASE_S = 60.0
"""Lease on a summary job: longer than a pause of the machine. A crashed program's job is free again after a minute."""
BEATS = 3
"""Heartbeats per lease, so that one may get lost."""
ATTEMPTS = 3
"""How often the same work is tried: what failed so often fails for a reason that is in it."""
PAUSE_S = 60.0
"""Before it is tried again unasked: a provider that is down or out of capacity needs about so long."""
PATIENCE_S, POLL_S = 60.0, 0.2
"""How long somebody who waits for a summary waits for another who writes it, and how often they look: about as long as if they
had to ask themselves, and much cheaper than a second answer."""
BILLS = 20
"""How often the commit of a bill is retried after a conflict."""
LEFT = "the program that was writing it ended"
IN_PROGRESS = ("planned", "running")

MAX_FAILURES = 3
"""After so many summaries in a row that could not be written, the model rests: each costs, and nothing comes of it."""
REST_S = 300.0
"""Then it is asked once more: outages of a few minutes are the usual ones."""

_running: set[asyncio.Task[Any]] = set()
"""The jobs of this process: an event loop does not hold its tasks, and what is paid for must not vanish with a conversation."""


class PendingSummary(Struct, frozen=True):
    """A summary that is being written, or is there: for which place, and the message it ends before."""

    place: Place
    last: int


class SummaryJobs:
    """Has the summaries of one conversation written, one at a time, and keeps the one that is ready.

    `current` gives the conversation's state as it is now.
    """

    def __init__(
        self,
        journal: Journal,
        current: Callable[[], State],
        events: EventQueue,
        *,
        holder: str,
        summariser: Summariser | None,
        price: Price,
        max_spend: float | None = None,
    ) -> None:
        self.summariser = summariser
        """Who writes summaries; None where only digests are made. A job that has begun goes on with the one before."""
        self.leases, self.breaker = LeasedJobs(journal, holder), Breaker(journal, max_spend)
        self._journal, self._current, self._events, self._price = journal, current, events, price
        self._task: asyncio.Task[Summary | None] | None = None
        self._asked: PendingSummary | None = None
        self._ready: tuple[Place, Summary] | None = None
        self._failed: Place | None = None
        """Where no summary could be written."""
        self._has_skipped = False
        """Was a compaction left out since then? The model may be asked again."""
        self.is_awaited: Callable[[], bool] = lambda: False
        """Does somebody wait for the summary that is being written?"""

    @property
    def place(self) -> Place:
        return self.place_of(self._current())

    def place_of(self, state: State) -> Place:
        """By what is covered, and not by identity: a state that was loaded again is the same."""
        return self._journal.session.id, *state.place

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def with_prepared(self, state: State) -> State:
        """The state with the summary that is ready for it, whether none could be written, and whether one is to be asked for: once
        for each fold, since a model that is down is not asked with every message.
        """
        place = self.place_of(state)
        prepared = self._ready[1] if self._ready and self._ready[0] == place else None
        has_failed = self._failed is not None and self._failed == place
        is_free = self.summariser is not None and not self.is_running
        looks_ahead = is_free and (not has_failed or self._has_skipped)
        if (state.prepared, state.has_failed, state.looks_ahead) == (prepared, has_failed, looks_ahead):
            return state
        return structs.replace(state, prepared=prepared, has_failed=has_failed, looks_ahead=looks_ahead)

    def prepare(self, summary: Summary) -> None:
        """Keep a summary for the moment at which the window is full."""
        place = self.place
        self._ready, self._asked = (place, summary), PendingSummary(place, summary.last)

    def note_skipped(self) -> None:
        self._has_skipped = True

    def forget(self) -> None:
        """Ask anew: what is shown was changed by hand."""
        self._asked = None

    def forgive(self) -> None:
        """A model that failed may be asked again: the provider refused the window."""
        self._failed = None

    async def load(self) -> None:
        """Find the summary that waits in the store for what is shown now."""
        if not (self.is_running and self._asked and self._asked.place == self.place):
            self._asked = None
        if (prepared := await self.leases.ready()) is not None:
            self.prepare(prepared)

    # Jobs

    def begin_ahead(self, request: SummaryRequest | None) -> None:
        """Have a summary written in the background, if one is due. Called with nothing awaited since the action that wants it."""
        if request is not None and self.summariser and not self.is_running and not self.breaker.is_open:
            self._begin(request, self.summariser)

    async def have_written(self, wanted: Callable[[], Awaitable[SummaryRequest | None]], focus: str) -> None:
        """Wait for the summary that a compaction would take now: the one that is being written, or another one."""
        if self.summariser is None or (request := await wanted()) is None:
            return
        place = self.place
        if not focus and await self._is_asked_for(request):
            await self.wait()
            if self._asked is not None or self._failed == self.place or self.place != place:
                return
            # Nobody waited when it was begun, and another program had it in hand.
        await self.stop()
        self._begin(await wanted() or request, self.summariser, focus)
        await self.wait()

    async def wait(self) -> None:
        """Wait until no summary is being written. A waiter that is cancelled does not stop the job."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    async def stop(self) -> None:
        """Cancel the job that runs."""
        task, asked = self._task, self._asked
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if task.cancelled() and self._asked is asked:
            self._asked = None

    def release(self) -> asyncio.Task[Summary | None] | None:
        """Let go of the job that runs, where it is about what is shown now: it goes on without this conversation."""
        task, asked = self._task, self._asked
        is_about_it = self.is_running and asked is not None and asked.place == self.place
        if task is None or not (is_about_it and self._journal.keeps_content):
            return None
        self._task = None
        return task

    async def write(
        self, request: SummaryRequest, summariser: Summariser, focus: str = "", state: State | None = None
    ) -> Summary | None:
        """Have one summary written, and keep it as the one that is ready. Where it fails, the history is there."""
        return await self._write(request, summariser, focus, state or self._current())

    def _begin(self, request: SummaryRequest, summariser: Summariser, focus: str = "") -> None:
        self._task = in_background(self._write(request, summariser, focus, self._current()))

    def _write(
        self, request: SummaryRequest, summariser: Summariser, focus: str, state: State
    ) -> Coroutine[Any, Any, Summary | None]:
        self._has_skipped = False
        place = self.place_of(state)
        asked = self._asked = PendingSummary(place, request.last)
        return self._run(asked, request, summariser, focus, state)

    async def _run(
        self, asked: PendingSummary, request: SummaryRequest, summariser: Summariser, focus: str, state: State
    ) -> Summary | None:
        summary = None
        try:
            if self.place == asked.place:
                summary = await self._summarise(request, summariser, focus, state)
        finally:
            # It may have come too late, or been undone: what it covers is not what is shown now.
            is_of_use = summary is not None and self.place == asked.place
            if self._asked is asked and not is_of_use:
                self._asked = None
        if summary is not None and is_of_use:
            self._failed = None
            self.prepare(summary)
        return summary

    async def _summarise(
        self, request: SummaryRequest, summariser: Summariser, focus: str, state: State
    ) -> Summary | None:
        place, question = self.place_of(state), SharedTask(summariser)

        async def write() -> Summary | None:
            source = await self._source(state)
            if self.place != place:
                raise Conflict("the conversation has moved on")
            task = partial(source.task, request, focus)
            return await self.answer(question, request, task, source.text_size, is_awaited=self.is_awaited)

        def is_enough(last: int) -> bool:
            return self.place == place and self._is_enough(request, last)

        asking = structs.replace(
            self.asking(question, write, self.recipe(summariser, state, focus)),
            is_wanted=self.is_awaited(),
            is_enough=is_enough,
        )
        result = await self.run(request, asking)
        if result.has_failed:
            self._failed = place
        return result.summary

    async def _source(self, state: State) -> SummarySource:
        """All messages that a summary is made from: everything ever said, or what the summaries so far do not tell."""
        source = SummarySource.of(state)
        folded, first = state.folded, state.folded.origin
        if state.frame.policy.source == "all":
            first = 0
        elif folded.summaries and folded.summaries[-1].last == folded.origin:
            first = folded.summaries[-1].told_until
        return structs.replace(source, folded=await self._journal.with_originals(state, folded, first))

    def asking(self, question: SharedTask, write: Write, recipe: str) -> Asking:
        return Asking(
            recipe=recipe, write=write, bill=question.bill, price=self._price, may_ask=self.breaker.may_ask
        )

    async def run(self, request: SummaryRequest, asking: Asking, session: Session | None = None) -> JobResult:
        """The result of a job; a store that fails is no failure of the model's."""
        try:
            result = await self.leases.summarise(request, asking, session)
        except RefoldError as error:
            _log.warning("a summary could not be written: %s", type(error).__name__)
            return JobResult()
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
    ) -> Summary | None:
        """Put a task, which is made from text of a size, to a summariser, and queue the event of what came of it."""
        problem = UNFIT
        try:
            made = await run_text_work(size, task)
            summary = await summariser.write(made)
            if summary is not None and made.digested:
                summary = structs.replace(summary, digested=made.digested)
        except Exception as error:  # noqa: BLE001  # code of the user's: its failure must not stop the conversation
            _log.warning("a summary could not be written: %s", type(error).__name__)
            summary, problem = None, type(error).__name__
        bill = bill_of(summariser, summary)
        self._events.put(
            [self._events.summary_event(request, summary, bill, problem, is_awaited=is_awaited())]
        )
        self._events.deliver()
        return summary

    def recipe(self, summariser: Summariser, state: State, focus: str) -> str:
        """The hash of how a summary is made."""
        policy = state.frame.policy
        parts = (policy.recipe, policy.scope, policy.source, focus, name_of(summariser))
        return sha256(msgspec.json.encode(parts)).hexdigest()[:32]

    async def _is_asked_for(self, request: SummaryRequest) -> bool:
        """Does the summary that is being written, or is ready, stand for enough of what would leave now?"""
        asked = self._asked
        if asked is None or asked.place != self.place:
            return False
        return await run_text_work(self._current().text_size, self._is_enough, request, asked.last)

    def _is_enough(self, request: SummaryRequest, last: int) -> bool:
        """Does a summary up to this message stand for enough of what would leave now?"""
        state = self._current()
        shown = state.folded.summaries
        begins = shown[-1].last if shown else 0
        covered, wanted = last - begins, request.last - begins
        return ENOUGH * wanted <= covered <= wanted and actions.suffices(state, last)

    @property
    def is_ready(self) -> bool:
        """Is a summary there, or being written, for what is shown?"""
        return self._asked is not None


Write = Callable[[], Awaitable[Summary | None]]

_in_hand: set[tuple[str, str]] = set()
"""Holder and id of the jobs that run in this process: a lease of ours that is not here was left behind."""


class Asking(Struct, frozen=True, kw_only=True):
    """How a summary is to be had: by whom, and what that costs."""

    recipe: str
    """The hash of how it is made: another focus or another model is other work."""
    write: Write
    """Raises Conflict where the conversation has moved on, so that nobody has to be asked."""
    bill: Callable[[Summary | None], Mapping[str, Usage]] = lambda _: {}
    """What was used so far by model, whether a summary came of it or not; the last one wrote it."""
    price: Callable[[str, Usage], float] = lambda _model, _usage: 0.0
    """What a model's usage costs, in dollars; nothing where its prices are not known."""
    may_ask: Callable[[], Awaitable[bool]] | None = None
    is_wanted: bool = False
    """Somebody waits for it: what failed a moment ago is tried again at once."""
    is_enough: Callable[[int], bool] = lambda _: False
    """Would a summary up to this message, which somebody else has in hand, do as well?"""


class JobResult(Struct, frozen=True):
    """A summary, or none, and whether a model was asked: a job that another holder has, or that rests, has not failed."""

    summary: Summary | None = None
    is_asked: bool = False

    @property
    def has_failed(self) -> bool:
        return self.is_asked and self.summary is None


class LeasedJobs:
    """Runs the summary jobs of one branch under leases. `holder` tells processes apart."""

    def __init__(self, journal: Journal, holder: str, lease_s: float = LEASE_S) -> None:
        self.journal, self.holder, self.lease_s = journal, holder, lease_s

    async def summarise(
        self, request: SummaryRequest, asking: Asking, session: Session | None = None
    ) -> JobResult:
        """Have the summary written, unless it is written already or in somebody else's hands; without a session, that of the
        open one.
        """
        # As they are now: both may move on.
        session, owner = session or self.journal.session, self.journal.head.owner
        for attempt in range(ATTEMPTS):
            work = self._work(session, request, asking.recipe, attempt)
            known = await self.journal.store.compaction(owner, work.id)
            if known is None or known.state in IN_PROGRESS:
                return await self._begin(work, asking)
            found = await self._found(known)  # whatever became of it since: what was written is there
            if found is not None or self._is_resting(known, asking):
                return JobResult(found)
        return JobResult()

    async def ready(self) -> Summary | None:
        """What was written for this branch as it is now, and waits to be used; what no longer fits it is let go."""
        owner, branch, session = self.journal.head.owner, self.journal.head.branch, self.journal.session
        found: Summary | None = None
        for one in await self.journal.store.unfinished(owner, branch):
            if one.base == session.id:
                written = await self._found(one) if one.state == "summarised" else None
                found = written if written and (found is None or written.last >= found.last) else found
            elif one.state != "running" and (self.holder, one.id) not in _in_hand:
                await let_go(self.journal.store, owner, one, "the conversation went another way")
        return found

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
            recipe=recipe,
            at=journal.clock(),
        )

    def _is_resting(self, known: Compaction, asking: Asking) -> bool:
        """Did it fail a moment ago? By a clock that may have been set back since."""
        age = self.journal.clock() - known.at
        return known.state == "failed" and not asking.is_wanted and 0 <= age < PAUSE_S

    async def _begin(self, work: Compaction, asking: Asking) -> JobResult:
        if (others := await self._of_others(work, asking)) is not None:
            return others
        if asking.may_ask is not None and not await asking.may_ask():
            return JobResult()
        planned = await self.journal.store.plan(self.journal.head.owner, work)
        if planned.state not in IN_PROGRESS:
            return JobResult(await self._found(planned))
        key = (self.holder, planned.id)
        if key in _in_hand:
            return JobResult(await self._waited_for(planned, asking))
        _in_hand.add(key)
        try:
            return await self._do(planned, asking)
        finally:
            _in_hand.discard(key)

    async def _of_others(self, work: Compaction, asking: Asking) -> JobResult | None:
        """What others write, or have written, about the same session up to another message; None where that is of no use.

        As long as they write nobody else begins unasked, and what they have written serves. Who waits for a summary waits for one
        that is made as theirs would be, and for no other.
        """
        known = await self.journal.store.unfinished(self.journal.head.owner, work.branch)
        for one in [one for one in known if one.base == work.base and one.id != work.id]:
            is_made_alike = one.recipe == asking.recipe or not asking.is_wanted
            serves = is_made_alike and asking.is_enough(one.cut)
            if self._is_at_work(one) and (serves or not asking.is_wanted):
                return JobResult(await self._waited_for(one, asking))
            if serves and (found := await self._found(one)) is not None:
                return JobResult(found)
        return None

    def _is_at_work(self, one: Compaction) -> bool:
        """Does anybody give signs of life?"""
        now = self.journal.clock()
        is_held = one.state == "running" and one.until > now and not is_from_later(one, now, self.lease_s)
        return is_held and (one.holder != self.holder or (one.holder, one.id) in _in_hand)

    async def _do(self, planned: Compaction, asking: Asking) -> JobResult:
        try:
            if await self._claim(planned) is None:
                return JobResult(await self._waited_for(planned, asking))
            summary = await self._beating(planned, asking.write)
        except (asyncio.CancelledError, Conflict) as error:
            # Nothing is wrong with it: anybody may begin again.
            await settled(self._end(planned, "planned", "it was stopped", asking))
            if isinstance(error, Conflict):
                return JobResult()
            raise
        except Exception:
            await settled(self._end(planned, "failed", "it could not be written", asking))
            raise
        if summary is None:
            await settled(self._end(planned, "failed", "no summary passed its checks", asking))
            return JobResult(is_asked=True)
        return JobResult(await settled(self._keep(planned, summary, asking)), is_asked=True)

    async def _claim(self, planned: Compaction) -> Compaction | None:
        now, owner, store = self.journal.clock(), self.journal.head.owner, self.journal.store
        if planned.holder == self.holder or is_from_later(planned, now, self.lease_s):
            await store.give_up(owner, planned.id, planned.holder, "planned", LEFT)
        return await store.claim(owner, planned.id, self.holder, now=now, until=now + self.lease_s)

    async def _waited_for(self, planned: Compaction, asking: Asking) -> Summary | None:
        """What somebody else writes, where it is worth waiting for."""
        owner, store = self.journal.head.owner, self.journal.store
        for _ in range(int(PATIENCE_S / POLL_S) if asking.is_wanted else 0):
            known = await store.compaction(owner, planned.id)
            if known is None or known.state != "running" or known.until <= self.journal.clock():
                break
            await asyncio.sleep(POLL_S)
        return await self._found(planned)

    async def _beating(self, planned: Compaction, write: Write) -> Summary | None:
        beating = asyncio.create_task(self._beat(planned))
        try:
            return await write()
        finally:
            # It is not waited for: between an answer and its keeping nothing may come.
            beating.cancel()

    async def _beat(self, planned: Compaction) -> None:
        owner, is_ours = self.journal.head.owner, True
        while is_ours:
            await asyncio.sleep(self.lease_s / BEATS)
            until = self.journal.clock() + self.lease_s
            with suppress(StoreError):
                is_ours = await self.journal.store.beat(owner, planned.id, self.holder, until)

    async def _keep(self, planned: Compaction, summary: Summary, asking: Asking) -> Summary:
        """Store what was written; where that fails it is used all the same, for it was paid for and is at hand."""
        journal, now = self.journal, self.journal.clock()
        summary = structs.replace(summary, id=planned.id)
        call = self._call(planned, asking.bill(summary), asking)
        written = journal.storable(StoredSummary(id=planned.id, summary=summary, at=now))
        try:
            is_first = await journal.store.reply(journal.head.owner, planned.id, self.holder, written, call)
            return summary if is_first else await self._found(planned) or summary
        except StoreError as error:
            _log.warning("a summary could not be kept: %s", error)
            return summary

    def _call(self, planned: Compaction, bill: Mapping[str, Usage], asking: Asking) -> Call:
        """One call for all that were asked: by the name of the last, at the prices of each."""
        return Call(
            id=self.journal.new_id(),
            branch=planned.branch,
            session=planned.base,
            usage=sum(bill.values(), Usage()),
            size=planned.size,
            kind="summary",
            model=next(reversed([*bill]), ""),
            dollars=sum(asking.price(model, usage) for model, usage in bill.items()),
            at=self.journal.clock(),
        )

    async def _found(self, planned: Compaction) -> Summary | None:
        found = await self.journal.store.written(self.journal.head.owner, [planned.id])
        # Where nothing that was said may be kept, a summary's text is not there.
        return structs.replace(found[0].summary, id=planned.id) if found and found[0].summary.text else None

    async def _end(self, planned: Compaction, state: CompactionState, error: str, asking: Asking) -> None:
        """Say that it came to nothing, and what that cost; where even that cannot be written down, the lease runs out."""
        with suppress(StoreError):
            await self.journal.store.give_up(self.journal.head.owner, planned.id, self.holder, state, error)
        with suppress(StoreError):
            await self._bill(planned, asking)

    async def _bill(self, planned: Compaction, asking: Asking) -> None:
        """Note what was spent although no summary came of it: the provider sends the bill all the same."""
        call, seen = self._call(planned, asking.bill(None), asking), self.journal.head
        store = self.journal.store
        if call.usage == Usage():
            return
        for _ in range(BILLS):
            head = await store.head(seen.owner, seen.conversation, planned.branch)
            if head is None:
                return
            with suppress(Conflict):
                await store.commit(head, Batch(at=call.at, calls=(call,)))
                return


async def settled(act: Coroutine[Any, Any, T]) -> T:
    """Let an act come to its end, also where whoever waits for it is stopped meanwhile."""
    task = asyncio.create_task(act)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # stopped once is stopped: the act has to end first
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it is of no interest any more, and asyncio would tell of it
        raise


def is_from_later(claimed: Compaction, now: float, lease_s: float = LEASE_S) -> bool:
    """Was a claim made before the clock was set back? No lease is that long, even if another machine's clock is ahead."""
    return claimed.until > now + 2 * lease_s


async def sweep(store: Store, owner: str, now: float) -> int:
    """See to what was left behind. How much there was.

    Work whose holder gave no sign of life is free for whoever needs it, and work for a session that has ended is let go.
    """
    swept = 0
    for one in await store.unfinished(owner):
        is_left = one.state == "running" and (one.until < now or is_from_later(one, now))
        if one.state == "running" and not is_left:
            continue
        session = await store.session(owner, one.base)
        if session is None or session.last is not None:
            swept += await let_go(store, owner, one, LEFT)
        elif is_left:
            swept += await store.give_up(owner, one.id, one.holder, "planned", LEFT)
    return swept


class Breaker:
    """Stops asking a model for summaries when the money is spent or it failed again and again. Both are counted from the store, so
    that neither a restart nor another program begins anew.
    """

    def __init__(self, journal: Journal, max_spend: float | None = None) -> None:
        self._journal, self._max_spend = journal, max_spend
        self.spent, self.failures, self._failed_at = 0.0, 0, 0.0
        self._is_known = False

    @property
    def is_open(self) -> bool:
        """Is nobody asked, as far as is known?"""
        is_spent = self._max_spend is not None and self.spent >= self._max_spend
        # A clock that was set back must not make the rest longer.
        is_resting = 0 <= self._journal.clock() - self._failed_at < REST_S
        return is_spent or (self.failures >= MAX_FAILURES and is_resting)

    async def may_ask(self) -> bool:
        """To be asked before every question."""
        await self.look()
        return not self.is_open

    async def look(self) -> None:
        """Learn what the store knows."""
        head = self._journal.head
        self.spent = await self._journal.store.spent(head.owner, head.conversation, "summary")
        if not self._is_known:
            self.failures, self._failed_at = await self._journal.store.failures(head.owner, head.branch)
            self._is_known = True

    def note(self, result: JobResult) -> None:
        """Take in what came of a question; what was there already says nothing about the model."""
        if result.has_failed:
            self.failures, self._failed_at = self.failures + 1, self._journal.clock()
        elif result.is_asked:
            self.failures = 0


class SummaryFunction(Protocol):
    """A function of the user's that writes summaries; an empty text means that none could be written."""

    async def __call__(
        self, messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int
    ) -> str: ...


@runtime_checkable
class Accounting(Protocol):
    """A summariser that says what its last task has cost, by model, whether it ended with a summary or not."""

    @property
    def bill(self) -> Mapping[str, Usage]: ...


class Function:
    """A function as a summariser: it is given plain messages, and its text is checked as a model's is."""

    def __init__(self, function: SummaryFunction, dialect: Dialect, count: Count) -> None:
        self.function, self._dialect, self._count = function, dialect, count

    async def write(self, task: SummaryTask) -> Summary | None:
        size = task.characters
        messages = await run_text_work(size, self._plain, task)
        text = (await self.function(messages, previous=task.previous, max_tokens=task.max_tokens)).strip()
        return await run_text_work(size + len(text), checked, text, task, self._count) if text else None

    def _plain(self, task: SummaryTask) -> list[dict[str, Any]]:
        return [plain_message(passage.message, self._dialect) for passage in task.passages]


class SharedTask:
    """One task for a summariser that others may use at the same time."""

    def __init__(self, summariser: Summariser) -> None:
        # What the last task has cost is asked for afterwards: a copy has no other task meanwhile.
        self._summariser = copy(summariser) if isinstance(summariser, Accounting) else summariser
        self._is_asked = False

    async def write(self, task: SummaryTask) -> Summary | None:
        self._is_asked = True
        return await self._summariser.write(task)

    def bill(self, summary: Summary | None = None) -> Mapping[str, Usage]:
        """What it has cost so far, by model; the last of them wrote the summary that came of it, if any."""
        asked = self._summariser
        if isinstance(asked, Accounting):
            known = asked.bill if self._is_asked else {}
            return {**known, summary.model: known.get(summary.model, Usage())} if summary else known
        name = (summary.model if summary else "") or getattr(asked, "model", "")
        return {name: summary.usage} if summary else {}


def summariser_of(
    value: Summariser | SummaryFunction | None, dialect: Dialect, count: Count
) -> Summariser | None:
    """A summariser, or a function as one, whose texts are measured by `count`.

    Raises:
        ConfigError: it is a name, whose connection nobody would close.
    """
    if isinstance(value, str):
        raise ConfigError(
            "a name is no summariser here",
            hint="give it to the constructor, or open one with `open_summariser`",
        )
    return Function(value, dialect, count) if callable(value) else value


def bill_of(asked: Summariser, summary: Summary | None) -> Mapping[str, Usage]:
    """What an answer has cost, by model, as far as that is known."""
    if isinstance(asked, SharedTask):
        return asked.bill(summary)
    return {summary.model: summary.usage} if summary else {}


def name_of(summariser: Summariser) -> str:
    """Who it is: the code that writes, and the models that it asks and how, where it says so."""
    if isinstance(summariser, Function):
        return _path(summariser.function)
    models = [writer.upstream.model for writer in getattr(summariser, "chain", ())]
    how = (getattr(summariser, "model", None), getattr(summariser, "recipe", None))
    return repr((_path(summariser), models, *how))


def _path(value: object) -> str:
    code = value if hasattr(value, "__qualname__") else type(value)
    return f"{code.__module__}.{getattr(code, '__qualname__', '')}"


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin work that goes on when the conversation that began it is gone."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task
