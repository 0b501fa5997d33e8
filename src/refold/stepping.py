"""A conversation and its store, in step.

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

from refold.compose import dollars_for
from refold.conversation import Conversation, Place, Summarise
from refold.core.frame import Frame
from refold.core.plan import SummaryRequest
from refold.core.policy import Policy
from refold.engine import learning
from refold.engine.author import Question, name_of
from refold.engine.breaker import Breaker
from refold.engine.hindsight import Sent, note_sent
from refold.engine.journal import Journal
from refold.engine.memory import Memory
from refold.engine.originals import hold_originals
from refold.engine.work import Asking, Work
from refold.model.errors import Conflict, RefoldError, StoreError
from refold.model.summary import Summary
from refold.model.window import Window
from refold.ports.store import Call
from refold.ports.summariser import Summariser
from refold.wire.reading import FIELDS, read
from refold.wire.request import fixed_of

T = TypeVar("T")

_log = logging.getLogger("refold")

TRIES = 200
"""How often an act is done again because another process was first: one that writes without a pause keeps others out for a
second or two, since it need not read again; so many in a row means that something else is wrong."""


class Stepping(Conversation):
    """A conversation of which every act is kept before it counts."""

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
        journal.model = model
        telling = self._talk.memory.telling
        telling.conversation, telling.branch = self.id, self.branch
        self._breaker = Breaker(journal, max_spend)
        self._one_at_a_time, self._is_behind, self._is_open = asyncio.Lock(), True, False
        self._window: Window | None = None
        self._sent: Sent | None = None

    @property
    def id(self) -> str:
        return self._journal.seen.conversation

    @property
    def branch(self) -> str:
        return self._journal.seen.branch

    async def load(self) -> None:
        """Put memory where the store is."""
        memory = self._talk.memory
        await learning.load(self._journal, memory, is_first=not self._is_open)
        self._is_behind, self._is_open = False, True
        self._instruct()
        if not (self._is_writing and self._asked and self._asked.place == self._place):
            self._asked = None
        if (prepared := await self._work.ready()) is not None:
            memory.prepare(prepared)
            self._note_asked(prepared.last)

    async def _done(self, act: Callable[[], T]) -> T:
        return await self._kept(act)

    async def _kept(
        self, act: Callable[[], T], calls: Sequence[Call] = (), key: str = "", *, writes: bool = False
    ) -> T:
        """Act, and keep what came of it. An act that `writes` in any case need not ask before whether somebody else has: the
        store refuses it then.
        """
        async with self._one_at_a_time:
            return await self._keep(act, calls, key, writes=writes)

    async def _keep(
        self, act: Callable[[], T], calls: Sequence[Call] = (), key: str = "", *, writes: bool = False
    ) -> T:
        for _ in range(TRIES):
            await self._catch_up(asks=not writes)
            put_back = _mark(self._talk.memory)
            with self._talk.memory.telling.held() as tell:
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
            tell()
            self._look_at_sent()
            return result
        raise _overrun()

    async def _has_key(self, key: str) -> bool:
        return await self._journal.store.find_key(self._journal.seen, key) is not None

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
            # The act is done, whatever comes of this: how full it left the context is noted with the next one, if need be.
            with suppress(StoreError):
                await self._journal.tell(self._talk.memory)
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
        fields, fixed = self._journal.instructions.fields, self._talk.memory.frame.fixed
        if not fields or (fixed.system and fixed.tools):
            return
        known = fixed_of(read(FIELDS, fields), fixed.dialect)
        told = structs.replace(known, system=fixed.system or known.system, tools=fixed.tools or known.tools)
        if told != fixed:
            self._talk.instruct(told)

    def _framed(self, policy: Policy | None) -> Frame:
        frame = self._talk.memory.frame
        return structs.replace(frame, policy=policy) if policy else frame

    async def _look_up(self) -> None:
        """Be up to date before something is read: after whatever is being kept at this moment."""
        async with self._one_at_a_time:
            await self._catch_up()

    async def _catch_up(self, *, asks: bool = True) -> None:
        """Read again what another process has written, or what nobody knows was kept."""
        seen = self._journal.seen
        # With another number of messages than the store has, the next one would get a number that is not its own.
        self._is_behind |= self._talk.memory.folded.size != seen.next_seq
        if asks and not self._is_behind:
            now = await self._journal.store.head(seen.owner, seen.conversation, seen.branch)
            self._is_behind = now is None or now.place != seen.place
        if self._is_behind:
            await self.load()

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
            bill=question.bill,
            price=dollars_for,
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


def _mark(memory: Memory) -> Callable[[], None]:
    """How to put back what the store knows nothing of, where an act has to be done again."""
    limits, frame, told = copy(memory.limits), memory.frame, len(memory.receipts)

    def put_back() -> None:
        memory.limits, memory.frame = limits, frame
        del memory.receipts[told:]

    return put_back


def _overrun() -> Conflict:
    return Conflict("other writers were first again and again", hint="is something writing in a loop?")
