"""Sessions that the user asks for: begin anew, or go on with an earlier one.

One idea: nothing is reopened and nothing is moved. A new session begins at the next message; what it carries over, nothing, a
summary, or all that an earlier session showed, is what stands in the window when it begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from msgspec import Struct, structs

from refold.core.assemble import NO_LEAD, lead_of
from refold.core.budget import tokens_of
from refold.core.fold import Folded
from refold.core.plan import request_room
from refold.core.stages.shown import Item
from refold.core.summary.facts import Facts
from refold.core.summary.ledger import EMPTY
from refold.core.user_requests import request_lines, with_requests
from refold.core.view import View
from refold.engine import snapshot
from refold.engine.closing import SUMMARY_TOKENS, Closed, attach, closed_session, digest_of, room_of
from refold.engine.journal import Journal, encoder
from refold.engine.memory import Memory
from refold.engine.notes import write_notes
from refold.model.errors import NotFound
from refold.model.summary import Summary
from refold.ports import store as kept
from refold.ports.store import Batch, Carries, Compaction, Head, Session, Store, Written
from refold.text_work import run_text_act, run_text_work

NEW, RESUMED = "a new session", "an earlier session goes on"


class Opened(Struct, frozen=True):
    """A session that was opened, and which was closed for it."""

    session: Session
    closed: str


class Resumed(Struct, frozen=True):
    """The session that was opened, whether it carries all of the earlier one or its summary, and which was closed for it."""

    session: Session
    carries: Carries
    closed: str = ""


async def begin_new(journal: Journal, memory: Memory) -> Opened:
    """Close the session and open one that knows nothing of it. Its messages stay where they are."""
    await _settle(journal, memory)
    return await _open(journal, memory, _cleared(memory.folded), NEW, kind="new", carries="none", target="")


async def resume(journal: Journal, memory: Memory, target: Session) -> Resumed:
    """Open a session that goes on with an earlier one: all of it where it fits, else its summary.

    Raises:
        NotFound: the session is undone, or the open one.
    """
    await _settle(journal, memory)
    journal.check_content()
    target = await resumable(journal, target)
    closed = await closed_session(journal, memory, target)
    carries: Carries = "full" if fits(memory, closed) else "summary"
    if carries == "full":
        folded = _carried_over(closed.shown, memory.folded)
    else:
        written = await _summary_of(journal, memory, closed)
        led = _led(memory, written.summary, closed.shown)
        folded = led.show(_compaction_in(closed.shown))
    opened = await _open(journal, memory, folded, RESUMED, kind="resume", carries=carries, target=target.id)
    return Resumed(opened.session, carries, opened.closed)


async def resumable(journal: Journal, wanted: Session) -> Session:
    """A session as it is now, which the conversation can go on with.

    Raises:
        NotFound: it cannot.
    """
    seen, store = journal.seen, journal.store
    known = await store.session(seen.owner, wanted.id)
    if known is None or await store.head(seen.owner, seen.conversation, known.branch) is None:
        raise NotFound(
            "this session is not one of this conversation's", hint="open the conversation it belongs to"
        )
    if not can_be_resumed(known, await line_of(store, seen)):
        raise NotFound(
            "this session cannot be resumed here",
            hint="it is open, was undone, or ends on another branch; `refold resume CONV` lists those that can be",
        )
    return known


async def line_of(store: Store, head: Head) -> dict[str, int]:
    """The branches that hold a branch's messages, itself the first, each with the number up to which they are its own."""
    line, here = {head.branch: head.next_seq}, head
    while here.base:
        line[here.base] = min(here.base_seq, line[here.branch])
        base = await store.head(head.owner, head.conversation, here.base)
        if base is None:
            break
        here = base
    return line


def can_be_resumed(one: Session, line: Mapping[str, int]) -> bool:
    """Is it closed, in effect, and all of it on the line of a branch?"""
    return one.state == "live" and one.last is not None and one.last <= line.get(one.branch, -1)


def fits(memory: Memory, closed: Closed) -> bool:
    """Is there room for all that a session showed?"""
    return closed.shown.tokens <= room_of(memory)


async def _settle(journal: Journal, memory: Memory) -> None:
    """Keep all that is new, and which messages hold secrets: they are about to be let go."""
    await run_text_act(memory.text_size, memory.secrecy.known, memory.folded)
    await journal.save(memory)


