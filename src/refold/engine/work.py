"""Writing a summary as work that survives: written down before it begins, and its result before anything is done with it.

One idea: the compaction's id is the same for the same work, so whoever comes to it, after a crash or beside another process,
finds how far it is. One holder at a time has it, for as long as they give signs of life; an answer that was paid for is stored
at once and never asked for again.

    planned -> running -> summarised -> installed
                  |            |
                failed ->  superseded

What failed is past once a model has written for the branch again. What was written for a session that has ended since is let go;
where it is about all of that session, it is the session's own summary from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import Struct, structs

from refold.core.plan import SummaryRequest
from refold.engine.closing import let_go
from refold.engine.journal import Journal
from refold.model.errors import Conflict, StoreError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.store import Batch, Call, Compaction, CompactionState, Session, Store, Written

T = TypeVar("T")

_log = logging.getLogger("refold")

LEASE_S = 60.0
"""How long nobody else touches what is in hand: longer than a pause of the machine, shorter than anybody's patience."""
BEATS = 3
"""Signs of life per lease, so that one may get lost."""
ATTEMPTS = 3
"""How often the same work is tried: what failed so often fails for a reason that is in it."""
PAUSE_S = 60.0
"""Before it is tried again unasked: a provider that is down or out of capacity needs about so long."""
PATIENCE_S, POLL_S = 60.0, 0.2
"""How long somebody who waits for a summary waits for another who writes it, and how often they look: about as long as if they
had to ask themselves, and much cheaper than a second answer."""
BILLS = 20
"""How often a bill is written again because somebody else was writing: each time takes a moment."""
LEFT = "whoever was at work on it ended without a word"
IN_PROGRESS = ("planned", "running")

Write = Callable[[], Awaitable[Summary | None]]

_in_hand: set[tuple[str, str]] = set()
"""Holder and id of what this process is at work on: a claim of ours that is not here was left behind."""


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


class Outcome(Struct, frozen=True):
    """A summary, or none; and whether anybody was asked: who has it in hand, or rests, has not failed."""

    summary: Summary | None = None
    is_asked: bool = False

    @property
    def has_failed(self) -> bool:
        return self.is_asked and self.summary is None


