"""Sessions that the user asks for: begin anew, or go on with an earlier one.

One idea: nothing is reopened and nothing is moved. A new session begins at the next message; what it carries over, nothing, a
summary, or all that an earlier session showed, is what stands in the window when it begins.
"""

from __future__ import annotations

from msgspec import Struct, structs

from refold.core.assemble import NO_LEAD, lead_of
from refold.core.budget import exact, limit_of, tokens_of
from refold.core.extractive import summarise
from refold.core.fold import Folded
from refold.core.plan import SummaryRequest
from refold.core.summary.facts import Facts
from refold.core.summary.ledger import EMPTY
from refold.core.view import View
from refold.engine import snapshot
from refold.engine.journal import Journal, encoder
from refold.engine.memory import Memory
from refold.engine.notes import write_notes
from refold.model.errors import NotFound
from refold.model.summary import Summary
from refold.ports import store as kept
from refold.ports.store import Batch, Carries, Compaction, Session, Written

RESUME_SHARE = 0.70
"""Of the context: a session that takes more comes back as its summary, so that there is room to go on."""
SUMMARY_TOKENS = 2_048
"""For the summary of a session that is closed: what a reader takes in at once."""
NEW, RESUMED = "a new session", "an earlier session goes on"


class Resumed(Struct, frozen=True):
    """The session that was opened, and whether it carries all of the earlier one or its summary."""

    session: Session
    carries: Carries


async def begin_new(journal: Journal, memory: Memory) -> Session:
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
    known = await journal.store.session(journal.seen.owner, target.id)
    if known is None or known.branch != journal.seen.branch:
        raise NotFound(
            "this session is not one of this conversation's", hint="open the conversation it belongs to"
        )
    if known.state == "undone" or known.id == journal.session.id:
        raise NotFound(
            "this session cannot be resumed", hint="it is open, or was undone; see `refold sessions`"
        )
    target = known
    last = target.last if target.last is not None else memory.folded.size
    shown = await _shown_in(journal, memory, target, last)
    carries: Carries = "full" if shown.tokens <= _room(memory) else "summary"
    if carries == "full":
        folded = _carried_over(shown, memory.folded)
    else:
        written = await _summary_of(journal, memory, target, shown, last)
        folded = _led(memory, written.summary)
    opened = await _open(journal, memory, folded, RESUMED, kind="resume", carries=carries, target=target.id)
    return Resumed(opened, carries)


async def _settle(journal: Journal, memory: Memory) -> None:
    """Keep all that is new, and which messages hold secrets: they are about to be let go."""
    memory.secrecy.known(memory.folded)
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
) -> Session:
    """One batch: the open session ends before the next message, the new one begins there, shown as `folded`.

    What the one before was about is summed up, so that it can be found and resumed.
    """
    size, closed = folded.size, journal.session
    digest = _written(journal, memory, memory.folded, closed, size) if size > closed.first else None
    session = Session(
        id=journal.new_id(), branch=journal.seen.branch, first=size, kind=kind, carries=carries, target=target,
        at=journal.clock(),
    )  # fmt: skip
    change = _beginning(journal, memory, folded, reason, session)
    memory.restore(folded)
    notes = write_notes(journal.noted(memory))
    await journal.commit(Batch(at=journal.clock(), changes=(change,), notes=notes))
    await journal.load(memory)
    if digest is not None and journal.keeps_content:
        await _attach(journal, memory, closed, digest)
    return session


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


async def _shown_in(journal: Journal, memory: Memory, target: Session, last: int) -> Folded:
    """What a session showed at its end."""
    owner, store = journal.seen.owner, journal.store
    found = await store.last_change(owner, target.id, ("summarise", "reduce"))
    folded = await journal.shown_after(memory, found, last)
    items = folded.items.items
    within = [item for item in items if item.seq < last]
    return folded if len(within) == len(items) else folded.show(within)


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
        task=None,
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
    )


def _led(memory: Memory, summary: Summary) -> Folded:
    """Nothing but a summary, at the place where the branch is now."""
    cleared, frame = _cleared(memory.folded), memory.frame
    view, older = cleared.shown, tokens_of(frame.policy.ancestors, frame.budget)
    whole = structs.replace(summary, reserve=(), scope="cumulative", last=cleared.size)
    lead = lead_of((whole,), frame.policy, view.dialect, view.counter, older, frame.fixed.system)
    return cleared.lead_by((whole,), lead)


async def _summary_of(journal: Journal, memory: Memory, target: Session, shown: Folded, last: int) -> Written:
    """The summary of a closed session, written now where it has none, or none that this window has room for."""
    owner = journal.seen.owner
    found = await journal.store.written(owner, [target.summary] if target.summary else [])
    if found and _led(memory, found[0].summary).tokens <= _room(memory):
        return found[0]
    written = _written(journal, memory, shown, target, last)
    if not found:
        await _attach(journal, memory, target, written)
    return written


async def _attach(journal: Journal, memory: Memory, session: Session, written: Written) -> None:
    """Give a closed session its summary, and what it was about."""
    secrets = memory.secrecy.known(memory.folded)
    found = await journal.meaning.embed([(session.id, written)], written.at, secrets)
    await journal.store.attach_summary(journal.seen.owner, session.id, written, *found)


def _room(memory: Memory) -> int:
    """What an earlier session may take of the window."""
    return max(0, int(exact(RESUME_SHARE) * limit_of(memory.frame.budget)) - memory.frame.cost.total.tokens)


def _written(journal: Journal, memory: Memory, shown: Folded, session: Session, last: int) -> Written:
    """A digest of all that a session showed."""
    request = SummaryRequest(
        first=session.first,
        last=last,
        items=shown.items.items,
        kept=(),
        previous=shown.summaries,
        max_tokens=min(SUMMARY_TOKENS, _room(memory)),
    )
    summary = structs.replace(summarise(request, shown, memory.frame), reserve=())
    return Written(id=f"closing-{session.id}", summary=summary, at=journal.clock())
