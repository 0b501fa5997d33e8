"""Conversations that outlive the program: the same face as in memory, and a store behind it.

One idea: an act counts when the store has it. Memory acts, the journal keeps what came of it; where another process was first,
memory is read again and the act is done again on what is there now. What a model writes meanwhile is work of its own, written
down before it begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from refold.conversation import Conversation, Place, Summarise
from refold.core.cost import call_cost
from refold.core.plan import Frame, SummaryRequest
from refold.core.policy import Policy
from refold.engine import recalling, sessions
from refold.engine.accounts import MessageTokens, message_tokens
from refold.engine.author import Question, name_of, summariser_of
from refold.engine.breaker import Breaker
from refold.engine.hindsight import Difference, Sent, difference, note_sent, noted_call, sent_with
from refold.engine.journal import Journal
from refold.engine.learning import begin_with, go_on_with, keep_learnt
from refold.engine.lookup import is_handle
from refold.engine.memory import Memory
from refold.engine.originals import hold_originals
from refold.engine.sessions import Resumed
from refold.engine.status import Preview, Status, preview_of, status_of
from refold.engine.work import Asking, Work
from refold.model.errors import Conflict, InvalidWindow, NotFound, RefoldError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.model.window import Window
from refold.ports.store import Call, Compaction, CompactionKind, Session
from refold.ports.summariser import Summariser
from refold.wire.plain import plain_message, read_usage
from refold.wire.reading import FIELDS, read
from refold.wire.request import fixed_of

__all__ = ["DurableConversation", "Preview", "Status"]

T = TypeVar("T")

_log = logging.getLogger("refold")

EVERYTHING = 10**9
TRIES = 200
"""How often an act is done again because another process was first: one that writes without a pause keeps others out for a
second or two, since it need not read again; so many in a row means that something else is wrong."""


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
        self._model, self._journal, self._work = model, journal, Work(journal, holder)
        self._breaker = Breaker(journal, max_spend)
        self._one_at_a_time, self._is_behind = asyncio.Lock(), True
        self._window: Window | None = None
        self._sent: Sent | None = None

    @property
    def id(self) -> str:
        return self._journal.seen.conversation

    async def load(self) -> None:
        """Put memory where the store is."""
        memory, is_loaded = self._talk.memory, False
        while not is_loaded:
            await self._journal.load(memory)
            if not self._journal.seen.notes:
                await begin_with(self._journal, memory)
            with suppress(Conflict):
                await go_on_with(self._journal, memory, self._model)
                is_loaded = True
        self._is_behind = False
        self._instruct()
        if not (self._is_writing and self._asked and self._asked.place == self._place):
            self._asked = None
        if (prepared := await self._work.ready()) is not None:
            memory.prepare(prepared)
            self._note_asked(prepared.last)

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
        calls = [noted_call(self._journal, memory, reported, self._sent)] if reported is not None else []
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
        return preview_of(self._talk.memory, self._framed(preset))

    async def compact(self, *, focus: str = "") -> dict[str, Any]:
        """Compact now, on what is there now; see `refold.Conversation.compact`."""
        await self._look_up()
        return await super().compact(focus=focus)

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

    async def rerun(
        self, *, preset: Policy | None = None, summariser: Summariser | Summarise | None = None
    ) -> bool:
        """Do the last compaction of this session again, on the same messages, by another policy or another summariser; False
        where there is none. Until it is done everything else waits.
        """
        memory = self._talk.memory
        async with self._compacting, self._one_at_a_time:
            await self.close()
            await self._catch_up()
            last = await self._take_back()
            if last is None:
                return False
            frame, memory.frame = memory.frame, self._framed(preset)
            try:
                await self._write_up_to(last.cut, summariser)
                await self._keep(lambda: self._fold_at(last.cut))
            finally:
                memory.frame = frame
        return True

    async def _take_back(self) -> Compaction | None:
        """Undo the last compaction of this session and all that was done since."""
        last = await self._last_change("summarise")
        while last is not None and (change := await self._last_change()) is not None:
            await self._step(self._undo)
            if change.id == last.id:
                break
        return last

    async def _write_up_to(self, cut: int, summariser: Summariser | Summarise | None) -> None:
        memory = self._talk.memory
        count = memory.folded.shown.counter.text
        author = summariser_of(summariser, memory.frame.fixed.dialect, count) or self._summariser
        request, recipe = memory.asked_for(cut), memory.frame.policy.recipe
        if request is not None and author is not None and recipe.strategy != "extractive":
            await self._write(request, author)

    def _fold_at(self, cut: int) -> None:
        with suppress(InvalidWindow):  # where no call can follow yet, what is shown changes all the same
            self._talk.memory.compact(cut=cut)

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
        opened = await self._stepped(lambda: sessions.begin_new(self._journal, self._talk.memory))
        await self.close()  # what is being written is for the one before
        return opened

    async def resume(self, session: Session) -> Resumed:
        """Go on with an earlier session: all of it where it fits, else its summary.

        Raises:
            NotFound: the session is the open one, or was undone.
        """
        opened = await self._stepped(lambda: sessions.resume(self._journal, self._talk.memory, session))
        await self.close()
        return opened

    async def status(self) -> Status:
        await self._look_up()
        return await status_of(self._journal, self._talk.memory, self._breaker)

    async def _done(self, act: Callable[[], T]) -> T:
        return await self._kept(act)

    async def _kept(self, act: Callable[[], T], calls: Sequence[Call] = (), key: str = "") -> T:
        """Act, and keep what came of it."""
        async with self._one_at_a_time:
            return await self._keep(act, calls, key)

    async def _keep(self, act: Callable[[], T], calls: Sequence[Call] = (), key: str = "") -> T:
        for _ in range(TRIES):
            await self._catch_up()
            put_back = _mark(self._talk.memory)
            result, self._is_behind = act(), True
            try:
                await self._journal.save(self._talk.memory, calls, key)
            except BaseException as error:
                put_back()
                if not isinstance(error, Conflict):
                    raise
                if key and await self._has_key(key):
                    return result  # it came twice at the same time
                continue
            self._is_behind = False
            self._look_at_sent()
            return result
        raise _overrun()

    async def _stepped(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do what takes several steps in the store. Cut off between two of them, memory is read again before anything else."""
        async with self._one_at_a_time:
            return await self._step(act)

    async def _step(self, act: Callable[[], Awaitable[T]]) -> T:
        for _ in range(TRIES):
            await self._catch_up()
            self._is_behind = True
            try:
                result = await act()
            except Conflict:
                continue
            await self.load()
            return result
        raise _overrun()

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
            self._is_behind = now is None or now.place != seen.place
        if self._is_behind:
            await self.load()

    async def _last_change(self, *kinds: CompactionKind) -> Compaction | None:
        """The newest change of the open session that can be taken back."""
        owner, session = self._journal.seen.owner, self._journal.session.id
        found = await self._journal.store.last_change(owner, session, kinds)
        is_beginning = found is not None and found.kind == "reduce" and bool(found.session)
        return None if is_beginning else found

    @property
    def _place(self) -> Place:
        return self._journal.session.id, *super()._place

    def _write_ahead(self) -> None:
        if not self._breaker.is_open:
            super()._write_ahead()

    async def _written(self, request: SummaryRequest, summariser: Summariser, focus: str) -> Summary | None:
        place, question = self._place, Question(summariser)

        async def write() -> Summary | None:
            await self._hold_originals()
            if self._place != place:
                raise Conflict("the conversation has moved on")
            return await self._answer(request, question, focus)

        asking = Asking(
            recipe=self._recipe(summariser, focus),
            write=write,
            dollars=self._dollars,
            spent=question.spent,
            may_ask=self._breaker.may_ask,
            is_wanted=self._compacting.locked(),
        )
        try:
            outcome = await self._work.summarise(request, asking)
        except RefoldError as error:
            _log.warning("a summary could not be written: %s", type(error).__name__)
            return None
        self._breaker.note(outcome)
        if outcome.has_failed:
            self._given_up = place
        return outcome.summary

    def _recipe(self, summariser: Summariser, focus: str) -> str:
        """The hash of how a summary is made."""
        policy = self._talk.memory.frame.policy
        parts = (policy.recipe, policy.scope, policy.source, focus, name_of(summariser))
        return sha256(msgspec.json.encode(parts)).hexdigest()[:32]

    async def _hold_originals(self) -> None:
        """Where a summary is made from everything ever said, all of it has to be there."""
        if self._talk.memory.frame.policy.source == "all":
            await hold_originals(self._journal, self._talk.memory)

    def _dollars(self, usage: Usage) -> float:
        prices = self._talk.memory.frame.prices
        return call_cost(usage, prices) if prices else 0.0


def _mark(memory: Memory) -> Callable[[], None]:
    """How to put back what the store knows nothing of, where an act has to be done again."""
    limits, frame, told = copy(memory.limits), memory.frame, len(memory.receipts)

    def put_back() -> None:
        memory.limits, memory.frame = limits, frame
        del memory.receipts[told:]

    return put_back


def _overrun() -> Conflict:
    return Conflict("other writers were first again and again", hint="is something writing in a loop?")
