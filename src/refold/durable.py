"""Conversations that outlive the program: the same face as in memory, and a store behind it.

One idea: an act counts when the store has it. Memory acts, the journal keeps what came of it; where another process was first,
memory is read again and the act is done again on what is there now. What a model writes meanwhile is work of its own, written
down before it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

from refold.conversation import Conversation, Summarise
from refold.core.cost import call_cost
from refold.core.plan import SummaryRequest
from refold.core.view import View
from refold.engine import recalling, sessions
from refold.engine.journal import Journal
from refold.engine.lookup import is_handle
from refold.engine.sessions import Resumed
from refold.engine.work import Work
from refold.model.errors import Conflict, NotFound
from refold.model.summary import Summary
from refold.ports.store import Call, Compaction, Session
from refold.ports.summariser import Summariser
from refold.wire.plain import plain_message, read_usage

T = TypeVar("T")

TRIES = 20
"""How often an act is done again because another process was first: so many in a row means that something else is wrong."""
MAX_FAILURES = 3
"""After so many summaries in a row that could not be written, the model is asked no more: it costs, and nothing comes of it."""


class Status(Struct, frozen=True):
    """How a conversation is doing."""

    messages: int
    tokens: int
    limit: int
    compactions: int
    flag: str
    """Why the next call will compact; empty where there is no reason."""
    in_vain: int
    failures: int
    is_stopped: bool
    """No model is asked for summaries any more: it failed too often, or the money is spent."""
    spent: float
    """Dollars for summaries."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0


