"""Sessions: begin a new one, resume an earlier one, and summarise closed ones.

No session is reopened and no message is moved. A new session begins at the next message, and shows at its
start nothing, a summary, or all messages that an earlier session showed. A closed session has a digest of its
own words at once. A model summarises it in the background (`SessionSummaries`), and its summary replaces the
digest. If a session with only a digest is resumed and does not fit in full, the resume waits for the summary.
Messages that are added meanwhile belong to the new session: it begins at the number that the next message had
when the resume was asked for. On every failure the digest stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from functools import partial

from msgspec import Struct, structs

from refold.core.assemble import NO_LEAD, lead_of
from refold.core.digest.facts import Facts
from refold.core.digest.ledger import EMPTY
from refold.core.extractive_summary import summarise
from refold.core.fold import FoldedBranch
from refold.core.plan import SummaryRequest, pinned_units, request_room
from refold.core.stage import Item
from refold.core.summary_text import request_lines, with_requests
from refold.engine.damage import readable_summaries
from refold.engine.journal import Journal, conversation_gone, empty_view, encoder, write_notes, write_snapshot
from refold.engine.state import State
from refold.engine.summary_jobs import (
    CLOSED,
    MOVED_ON,
    JobResult,
    SummariserCall,
    SummaryJobs,
    attach,
    digest_id,
    has_own_summary,
    supersede_job,
)
from refold.engine.summary_source import SummarySource
from refold.model.errors import NotFound, RefoldError
from refold.model.summary import Summary
from refold.model.tokens import tokens_of
from refold.ports import records
from refold.ports.models import Summariser
from refold.ports.records import Batch, Carries, Compaction, Head, Session, SessionOrder, StoredSummary
from refold.ports.store import Store, SummaryQueue
from refold.text_work import run_text_work

NEW, RESUMED = "a new session", "an earlier session goes on"
SUMMARY_TOKENS = 2_048
"""The size of a closed session's summary: as much as a reader takes in at once."""


class OpenedSession(Struct, frozen=True):
    """A session that was opened, the content it carries from an earlier one, and the id of the session that
    was closed for it.
    """

    session: Session
    carries: Carries = "none"
    closed: str = ""


async def cleared(state: State) -> State:
    """Return the state of a new session: it shows no message, but knows the secrets of the earlier ones."""
    state = await _with_secrets(state)
    return state.showing(_cleared(state.folded))


async def begin_new(journal: Journal, state: State, new: State) -> OpenedSession:
    """Close the session and open one with a cleared state. The messages stay in the branch."""
    state = structs.replace(state, secrecy=new.secrecy)
    return await _open(journal, state, new.folded, NEW, kind="new", carries="none", target="")


async def resume(journal: Journal, state: State, target: Session, first: int) -> OpenedSession:
    """Open a session that continues an earlier one: with all its messages if they fit, else with its summary. It
    begins with the message `first`, unless the open session begins after that.

    Raises:
        NotFound: the session was undone, or is the open one.
    """
    journal.check_content()
    state = await _with_secrets(state)
    target = await resumable(journal, target)
    closed = await closed_session(journal, state, target)
    carries: Carries = "full" if fits(state, closed) else "summary"
    empty = _cleared(state.folded, max(first, journal.session.first))
    if carries == "full":
        folded = _carried_over(closed.shown, empty)
    else:
        written = await _summary_of(journal, state, closed)
        led = _with_summary(state, empty, written.summary, closed.shown)
        folded = led.show(_kept_beside_summary(closed.shown, state.folded.pinned))
    return await _open(journal, state, folded, RESUMED, kind="resume", carries=carries, target=target.id)


async def resumable(journal: Journal, wanted: Session) -> Session:
    """Return the session as the store has it now, if the conversation can resume it.

    Raises:
        NotFound: it cannot be resumed.
    """
    head, store = journal.head, journal.store
    known = await store.session(head.owner, wanted.id)
    if known is None or await store.head(head.owner, head.conversation, known.branch) is None:
        raise NotFound(
            "this session is not one of this conversation's", hint="open the conversation it belongs to"
        )
    if not can_be_resumed(known, await line_of(store, head)):
        raise NotFound(
            "this session cannot be resumed here",
            hint="it is open, was undone, or ends on another branch; `refold resume CONV` lists those that can be",
        )
    return known


async def line_of(store: Store, head: Head) -> dict[str, int]:
    """Return the branches that hold a branch's messages, itself first, each with the number of messages it
    contributes up to.
    """
    line, here = {head.branch: head.next_seq}, head
    while here.base:
        line[here.base] = min(here.base_seq, line[here.branch])
        base = await store.head(head.owner, head.conversation, here.base)
        if base is None:
            break
        here = base
    return line