class Work:
    """What one process does for one branch. `holder` tells processes apart."""

    def __init__(self, journal: Journal, holder: str, lease_s: float = LEASE_S) -> None:
        self.journal, self.holder, self.lease_s = journal, holder, lease_s

    async def summarise(
        self, request: SummaryRequest, asking: Asking, session: Session | None = None
    ) -> Outcome:
        """Have the summary written, unless it is written already or in somebody else's hands; without a session, that of the
        open one.
        """
        # As they are now: both may move on.
        session, owner = session or self.journal.session, self.journal.seen.owner
        for attempt in range(ATTEMPTS):
            work = self._work(session, request, asking.recipe, attempt)
            known = await self.journal.store.compaction(owner, work.id)
            if known is None or known.state in IN_PROGRESS:
                return await self._begin(work, asking)
            found = await self._found(known)  # whatever became of it since: what was written is there
            if found is not None or self._is_resting(known, asking):
                return Outcome(found)
        return Outcome()

    async def ready(self) -> Summary | None:
        """What was written for this branch as it is now, and waits to be used; what no longer fits it is let go."""
        owner, branch, session = self.journal.seen.owner, self.journal.seen.branch, self.journal.session
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
            size=journal.seen.next_seq,
            recipe=recipe,
            at=journal.clock(),
        )

    def _is_resting(self, known: Compaction, asking: Asking) -> bool:
        """Did it fail a moment ago? By a clock that may have been set back since."""
        age = self.journal.clock() - known.at
        return known.state == "failed" and not asking.is_wanted and 0 <= age < PAUSE_S

    async def _begin(self, work: Compaction, asking: Asking) -> Outcome:
        if (others := await self._of_others(work, asking)) is not None:
            return others
        if asking.may_ask is not None and not await asking.may_ask():
            return Outcome()
        planned = await self.journal.store.plan(self.journal.seen.owner, work)
        if planned.state not in IN_PROGRESS:
            return Outcome(await self._found(planned))
        key = (self.holder, planned.id)
        if key in _in_hand:
            return Outcome(await self._waited_for(planned, asking))
        _in_hand.add(key)
        try:
            return await self._do(planned, asking)
        finally:
            _in_hand.discard(key)

    async def _of_others(self, work: Compaction, asking: Asking) -> Outcome | None:
        """What others write, or have written, about the same session up to another message; None where that is of no use.

        As long as they write nobody else begins unasked, and what they have written serves. Who waits for a summary waits for one
        that is made as theirs would be, and for no other.
        """
        known = await self.journal.store.unfinished(self.journal.seen.owner, work.branch)
        for one in [one for one in known if one.base == work.base and one.id != work.id]:
            is_made_alike = one.recipe == asking.recipe or not asking.is_wanted
            serves = is_made_alike and asking.is_enough(one.cut)
            if self._is_at_work(one) and (serves or not asking.is_wanted):
                return Outcome(await self._waited_for(one, asking))
            if serves and (found := await self._found(one)) is not None:
                return Outcome(found)
        return None

    def _is_at_work(self, one: Compaction) -> bool:
        """Does anybody give signs of life?"""
        now = self.journal.clock()
        is_held = one.state == "running" and one.until > now and not is_from_later(one, now, self.lease_s)
        return is_held and (one.holder != self.holder or (one.holder, one.id) in _in_hand)

    async def _do(self, planned: Compaction, asking: Asking) -> Outcome:
        try:
            if await self._claim(planned) is None:
                return Outcome(await self._waited_for(planned, asking))
            summary = await self._beating(planned, asking.write)
        except (asyncio.CancelledError, Conflict) as error:
            # Nothing is wrong with it: anybody may begin again.
            await settled(self._end(planned, "planned", "it was stopped", asking))
            if isinstance(error, Conflict):
                return Outcome()
            raise
        except Exception:
            await settled(self._end(planned, "failed", "it could not be written", asking))
            raise
        if summary is None:
            await settled(self._end(planned, "failed", "no summary passed its checks", asking))
            return Outcome(is_asked=True)
        return Outcome(await settled(self._keep(planned, summary, asking)), is_asked=True)

    async def _claim(self, planned: Compaction) -> Compaction | None:
        now, owner, store = self.journal.clock(), self.journal.seen.owner, self.journal.store
        if planned.holder == self.holder or is_from_later(planned, now, self.lease_s):
            await store.give_up(owner, planned.id, planned.holder, "planned", LEFT)
        return await store.claim(owner, planned.id, self.holder, now=now, until=now + self.lease_s)

    async def _waited_for(self, planned: Compaction, asking: Asking) -> Summary | None:
        """What somebody else writes, where it is worth waiting for."""
        owner, store = self.journal.seen.owner, self.journal.store
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
        owner, is_ours = self.journal.seen.owner, True
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
        written = journal.storable(Written(id=planned.id, summary=summary, at=now))
        try:
            is_first = await journal.store.reply(journal.seen.owner, planned.id, self.holder, written, call)
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
        found = await self.journal.store.written(self.journal.seen.owner, [planned.id])
        # Where nothing that was said may be kept, a summary's text is not there.
        return structs.replace(found[0].summary, id=planned.id) if found and found[0].summary.text else None

    async def _end(self, planned: Compaction, state: CompactionState, error: str, asking: Asking) -> None:
        """Say that it came to nothing, and what that cost; where even that cannot be written down, the lease runs out."""
        with suppress(StoreError):
            await self.journal.store.give_up(self.journal.seen.owner, planned.id, self.holder, state, error)
        with suppress(StoreError):
            await self._bill(planned, asking)

    async def _bill(self, planned: Compaction, asking: Asking) -> None:
        """Note what was spent although no summary came of it: the provider sends the bill all the same."""
        call, seen = self._call(planned, asking.bill(None), asking), self.journal.seen
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