class DurableConversation(Conversation):
    """One chat in a store. Made by `refold.Engine`."""

    def __init__(
        self,
        model: str,
        journal: Journal,
        *,
        holder: str,
        summariser: Summariser | Summarise | None = None,
        max_spend: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, summariser=summariser, **settings)
        self._journal, self._work = journal, Work(journal, holder)
        self._max_spend, self._spent, self._failures = max_spend, 0.0, 0
        self._one_at_a_time, self._is_behind = asyncio.Lock(), True

    @property
    def id(self) -> str:
        return self._journal.seen.conversation

    async def load(self) -> None:
        """Put memory where the store is."""
        memory = self._talk.memory
        await self._journal.load(memory)
        calls = await self._journal.store.calls(self._journal.seen.owner, self.id)
        self._spent = sum(call.dollars for call in calls if call.kind == "summary")
        self._asked, self._is_behind = None, False
        if (prepared := await self._work.ready()) is not None:
            memory.prepare(prepared)

    async def record(self, usage: object) -> None:
        """Take in what the provider reported, and keep it."""
        memory = self._talk.memory
        reported = read_usage(usage, memory.frame.fixed.dialect)
        calls: list[Call] = []
        if reported is not None:
            prices, seen = memory.frame.prices, self._journal.seen
            calls.append(
                Call(
                    id=self._journal.new_id(),
                    branch=seen.branch,
                    session=self._journal.session.id,
                    usage=reported,
                    size=seen.next_seq,
                    model=seen.model,
                    receipt=msgspec.json.encode(memory.last_marks),
                    dollars=call_cost(reported, prices) if prices else 0.0,
                    at=self._journal.clock(),
                )
            )
        await self._kept(lambda: memory.record(reported), calls)

    async def undo(self) -> bool:
        """Take back the last thing that was done to the context in this session."""
        async with self._one_at_a_time:
            await self._catch_up()
            last = await self._last_change()
            if last is None:
                return False
            await self._journal.undo(self._talk.memory, last)
            await self.load()
            return True

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """An original by its handle, or passages of everything ever said that fit the words."""
        await self._catch_up()
        memory = self._talk.memory
        try:
            found = await recalling.recall(self._journal, memory, what)
        except NotFound:
            if is_handle(what):
                raise
            return await recalling.search(self._journal, memory, what, max_tokens=max_tokens)
        return found.text if isinstance(found, Summary) else plain_message(found, memory.frame.fixed.dialect)

    async def new(self) -> Session:
        """Begin a session that knows nothing of what was said. Nothing is lost: it can be resumed, and recalled."""
        async with self._one_at_a_time:
            await self._catch_up()
            opened = await sessions.begin_new(self._journal, self._talk.memory)
            await self.load()
            return opened

    async def resume(self, session: Session) -> Resumed:
        """Go on with an earlier session: all of it where it fits, else its summary.

        Raises:
            NotFound: the session is the open one, or was undone.
        """
        async with self._one_at_a_time:
            await self._catch_up()
            opened = await sessions.resume(self._journal, self._talk.memory, session)
            await self.load()
            return opened

    async def status(self) -> Status:
        await self._catch_up()
        memory, seen = self._talk.memory, self._journal.seen
        changes = await self._journal.store.compactions(seen.owner, seen.branch)
        return Status(
            messages=seen.next_seq,
            tokens=memory.measurement.content.tokens,
            limit=memory.measurement.window - memory.measurement.reserve,
            compactions=sum(one.kind == "summarise" and one.state == "installed" for one in changes),
            flag=memory.flag,
            in_vain=memory.in_vain,
            failures=self._failures,
            is_stopped=self._is_stopped,
            spent=self._spent,
        )

    async def _done(self, act: Callable[[], T]) -> T:
        return await self._kept(act)

    async def _kept(self, act: Callable[[], T], calls: Sequence[Call] = ()) -> T:
        """Act, and keep what came of it."""
        async with self._one_at_a_time:
            for _ in range(TRIES):
                await self._catch_up()
                result, self._is_behind = act(), True
                try:
                    await self._journal.save(self._talk.memory, calls)
                except Conflict:
                    continue
                self._is_behind = False
                return result
        raise Conflict("other writers were first again and again", hint="is something writing in a loop?")

    async def _catch_up(self) -> None:
        """Read again what another process has written, or what nobody knows was kept."""
        seen = self._journal.seen
        if not self._is_behind:
            now = await self._journal.store.head(seen.owner, seen.conversation, seen.branch)
            self._is_behind = now is None or (now.next_seq, now.epoch) != (seen.next_seq, seen.epoch)
        if self._is_behind:
            await self.load()

    async def _last_change(self) -> Compaction | None:
        """The newest change of the open session that is still in effect."""
        seen, session = self._journal.seen, self._journal.session.id
        changes = await self._journal.store.compactions(seen.owner, seen.branch)
        own = (
            one
            for one in changes
            if one.state == "installed"
            and (one.session or one.base) == session
            and (one.kind == "summarise" or not one.session)
        )
        return max(own, key=lambda one: one.number, default=None)

    @property
    def _is_stopped(self) -> bool:
        is_spent = self._max_spend is not None and self._spent >= self._max_spend
        return is_spent or self._failures >= MAX_FAILURES

    def _write_ahead(self) -> None:
        if not self._is_stopped:
            super()._write_ahead()

    async def _written(self, request: SummaryRequest, summariser: Summariser, focus: str) -> Summary | None:
        memory = self._talk.memory
        parts = (memory.frame.policy.recipe, memory.frame.policy.scope, focus, type(summariser).__qualname__)
        recipe = sha256(msgspec.json.encode(parts)).hexdigest()[:32]
        await self._hold_originals()
        write = super()._written
        found = await self._work.summarise(
            request, recipe, lambda: write(request, summariser, focus), self._price
        )
        self._failures = 0 if found else self._failures + 1
        self._spent += self._price(found) if found else 0.0
        return found

    async def _hold_originals(self) -> None:
        """Where a summary is made from everything ever said, all of it has to be there."""
        memory = self._talk.memory
        folded = memory.folded
        if memory.frame.policy.source != "all" or not folded.origin:
            return
        earlier = await self._journal.originals(memory, 0, folded.origin)
        held = folded.branch.messages()
        view = folded.shown
        empty = View(view.dialect, view.counter, view.key, view.continues)
        branch = empty.extend((*(one.message for one in earlier), *held))
        memory.folded = structs.replace(folded, branch=branch, origin=0, told=0)

    def _price(self, summary: Summary) -> float:
        prices = self._talk.memory.frame.prices
        return call_cost(summary.usage, prices) if prices else 0.0