def can_be_resumed(one: Session, line: Mapping[str, int]) -> bool:
    """Whether a session is closed, in effect, and entirely on the line of a branch."""
    return one.state == "live" and one.last is not None and one.last <= line.get(one.branch, -1)


def fits(state: State, closed: ClosedSession) -> bool:
    """Whether there is room for all messages that a session showed."""
    return closed.shown.tokens <= room_of(state)


async def _with_secrets(state: State) -> State:
    """Return the state with all of its secrets known, because the messages that hold them are about to leave
    memory.
    """
    secrecy = await run_text_work(state.text_size, state.secrecy.search, state.folded)
    return structs.replace(state, secrecy=secrecy)


async def _open(
    journal: Journal,
    state: State,
    folded: FoldedBranch,
    reason: str,
    *,
    kind: records.SessionKind,
    carries: Carries,
    target: str,
) -> OpenedSession:
    """Commit one batch: the open session ends before the next message, and the new one begins there, showing
    `folded`. The closed session gets a digest, so that it can be found and resumed.
    """
    size, closed = folded.size, journal.session
    text_size = max(state.text_size, folded.shown.characters)
    digest: StoredSummary | None = None
    if size > closed.first:
        shown = await _shown_before(state.folded, size)
        digest = await run_text_work(text_size, digest_of, journal, state, shown, closed, size)
    session = Session(
        id=journal.new_id(), branch=journal.head.branch, first=size, kind=kind, carries=carries, target=target,
        at=journal.clock(),
    )  # fmt: skip
    change = await run_text_work(text_size, _first_change, journal, state, folded, reason, session)
    notes = write_notes(journal.notes_of(state.showing(folded)))
    await journal.commit(Batch(at=journal.clock(), changes=(change,), notes=notes))
    if digest is not None and journal.keeps_content:
        await attach_with_vector(journal, state, closed, digest)
    return OpenedSession(session, carries, closed.id)


def _first_change(
    journal: Journal, state: State, folded: FoldedBranch, reason: str, session: Session
) -> records.InstalledCompaction:
    """Return the change that a session begins with. A summary that is shown for the first time is stored
    under its handle.
    """
    size, now = folded.size, journal.clock()
    change = Compaction(
        id=journal.new_id(), branch=journal.head.branch, kind="reduce", base=journal.session.id, cut=size,
        size=size, reason=reason, moment=session.kind, before=state.folded.tokens, after=folded.tokens,
        shown=write_snapshot(folded, encoder(state)), at=now,
    )  # fmt: skip
    new = [structs.replace(one, reserve=()) for one in folded.past[-1:]]
    return records.InstalledCompaction(
        change, StoredSummary(id=change.id, summary=new[0], at=now) if new else None, session
    )


def _cleared(folded: FoldedBranch, first: int | None = None) -> FoldedBranch:
    """Return the branch without shown messages and facts, before the message `first`, by default at its end."""
    empty, first = empty_view(folded.shown), folded.size if first is None else first
    cleared = structs.replace(
        folded,
        branch=empty,
        shown=empty,
        edited=(),
        base=first,
        summaries=(),
        past=(),
        numbered=folded.numbered + len(folded.past),
        lead=NO_LEAD,
        settled=-1,
        declined=-1,
        facts=Facts(),
        origin=first,
        told=folded.told + folded.branch.tokens_before(max(0, first - folded.origin)),
        task=(),
        asked=(),
        held=frozenset(),
    )
    return cleared.with_ledger(EMPTY)


def _carried_over(earlier: FoldedBranch, empty: FoldedBranch) -> FoldedBranch:
    """Return an empty branch with the messages that an earlier session showed."""
    return structs.replace(
        empty.with_ledger(earlier.ledger),
        shown=earlier.shown,
        edited=tuple(earlier.number(index) for index in range(len(earlier.shown))),
        summaries=earlier.summaries,
        lead=earlier.lead,
        facts=earlier.facts,
        task=earlier.task,
        asked=earlier.asked_before(earlier.size),
    )


