"""Conversations that outlive the program: the same face as in memory, and a store behind it.

One idea: an act counts when the store has it. Memory acts, the journal keeps what came of it; where another process was first,
memory is read again and the act is done again on what is there now. What a model writes meanwhile is work of its own, written
down before it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

from refold.conversation import Conversation, Summarise
from refold.core.cost import call_cost
from refold.core.plan import Frame, SummaryRequest
from refold.core.policy import Policy
from refold.core.view import View
from refold.engine import recalling, sessions
from refold.engine.accounts import MessageTokens, message_tokens
from refold.engine.hindsight import Difference, Sent, difference, note_sent, rehearse, sent_with
from refold.engine.journal import Journal
from refold.engine.learning import begin_with, keep_learnt
from refold.engine.lookup import is_handle
from refold.engine.receipts import Receipt
from refold.engine.sessions import Resumed
from refold.engine.work import Work
from refold.model.errors import Conflict, InvalidWindow, NotFound
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.window import Window
from refold.ports.store import Call, Compaction, Session
from refold.ports.summariser import Summariser
from refold.wire.plain import plain_message, read_usage
from refold.wire.reading import FIELDS, read
from refold.wire.request import fixed_of

T = TypeVar("T")

EVERYTHING = 10**9
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


class Preview(Struct, frozen=True):
    """What a compaction would do: tokens before and after, why, and what would be sent."""

    before: int
    after: int
    receipt: Receipt | None
    messages: tuple[Message, ...]
    difference: Difference


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
        self._window: Window | None = None
        self._sent: Sent | None = None

    @property
    def id(self) -> str:
        return self._journal.seen.conversation

    async def load(self) -> None:
        """Put memory where the store is."""
        memory = self._talk.memory
        await self._journal.load(memory)
        if not self._journal.seen.notes:
            await begin_with(self._journal, memory)
        calls = await self._journal.store.calls(self._journal.seen.owner, self.id)
        self._spent = sum(call.dollars for call in calls if call.kind == "summary")
        self._asked, self._is_behind = None, False
        self._instruct()
        if (prepared := await self._work.ready()) is not None:
            memory.prepare(prepared)

    async def add(self, *messages: object, sensitive: bool = False, key: str = "") -> None:
        """Add what was said. What comes with the `key` of something that is there already is not added again, so that an act
        of which nobody knows whether it was kept can be done again.
        """
        if key and await self._has_key(key):
            return
        await self._kept(lambda: self._talk.add(*messages, sensitive=sensitive), key=key)
        self._write_ahead()

    async def _has_key(self, key: str) -> bool:
        return await self._journal.store.find_key(self._journal.seen, key) is not None

    async def record(self, usage: object) -> None:
        """Take in what the provider reported, and keep it."""
        memory = self._talk.memory
        reported = read_usage(usage, memory.frame.fixed.dialect)
        calls: list[Call] = []
        if reported is not None:
            prices, seen = memory.frame.prices, self._journal.seen
            sent = self._sent or note_sent(self._journal, memory)
            calls.append(
                Call(
                    id=self._journal.new_id(),
                    branch=seen.branch,
                    session=self._journal.session.id,
                    usage=reported,
                    size=sent.size,
                    model=seen.model,
                    receipt=msgspec.json.encode(sent),
                    dollars=call_cost(reported, prices) if prices else 0.0,
                    at=self._journal.clock(),
                )
            )
        before = memory.calibration.ratio, memory.limits.stated
        await self._kept(lambda: memory.record(reported), calls)
        await keep_learnt(self._journal, memory, before)

    async def undo(self) -> bool:
        """Take back the last thing that was done to the context in this session."""
        return await self._stepped(self._undo)

    async def _undo(self) -> bool:
        last = await self._last_change()
        if last is not None:
            await self._journal.undo(self._talk.memory, last)
        return last is not None

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """An original by its handle, or passages of everything ever said that fit the words."""
        await self._look_up()
        memory = self._talk.memory
        try:
            found = await recalling.recall(self._journal, memory, what)
        except NotFound:
            if is_handle(what):
                raise
            return await recalling.search(self._journal, memory, what, max_tokens=max_tokens)
        return found.text if isinstance(found, Summary) else plain_message(found, memory.frame.fixed.dialect)

    async def preview(self, *, preset: Policy | None = None) -> Preview:
        """What a compaction would do now, without doing it and without asking any model."""
        await self._look_up()
        found, window = rehearse(self._talk.memory, self._framed(preset))
        receipt = found.receipts[-1] if found.receipts else None
        sent = (*window.summaries, *window.messages)
        return Preview(found.before.tokens, found.after.tokens, receipt, sent, found)

    async def fold(self, *, focus: str = "") -> None:
        """Compact now, also where no call can follow yet because the assistant had the last word."""
        try:
            await self.compact(focus=focus)
        except InvalidWindow:
            await self._kept(lambda: None)

    async def difference(self, change: Compaction) -> Difference:
        """What was shown before a change and after it; see `hindsight.difference`."""
        await self._look_up()
        return await difference(self._journal, self._talk.memory, change)

    async def as_sent(self, call: Call) -> dict[str, Any]:
        """The fields of the request that left with a call; see `hindsight.sent_with`."""
        await self._look_up()
        return self._talk.fields(await sent_with(self._journal, self._talk.memory, call))

    async def came_with(self, fields: bytes) -> None:
        """Keep the request that the conversation came in with, without its messages: its system prompt and tools serve
        wherever no others are given.
        """
        self._journal.fields = fields
        await self._kept(lambda: None)
        self._instruct()

    async def rerun(self, *, preset: Policy | None = None) -> bool:
        """Do the last compaction of this session again, on the same messages, by another policy; False where there is none."""
        last = await self._last_change(kind="summarise")
        while last is not None and (change := await self._last_change()) is not None:
            await self.undo()
            if change.id == last.id:
                break
        if last is None:
            return False
        memory = self._talk.memory
        frame, memory.frame = memory.frame, self._framed(preset)
        try:
            await self._kept(lambda: memory.compact(cut=last.cut))
        finally:
            memory.frame = frame
        return True

    def _framed(self, policy: Policy | None) -> Frame:
        frame = self._talk.memory.frame
        return structs.replace(frame, policy=policy) if policy else frame

    async def accounts(self) -> list[MessageTokens]:
        """What is known about the size of each message: reported by the provider, derived from its reports, or counted."""
        seen, store = self._journal.seen, self._journal.store
        calls = await store.calls(seen.owner, self.id, limit=EVERYTHING)
        own = [call for call in calls if call.branch == seen.branch]
        return message_tokens(own, await store.messages(seen))

    async def new(self) -> Session:
        """Begin a session that knows nothing of what was said. Nothing is lost: it can be resumed, and recalled."""
        return await self._stepped(lambda: sessions.begin_new(self._journal, self._talk.memory))

    async def resume(self, session: Session) -> Resumed:
        """Go on with an earlier session: all of it where it fits, else its summary.

        Raises:
            NotFound: the session is the open one, or was undone.
        """
        return await self._stepped(lambda: sessions.resume(self._journal, self._talk.memory, session))

    async def status(self) -> Status:
        await self._look_up()
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

    async def _kept(self, act: Callable[[], T], calls: Sequence[Call] = (), key: str = "") -> T:
        """Act, and keep what came of it."""
        async with self._one_at_a_time:
            for _ in range(TRIES):
                await self._catch_up()
                result, self._is_behind = act(), True
                try:
                    await self._journal.save(self._talk.memory, calls, key)
                except Conflict:
                    if key and await self._has_key(key):
                        return result  # it came twice at the same time
                    continue
                self._is_behind = False
                self._look_at_sent()
                return result
        raise Conflict("other writers were first again and again", hint="is something writing in a loop?")

    async def _stepped(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do what takes several steps in the store. Cut off between two of them, memory is read again before anything else."""
        async with self._one_at_a_time:
            for _ in range(TRIES):
                await self._catch_up()
                self._is_behind = True
                try:
                    result = await act()
                except Conflict:
                    continue
                await self.load()
                return result
        raise Conflict("other writers were first again and again", hint="is something writing in a loop?")

    def _look_at_sent(self) -> None:
        """Note what a new window was made of, before anything else happens."""
        window = self._talk.memory.last_window
        if window is not self._window:
            self._window = window
            self._sent = note_sent(self._journal, self._talk.memory) if window else None

    def _instruct(self) -> None:
        """Take the system prompt and the tools that the conversation came in with, where no others were given."""
        fields, fixed = self._journal.fields, self._talk.memory.frame.fixed
        if fields and not (fixed.system or fixed.tools):
            self._talk.instruct(fixed_of(read(FIELDS, fields), fixed.dialect))

    async def _look_up(self) -> None:
        """Be up to date before something is read: after whatever is being kept at this moment."""
        async with self._one_at_a_time:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Read again what another process has written, or what nobody knows was kept."""
        seen = self._journal.seen
        # With another number of messages than the store has, the next one would get a number that is not its own.
        self._is_behind |= self._talk.memory.folded.size != seen.next_seq
        if not self._is_behind:
            now = await self._journal.store.head(seen.owner, seen.conversation, seen.branch)
            self._is_behind = now is None or (now.next_seq, now.epoch) != (seen.next_seq, seen.epoch)
        if self._is_behind:
            await self.load()

    async def _last_change(self, kind: str = "") -> Compaction | None:
        """The newest change of the open session that is still in effect."""
        seen, session = self._journal.seen, self._journal.session.id
        changes = await self._journal.store.compactions(seen.owner, seen.branch)
        own = (
            one
            for one in changes
            if one.state == "installed"
            and (one.session or one.base) == session
            and (one.kind == "summarise" or not one.session)
            and kind in ("", one.kind)
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
        write = super()._written

        async def written() -> Summary | None:
            await self._hold_originals()
            return await write(request, summariser, focus)

        found = await self._work.summarise(request, recipe, written, self._price)
        self._failures = 0 if found else self._failures + 1
        self._spent += self._price(found) if found else 0.0
        return found

    async def _hold_originals(self) -> None:
        """Where a summary is made from everything ever said, all of it has to be there."""
        memory = self._talk.memory
        while memory.frame.policy.source == "all" and (origin := memory.folded.origin):
            earlier = await self._journal.originals(memory, 0, origin)
            folded = memory.folded  # not the one from before: messages arrive while the store is read
            if folded.origin != origin:
                continue
            view = folded.shown
            empty = View(view.dialect, view.counter, view.key, view.continues)
            branch = empty.extend((*(one.message for one in earlier), *folded.branch.messages()))
            memory.folded = structs.replace(folded, branch=branch, origin=0, told=0)

    def _price(self, summary: Summary) -> float:
        prices = self._talk.memory.frame.prices
        return call_cost(summary.usage, prices) if prices else 0.0
