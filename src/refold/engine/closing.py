"""What stands for a session that was closed because the user asked for another one.

One idea: a closed session has a summary at once, a digest of its own words. What a model writes about it later is another summary,
which takes the digest's place; both are kept as they are, and whoever comes first with something better is taken.
"""

from __future__ import annotations

from copy import copy

from msgspec import Struct, structs

from refold.core.budget import exact, limit_of
from refold.core.extractive import summarise
from refold.core.fold import Folded
from refold.core.plan import SummaryRequest
from refold.engine.journal import Journal, kept_nothing
from refold.engine.memory import Memory
from refold.engine.tasks import Source
from refold.model.summary import Summary
from refold.ports.store import Compaction, Embedding, Session, Store, Written
from refold.text_work import run_text_work

RESUME_SHARE = 0.70
"""Of the context: a session that takes more comes back as its summary, so that there is room to go on."""
SUMMARY_TOKENS = 2_048
"""For the summary of a session that is closed: what a reader takes in at once."""
LEAST_TOKENS = 300
"""Of a session that a model is asked about: what it writes, with its headings, takes about as much, and a summary that is no smaller
than its source is refused."""


class Closed(Struct, frozen=True):
    """A closed session, and all that it showed at its end."""

    session: Session
    shown: Folded
    request: SummaryRequest


async def closed_session(journal: Journal, memory: Memory, session: Session) -> Closed:
    shown, last = await shown_in(journal, memory, session), session.last or 0
    return Closed(session, shown, request_of(memory, shown, session, last))


async def shown_in(journal: Journal, memory: Memory, session: Session) -> Folded:
    """What a closed session showed at its end, on this branch or on one that it has its messages from."""
    owner, last = journal.seen.owner, session.last or 0
    reading = await _on_branch_of(journal, session)
    found = await journal.store.last_change(owner, session.id, ("summarise", "reduce"))
    folded = await reading.shown_after(memory, found, last)
    items = folded.items.items
    within = [item for item in items if item.seq < last]
    if len(within) == len(items):
        return folded
    return await run_text_work(folded.shown.characters, folded.show, within)


async def _on_branch_of(journal: Journal, session: Session) -> Journal:
    seen = journal.seen
    if session.branch == seen.branch:
        return journal
    head = await journal.store.head(seen.owner, seen.conversation, session.branch)
    if head is None:
        raise kept_nothing(seen.conversation)
    reading = copy(journal)
    reading.seen = head
    return reading


def request_of(memory: Memory, shown: Folded, session: Session, last: int) -> SummaryRequest:
    """All that a session showed, to be summed up."""
    return SummaryRequest(
        first=session.first,
        last=last,
        items=shown.items.items,
        kept=(),
        previous=shown.summaries,
        max_tokens=min(SUMMARY_TOKENS, room_of(memory)),
    )


def digest_of(journal: Journal, memory: Memory, shown: Folded, session: Session, last: int) -> Written:
    """A digest of all that a session showed."""
    summary = summarise(request_of(memory, shown, session, last), shown, memory.frame)
    return Written(id=digest_id(session), summary=structs.replace(summary, reserve=()), at=journal.clock())


def digest_id(session: Session) -> str:
    """The id of the digest that a session is closed with, until there is something better."""
    return f"closing-{session.id}"


def has_own(session: Session) -> bool:
    """Has it a summary that is more than the digest it was closed with?"""
    return session.summary not in {"", digest_id(session)}


def room_of(memory: Memory) -> int:
    """What an earlier session may take of the window."""
    return max(0, int(exact(RESUME_SHARE) * limit_of(memory.frame.budget)) - memory.frame.instructions)


def source_of(memory: Memory, closed: Closed, earlier: Summary | None) -> tuple[Source, SummaryRequest]:
    """What a model is told about a closed session; where it wrote about its beginning already, only what came after that."""
    policy, request = memory.frame.policy, closed.request
    if earlier is not None:
        policy = structs.replace(policy, scope="cumulative", source="previous")
        later = tuple(item for item in request.items if item.seq >= earlier.last)
        request = structs.replace(request, previous=(earlier,), items=later)
    elif policy.source == "all":
        policy = structs.replace(policy, source="previous")
    frame = structs.replace(memory.frame, policy=policy)
    return Source(closed.shown, frame, copy(memory.secrecy)), request


async def attach(
    store: Store, owner: str, session: Session, written: Written, embedding: Embedding | None = None
) -> bool:
    """Give a closed session a summary in the place of its digest; False where it has another."""
    if not written.summary.text or has_own(session):
        return False
    return await store.attach_summary(owner, session.id, written, embedding, replaces=session.summary)


async def let_go(store: Store, owner: str, one: Compaction, why: str) -> bool:
    """End work for a session that has ended; a summary of all of it that was written takes the place of its digest.

    A session that has not even a digest has no vector either: whoever comes back to it finds what was written, and gives it both.
    """
    session = await store.session(owner, one.base) if one.state == "summarised" else None
    if session is not None and (session.last, session.summary) == (one.cut, digest_id(session)):
        for written in await store.written(owner, [one.id]):
            await attach(store, owner, session, written)
    return await store.give_up(owner, one.id, one.holder, "superseded", why)