def _with_summary(state: State, empty: FoldedBranch, summary: Summary, earlier: FoldedBranch) -> FoldedBranch:
    """Return an empty branch with nothing but the summary of an earlier session."""
    frame = state.frame
    cleared = structs.replace(empty.with_ledger(earlier.ledger), task=earlier.task)
    view, older = cleared.shown, tokens_of(frame.policy.ancestors, frame.budget)
    room = request_room(frame, SUMMARY_TOKENS)
    lines = request_lines(earlier, (), earlier.size, room, counter=view.counter)
    summary = with_requests(summary, lines, view.counter)
    summary = earlier.with_gaps(summary)
    since = ((summary.last, cleared.size),) if summary.last < cleared.size else ()
    whole = structs.replace(
        summary,
        reserve=(),
        scope="cumulative",
        last=cleared.size,
        gaps=(*summary.gaps, *since),
        told=-1,
        model_read=-1,
        native=None,
    )  # its messages have other numbers here, and are not read again
    lead = lead_of((whole,), frame.policy, view.dialect, view.counter, older, frame.fixed)
    return cleared.lead_by((whole,), lead)


def _kept_beside_summary(shown: FoldedBranch, pinned: frozenset[int]) -> list[Item]:
    """Return the messages of a session that no summary replaces: the pinned ones, and the provider's own
    compaction with the results of its calls.
    """
    wanted = {*shown.compacted, *pinned_units(structs.replace(shown, pinned=pinned))}
    return [item for item in shown.items.items if item.seq in wanted]


async def _summary_of(journal: Journal, state: State, closed: ClosedSession) -> StoredSummary:
    """Return the summary of a closed session. It is written now if there is none, or none that can be read and fits this
    window.
    """
    session = closed.session
    ids = [session.summary] if session.summary else []
    found = await readable_summaries(journal.store, journal.head.owner, ids)
    empty = _cleared(state.folded)
    if found and _with_summary(state, empty, found[0].summary, closed.shown).tokens <= room_of(state):
        return found[0]
    last, text_size = closed.request.last, closed.shown.branch.characters
    written = await run_text_work(text_size, digest_of, journal, state, closed.shown, session, last)
    if not found:
        await attach_with_vector(journal, state, session, written)
    return written


async def attach_with_vector(
    journal: Journal, state: State, session: Session, written: StoredSummary
) -> None:
    """Attach a summary to a closed session, with its embedding."""
    secrets = (await _with_secrets(state)).secrecy.known
    found = await journal.meaning.embed([(session.id, written)], written.at, secrets)
    await attach(journal.store, journal.head.owner, session, written, *found)


class ClosedSession(Struct, frozen=True):
    """A closed session, and the messages that it showed at its end."""

    session: Session
    shown: FoldedBranch
    request: SummaryRequest


async def closed_session(journal: Journal, state: State, session: Session) -> ClosedSession:
    shown, last = await shown_in(journal, state, session), session.last or 0
    shown = await (await _on_branch_of(journal, session)).with_unread(state, shown)
    return ClosedSession(session, shown, request_of(state, shown, session, last))


async def shown_in(journal: Journal, state: State, session: Session) -> FoldedBranch:
    """Return the messages that a closed session showed at its end, on this branch or on one of its base
    branches.
    """
    owner, last = journal.head.owner, session.last or 0
    reading = await _on_branch_of(journal, session)
    found = await journal.store.last_change(owner, session.id, ("summarise", "reduce"))
    return await _shown_before(await reading.shown_after(state, found, last), last)


async def _shown_before(folded: FoldedBranch, last: int) -> FoldedBranch:
    """Return the branch without the shown messages from the number `last` on."""
    items = folded.items.items
    within = [item for item in items if item.seq < last]
    if len(within) == len(items):
        return folded
    return await run_text_work(folded.shown.characters, folded.show, within)


async def _on_branch_of(journal: Journal, session: Session) -> Journal:
    here = journal.head
    if session.branch == here.branch:
        return journal
    head = await journal.store.head(here.owner, here.conversation, session.branch)
    if head is None:
        raise conversation_gone(here.conversation)
    reading = copy(journal)
    reading.head = head
    return reading


def request_of(state: State, shown: FoldedBranch, session: Session, last: int) -> SummaryRequest:
    """Return the request for a summary of all messages that a session showed."""
    return SummaryRequest(
        first=session.first,
        last=last,
        items=shown.items.items,
        kept=(),
        previous=shown.summaries,
        max_tokens=min(SUMMARY_TOKENS, room_of(state)),
    )


def digest_of(
    journal: Journal, state: State, shown: FoldedBranch, session: Session, last: int
) -> StoredSummary:
    """Return a digest of all messages that a session showed."""
    secrecy = structs.replace(state.secrecy, searched=0).search(shown)
    shown = structs.replace(shown, secrets=secrecy.known)
    summary = summarise(request_of(state, shown, session, last), shown, state.frame)
    return StoredSummary(
        id=digest_id(session), summary=structs.replace(summary, reserve=()), at=journal.clock()
    )