async def _open(
    journal: Journal,
    memory: Memory,
    folded: Folded,
    reason: str,
    *,
    kind: kept.SessionKind,
    carries: Carries,
    target: str,
) -> Opened:
    """One batch: the open session ends before the next message, the new one begins there, shown as `folded`.

    What the one before was about is summed up, so that it can be found and resumed.
    """
    size, closed = folded.size, journal.session
    text_size = max(memory.text_size, folded.shown.characters)
    digest: Written | None = None
    if size > closed.first:
        digest = await run_text_act(text_size, digest_of, journal, memory, memory.folded, closed, size)
    session = Session(
        id=journal.new_id(), branch=journal.seen.branch, first=size, kind=kind, carries=carries, target=target,
        at=journal.clock(),
    )  # fmt: skip
    change = await run_text_act(text_size, _beginning, journal, memory, folded, reason, session)
    memory.restore(folded)
    notes = write_notes(journal.noted(memory))
    await journal.commit(Batch(at=journal.clock(), changes=(change,), notes=notes))
    await journal.load(memory)
    if digest is not None and journal.keeps_content:
        await attach_with_vector(journal, memory, closed, digest)
    return Opened(session, closed.id)


def _beginning(
    journal: Journal, memory: Memory, folded: Folded, reason: str, session: Session
) -> kept.Change:
    """How the branch is shown when a session begins. A summary that is shown for the first time is kept by its handle."""
    size, now = folded.size, journal.clock()
    change = Compaction(
        id=journal.new_id(), branch=journal.seen.branch, kind="reduce", base=journal.session.id, cut=size,
        size=size, reason=reason, before=memory.folded.tokens, after=folded.tokens,
        shown=snapshot.write(folded, encoder(memory)), at=now,
    )  # fmt: skip
    new = [structs.replace(one, reserve=()) for one in folded.past[-1:]]
    return kept.Change(change, Written(id=change.id, summary=new[0], at=now) if new else None, session)


def _cleared(folded: Folded) -> Folded:
    """Nothing shown and nothing known, at the same place of the branch."""
    view = folded.shown
    empty = View(view.dialect, view.counter, view.key, view.continues)
    return structs.replace(
        folded,
        branch=empty,
        shown=empty,
        edited=(),
        base=folded.size,
        summaries=(),
        past=(),
        numbered=folded.numbered + len(folded.past),
        lead=NO_LEAD,
        settled=-1,
        declined=-1,
        facts=Facts(),
        ledger=EMPTY,
        origin=folded.size,
        told=folded.whole,
        task=(),
        asked=None,
        held=frozenset(),
    )


def _carried_over(earlier: Folded, now: Folded) -> Folded:
    """What an earlier session showed, at the place where the branch is now."""
    cleared = _cleared(now)
    return structs.replace(
        cleared,
        shown=earlier.shown,
        edited=tuple(earlier.number(index) for index in range(len(earlier.shown))),
        summaries=earlier.summaries,
        lead=earlier.lead,
        facts=earlier.facts,
        ledger=earlier.ledger,
        task=earlier.task,
        asked=earlier.question_before(earlier.size),
    )


def _led(memory: Memory, summary: Summary, earlier: Folded) -> Folded:
    """Nothing but a summary of what an earlier session showed, at the place where the branch is now."""
    frame = memory.frame
    cleared = structs.replace(_cleared(memory.folded), ledger=earlier.ledger, task=earlier.task)
    view, older = cleared.shown, tokens_of(frame.policy.ancestors, frame.budget)
    room = request_room(frame, SUMMARY_TOKENS)
    lines = request_lines(earlier, (), earlier.size, room, counter=view.counter)
    summary = with_requests(summary, lines, view.counter)
    whole = structs.replace(summary, reserve=(), scope="cumulative", last=cleared.size)
    lead = lead_of((whole,), frame.policy, view.dialect, view.counter, older, frame.fixed)
    return cleared.lead_by((whole,), lead)


def _compaction_in(shown: Folded) -> list[Item]:
    """The provider's own compaction in what a session showed, and the results of its calls: no summary stands for these."""
    wanted = shown.compacted
    return [item for item in shown.items.items if item.seq in wanted]


async def _summary_of(journal: Journal, memory: Memory, closed: Closed) -> Written:
    """The summary of a closed session, written now where it has none, or none that this window has room for."""
    session = closed.session
    found = await journal.store.written(journal.seen.owner, [session.summary] if session.summary else [])
    if found and _led(memory, found[0].summary, closed.shown).tokens <= room_of(memory):
        return found[0]
    last, text_size = closed.request.last, closed.shown.branch.characters
    written = await run_text_act(text_size, digest_of, journal, memory, closed.shown, session, last)
    if not found:
        await attach_with_vector(journal, memory, session, written)
    return written


async def attach_with_vector(journal: Journal, memory: Memory, session: Session, written: Written) -> None:
    """Give a closed session its summary, and what it was about."""
    secrecy, folded = copy(memory.secrecy), memory.folded  # as they are: an act may be going on
    secrets = await run_text_work(folded.branch.characters, secrecy.known, folded)
    found = await journal.meaning.embed([(session.id, written)], written.at, secrets)
    await attach(journal.store, journal.seen.owner, session, written, *found)
