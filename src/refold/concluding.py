"""Sessions that were closed, summed up by a model.

One idea: nobody waits for it, unless they need it. A session that the user leaves is closed with a digest, and a model writes about it
in the background; whoever comes back to it before there is anything but the digest, and has no room for all of it, has it written
then. Whatever goes wrong, the digest stands.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import structs

from refold.conversation import held
from refold.engine import sessions
from refold.engine.author import Question
from refold.engine.closing import LEAST_TOKENS, Closed, closed_session, has_own, let_go, source_of
from refold.model.errors import NotFound, RefoldError
from refold.model.summary import Summary
from refold.ports.store import Session, Written
from refold.ports.summariser import Summariser
from refold.rerunning import Rerunning

_log = logging.getLogger("refold")

USED = "the session has it for its own"


class Concluding(Rerunning):
    """A kept conversation whose closed sessions are summed up."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._concluding: set[asyncio.Task[Any]] = set()
        self._one_conclusion = asyncio.Lock()

    async def ready(self) -> None:
        """Wait until no summary is being written, those of closed sessions among them."""
        await super().ready()
        while self._concluding:
            await asyncio.wait(set(self._concluding))

    async def close(self) -> None:
        """Stop what goes on in the background; closed sessions keep their digests then."""
        stopped = set(self._concluding)
        for task in stopped:
            task.cancel()
        if stopped:
            await asyncio.wait(stopped)
        await super().close()

    def _in_background(self, task: asyncio.Task[Any]) -> None:
        self._concluding.add(task)
        task.add_done_callback(self._concluding.discard)

    async def _leave(self) -> asyncio.Task[Summary | None] | None:
        """What is being written about the session that is about to be closed: it is paid for, and goes on. Anything else that is
        being written is of no use any more.
        """
        writing, asked = self._writing, self._asked
        is_about_it = self._is_writing and asked is not None and asked.place == self._place
        if writing is None or not (is_about_it and self._journal.keeps_content):
            await self._stop_writing()
            return None
        self._in_background(writing)
        self._writing = None
        return writing

    def _conclude_later(self, closed: str, writing: asyncio.Task[Summary | None] | None) -> None:
        """Have a session that was closed summed up, where there is a model for it."""
        if self._summariser is not None and self._journal.keeps_content:
            self._in_background(held(self._conclude(closed, self._summariser, writing)))

    async def _have_concluded(self, session: Session) -> None:
        """Have a session summed up that somebody wants to go on with, where its digest is all there is. Who stops waiting does
        not stop the work.
        """
        if self._summariser is None or not self._journal.keeps_content:
            return
        closed: Closed | None = None
        with suppress(RefoldError):
            closed = await self._unconcluded(session.id, is_awaited=True)
        if (
            closed is None
        ):  # looked at before the turn comes: who needs no summary does not wait for another's
            return
        task = held(self._conclude(session.id, self._summariser, is_awaited=True))
        self._in_background(task)
        await asyncio.wait({task})

    async def _conclude(
        self,
        which: str,
        summariser: Summariser,
        writing: asyncio.Task[Summary | None] | None = None,
        *,
        is_awaited: bool = False,
    ) -> None:
        if writing is not None:
            await asyncio.wait({writing})
        try:
            async with self._one_conclusion:
                closed = await self._unconcluded(which, is_awaited=is_awaited)
                if closed is not None:
                    await self._sum_up(closed, summariser, _outcome(writing), is_awaited=is_awaited)
        except RefoldError as error:
            _log.warning("a closed session could not be summed up: %s", type(error).__name__)

    async def _unconcluded(self, which: str, *, is_awaited: bool) -> Closed | None:
        """A closed session of which there is but a digest; one that somebody waits for only where all of it is too much."""
        journal, memory = self._journal, self._talk.memory
        session = await journal.store.session(journal.seen.owner, which)
        try:
            session = await sessions.resumable(journal, session) if session else None
        except NotFound:
            return None
        if session is None or has_own(session):
            return None
        closed = await closed_session(journal, memory, session)  # it shares nothing with memory that changes
        is_needed = closed.shown.tokens >= LEAST_TOKENS
        return closed if is_needed and not (is_awaited and sessions.fits(memory, closed)) else None

    async def _sum_up(
        self, closed: Closed, summariser: Summariser, earlier: Summary | None, *, is_awaited: bool
    ) -> None:
        question = Question(summariser)
        source, request = source_of(self._talk.memory, closed, earlier)

        async def write() -> Summary | None:
            return await self._put(
                question,
                request,
                partial(source.task, request),
                source.text_size,
                is_awaited=lambda: is_awaited,
            )

        asking = self._asking(question, write, self._recipe(summariser, ""))
        outcome = await self._worked(closed.request, structs.replace(asking, is_wanted=True), closed.session)
        if outcome.summary is not None:
            await self._attach(closed.session, outcome.summary)

    async def _attach(self, session: Session, summary: Summary) -> None:
        journal = self._journal
        owner, store = journal.seen.owner, journal.store
        written = Written(id=summary.id, summary=summary, at=journal.clock())
        known = await store.session(owner, session.id)
        await sessions.attach_with_vector(journal, self._talk.memory, known or session, written)
        for one in await store.unfinished(owner, session.branch):
            if one.base == session.id and one.state != "running":
                await let_go(store, owner, one, USED)


def _outcome(writing: asyncio.Task[Summary | None] | None) -> Summary | None:
    """What came of something that has ended."""
    if writing is None or writing.cancelled() or writing.exception() is not None:
        return None
    return writing.result()