def room_of(state: State) -> int:
    """Tokens of the window that an earlier session may take."""
    budget = state.frame.budget
    return max(0, tokens_of(state.frame.policy.resume, budget) - state.frame.instructions)


def source_of(
    state: State, closed: ClosedSession, earlier: Summary | None
) -> tuple[SummarySource, SummaryRequest]:
    """Return the source for a model's summary of a closed session. If a model has already summarised its
    beginning, only the messages after that are included.
    """
    policy, request = state.frame.policy, closed.request
    if earlier is not None:
        policy = structs.replace(policy, scope="cumulative", source="previous")
        later = tuple(item for item in request.items if item.seq >= earlier.last)
        request = structs.replace(request, previous=(earlier,), items=later)
    elif policy.source == "all":
        policy = structs.replace(policy, source="previous")
    frame = structs.replace(state.frame, policy=policy)
    return SummarySource(closed.shown, frame, state.secrecy), request


# Summaries of closed sessions, written by a model

_log = logging.getLogger("refold")

LEAST_TOKENS = 300
"""The smallest session that a model is asked about. A summary with its headings takes about as many tokens,
and one that is no smaller than its source is refused."""
USED = "it became the session's own summary"


class SessionSummaries:
    """Has the closed sessions of one conversation summarised, one at a time."""

    def __init__(self, journal: Journal, jobs: SummaryJobs) -> None:
        self._journal, self._jobs = journal, jobs
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
        if self._jobs.summariser is None or not self._journal.keeps_content:
            return
        if self._jobs.queue is not None:
            self._hold(self._jobs.in_background(self._order(closed, self._jobs.queue)))
        else:
            self._hold(self._jobs.in_background(self._summarise(closed, self._jobs.summariser, job)))

    async def _order(self, closed: str, queue: SummaryQueue) -> None:
        """Have a worker summarise a closed session."""
        head, frame = self._journal.head, self._jobs.state.frame
        order = SessionOrder(
            owner=head.owner,
            conversation=head.conversation,
            branch=head.branch,
            session=closed,
            model=self._journal.model,
            budget=frame.budget,
            policy=frame.policy.without_plugins,
        )
        try:
            await queue.order_session(order)
        except RefoldError as error:
            _log.warning("the summary of a closed session could not be queued: %s", type(error).__name__)

    async def fulfil(self, which: str, summariser: Summariser) -> JobResult:
        """Write the summary of a closed session, in the process of a worker. One that a model has written for its beginning is
        continued.

        Raises:
            RefoldError: the store failed, or no summary could be written; the order can be tried again.
        """
        closed = await self._without_summary(which, is_awaited=False)
        if closed is None:
            return JobResult()
        store, owner = self._journal.store, self._journal.head.owner
        known = [one for one in await store.unfinished(owner, closed.session.branch) if one.base == which]
        written = await store.written(owner, [one.id for one in known if one.state == "summarised"])
        earlier = max((one.summary for one in written if one.summary.text), key=_last, default=None)
        return await self._write(closed, summariser, earlier, is_awaited=False)

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
        task = self._jobs.in_background(self._summarise(session.id, summariser, is_awaited=True))
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
        journal, state = self._journal, self._jobs.state
        session = await journal.store.session(journal.head.owner, which)
        try:
            session = await resumable(journal, session) if session else None
        except NotFound:
            return None
        if session is None or has_own_summary(session):
            return None
        closed = await closed_session(journal, state, session)
        is_needed = closed.shown.tokens >= LEAST_TOKENS
        return closed if is_needed and not (is_awaited and fits(state, closed)) else None

    async def _write(
        self, closed: ClosedSession, summariser: Summariser, earlier: Summary | None, *, is_awaited: bool
    ) -> JobResult:
        question, state = SummariserCall(summariser), self._jobs.state
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
        return result

    async def _attach(self, session: Session, summary: Summary) -> None:
        journal = self._journal
        owner, store = journal.head.owner, journal.store
        written = StoredSummary(id=summary.id, summary=summary, at=journal.clock())
        known = await store.session(owner, session.id)
        await attach_with_vector(journal, self._jobs.state, known or session, written)
        for one in await store.unfinished(owner, session.branch):
            if one.base == session.id and one.state != "running":
                await supersede_job(store, owner, one, USED)


def _last(summary: Summary) -> int:
    return summary.last


def _result(job: asyncio.Task[Summary | None] | None) -> Summary | None:
    """Return the summary of a job that has ended."""
    if job is None or job.cancelled() or job.exception() is not None:
        return None
    return job.result()
