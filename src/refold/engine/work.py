"""Writing a summary as work that survives: written down before it begins, and its result before anything is done with it.

One idea: the compaction's id is the same for the same work, so whoever comes to it, after a crash or beside another process,
finds how far it is. One holder at a time has it, for as long as they give signs of life; an answer that was paid for is stored
at once and never asked for again.

    planned -> running -> summarised -> installed
                  |            |
                failed     superseded
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import structs

from refold.core.plan import SummaryRequest
from refold.engine.journal import Journal
from refold.model.errors import StoreError
from refold.model.summary import Summary
from refold.ports.store import Call, Compaction, CompactionState, Store, Written

LEASE_S = 60.0
"""How long nobody else touches what is in hand: longer than a pause of the machine, shorter than anybody's patience."""
BEATS = 3
"""Signs of life per lease, so that one may get lost."""
LEFT = "whoever was at work on it ended without a word"

Write = Callable[[], Awaitable[Summary | None]]


class Work:
    """What one process does for one branch. `holder` tells processes apart."""

    def __init__(self, journal: Journal, holder: str, lease_s: float = LEASE_S) -> None:
        self.journal, self.holder, self.lease_s = journal, holder, lease_s

    async def summarise(
        self, request: SummaryRequest, recipe: str, write: Write, dollars: Callable[[Summary], float]
    ) -> Summary | None:
        """Have the summary written, unless it is written already or in somebody else's hands.

        `recipe` is the hash of how it is to be made: another focus or another model is other work.
        """
        planned = await self._plan(request, recipe)
        if planned.state not in ("planned", "running"):
            return await self._found(planned)  # whatever became of it since: what was written is there
        if await self._claim(planned) is None:
            return None
        try:
            summary = await self._beating(planned, write)
        except asyncio.CancelledError:
            # Nothing is wrong with it: anybody may begin again.
            await self._end(planned, "planned", "it was stopped")
            raise
        except BaseException:
            await self._end(planned, "failed", "it could not be written")
            raise
        if summary is None:
            await self._end(planned, "failed", "no summary passed its checks")
            return None
        return await self._keep(planned, summary, dollars)

    async def ready(self) -> Summary | None:
        """What was written for this branch as it is now, and waits to be used; what no longer fits it is let go."""
        owner, branch, session = self.journal.seen.owner, self.journal.seen.branch, self.journal.session
        found: Summary | None = None
        for one in await self.journal.store.unfinished(owner):
            if one.branch != branch or one.state != "summarised":
                continue
            if one.base != session.id:
                await self.journal.store.give_up(
                    owner, one.id, one.holder, "superseded", "the conversation went another way"
                )
            else:
                found = await self._found(one) or found
        return found

    async def _plan(self, request: SummaryRequest, recipe: str) -> Compaction:
        journal = self.journal
        session = journal.session
        return await journal.store.plan(
            journal.seen.owner,
            Compaction(
                id=journal.id_of(session.id, request.last, recipe),
                branch=journal.seen.branch,
                kind="summarise",
                state="planned",
                base=session.id,
                cut=request.last,
                size=journal.seen.next_seq,
                recipe=recipe,
                at=journal.clock(),
            ),
        )

    async def _claim(self, planned: Compaction) -> Compaction | None:
        now, owner, store = self.journal.clock(), self.journal.seen.owner, self.journal.store
        if is_from_later(planned, now, self.lease_s):
            await store.give_up(owner, planned.id, planned.holder, "planned", LEFT)
        return await store.claim(owner, planned.id, self.holder, now=now, until=now + self.lease_s)

    async def _beating(self, planned: Compaction, write: Write) -> Summary | None:
        beating = asyncio.create_task(self._beat(planned))
        try:
            return await write()
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError, StoreError):
                await beating

    async def _beat(self, planned: Compaction) -> None:
        owner, is_ours = self.journal.seen.owner, True
        while is_ours:
            await asyncio.sleep(self.lease_s / BEATS)
            until = self.journal.clock() + self.lease_s
            is_ours = await self.journal.store.beat(owner, planned.id, self.holder, until)

    async def _keep(
        self, planned: Compaction, summary: Summary, dollars: Callable[[Summary], float]
    ) -> Summary | None:
        journal, now = self.journal, self.journal.clock()
        summary = structs.replace(summary, id=planned.id)
        call = Call(
            id=journal.new_id(),
            branch=planned.branch,
            session=planned.base,
            usage=summary.usage,
            size=planned.size,
            kind="summary",
            dollars=dollars(summary),
            at=now,
        )
        written = Written(id=planned.id, summary=summary, at=now)
        is_first = await journal.store.reply(journal.seen.owner, planned.id, self.holder, written, call)
        return summary if is_first else await self._found(planned)

    async def _found(self, planned: Compaction) -> Summary | None:
        found = await self.journal.store.written(self.journal.seen.owner, [planned.id])
        return structs.replace(found[0].summary, id=planned.id) if found else None

    async def _end(self, planned: Compaction, state: CompactionState, error: str) -> None:
        """Say that it came to nothing; where even that cannot be written down, the lease runs out."""
        with suppress(StoreError):
            await self.journal.store.give_up(self.journal.seen.owner, planned.id, self.holder, state, error)


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
        if not (is_left or one.state == "planned"):
            continue
        session = await store.session(owner, one.base)
        if session is None or session.last is not None:
            swept += await store.give_up(owner, one.id, one.holder, "superseded", LEFT)
        elif is_left:
            swept += await store.give_up(owner, one.id, one.holder, "planned", LEFT)
    return swept
