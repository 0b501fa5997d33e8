"""Summaries of closed sessions, written by a model.

A session that is closed gets a digest at once. A model summarises it in the background, and its summary
replaces the digest. If a session with only a digest is resumed and does not fit in full, the resume waits for
the summary. On every failure the digest stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec import structs

from refold.engine import sessions
from refold.engine.journal import Journal
from refold.engine.sessions import ClosedSession, closed_session, has_own_summary, source_of, supersede_job
from refold.engine.state import State
from refold.engine.summary_jobs import CLOSED, MOVED_ON, SummariserCall, SummaryJobs, in_background
from refold.model.errors import NotFound, RefoldError
from refold.model.summary import Summary
from refold.ports.models import Summariser
from refold.ports.records import Session, StoredSummary

_log = logging.getLogger("refold")

LEAST_TOKENS = 300
"""The smallest session that a model is asked about. A summary with its headings takes about as many tokens,
and one that is no smaller than its source is refused."""
USED = "it became the session's own summary"


class SessionSummaries:
    """Has the closed sessions of one conversation summarised, one at a time."""

    def __init__(self, journal: Journal, jobs: SummaryJobs, current: Callable[[], State]) -> None:
        self._journal, self._jobs, self._current = journal, jobs, current
        self._tasks: set[asyncio.Task[object]] = set()
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait until no summary is being written."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Cancel the summaries in progress; the sessions keep their digests."""
        stopped = set(self._tasks)
        for task in stopped:
            task.cancel()
        if stopped:
            await asyncio.wait(stopped)

    async def detach_job(self) -> asyncio.Task[Summary | None] | None:
        """Let the running job go on without the conversation, because it is paid for. Return it if it summarises
        the session about to be closed.
        """
        is_about_it, job = self._jobs.is_current, self._jobs.release()
        if job is None:
            await self._jobs.stop(MOVED_ON)
            return None
        self._hold(job)
        return job if is_about_it else None

    def begin(self, closed: str, job: asyncio.Task[Summary | None] | None) -> None:
        """Start the summary of a closed session, after the `job` that was already writing about it."""
        if self._jobs.summariser is not None and self._journal.keeps_content:
            self._hold(in_background(self._summarise(closed, self._jobs.summariser, job)))

    async def ensure_written(self, session: Session) -> None:
        """Wait for the summary of a session that is to be resumed, if it has only a digest and does not fit
        in full. Cancelling the waiter does not stop the job.
        """
        summariser = self._jobs.summariser
        if summariser is None or not self._journal.keeps_content:
            return
        closed: ClosedSession | None = None
        with suppress(RefoldError):
            closed = await self._without_summary(session.id, is_awaited=True)
        if closed is None:
            return
        task = in_background(self._summarise(session.id, summariser, is_awaited=True))
        self._hold(task)
        await asyncio.wait({task})

    def _hold(self, task: asyncio.Task[Summary | None] | asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _summarise(
        self,
        which: str,
        summariser: Summariser,
        job: asyncio.Task[Summary | None] | None = None,
        *,
        is_awaited: bool = False,
    ) -> None:
        if job is not None:
            await asyncio.wait({job})
        try:
            async with self._lock:
                closed = await self._without_summary(which, is_awaited=is_awaited)
                if closed is not None:
                    await self._write(closed, summariser, _result(job), is_awaited=is_awaited)
        except RefoldError as error:
            _log.warning("a closed session could not be summarised: %s", type(error).__name__)

    async def _without_summary(self, which: str, *, is_awaited: bool) -> ClosedSession | None:
        """Return a closed session that needs a summary. If a caller waits for it, only one that does not fit
        in full.
        """
        journal, state = self._journal, self._current()
        session = await journal.store.session(journal.head.owner, which)
        try:
            session = await sessions.resumable(journal, session) if session else None
        except NotFound:
            return None
        if session is None or has_own_summary(session):
            return None
        closed = await closed_session(journal, state, session)
        is_needed = closed.shown.tokens >= LEAST_TOKENS
        return closed if is_needed and not (is_awaited and sessions.fits(state, closed)) else None

    async def _write(
        self, closed: ClosedSession, summariser: Summariser, earlier: Summary | None, *, is_awaited: bool
    ) -> None:
        question, state = SummariserCall(summariser), self._current()
        source, request = source_of(state, closed, earlier)

        async def write() -> Summary | None:
            task = partial(source.task, request)
            return await self._jobs.answer(
                question, request, task, source.text_size, is_awaited=lambda: is_awaited
            )

        spec = self._jobs.job_spec(question, write, self._jobs.recipe(summariser, state, ""))
        wanted = structs.replace(spec, is_wanted=True)
        try:
            result = await self._jobs.run(closed.request, wanted, closed.session)
        except asyncio.CancelledError:
            if question.is_asked:
                self._jobs.report_discarded(request.first, request.last, CLOSED)
            raise
        if result.summary is not None:
            await self._attach(closed.session, result.summary)

    async def _attach(self, session: Session, summary: Summary) -> None:
        journal = self._journal
        owner, store = journal.head.owner, journal.store
        written = StoredSummary(id=summary.id, summary=summary, at=journal.clock())
        known = await store.session(owner, session.id)
        await sessions.attach_with_vector(journal, self._current(), known or session, written)
        for one in await store.unfinished(owner, session.branch):
            if one.base == session.id and one.state != "running":
                await supersede_job(store, owner, one, USED)


def _result(job: asyncio.Task[Summary | None] | None) -> Summary | None:
    """Return the summary of a job that has ended."""
    if job is None or job.cancelled() or job.exception() is not None:
        return None
    return job.result()
