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
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

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
from refold.engine.work import Asking, Outcome, Work, Write, settled
from refold.model.errors import Conflict, RefoldError, StoreError
from refold.model.summary import Summary
from refold.model.window import Window
from refold.ports.store import Call, Session
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
        self._doubt: _Doubt | None = None

    @property
    def id(self) -> str:
        return self._journal.seen.conversation

    @property
    def branch(self) -> str:
        return self._journal.seen.branch

    async def load(self) -> None:
        """Put memory where the store is."""
        memory = self._talk.memory
        await self._resolve_doubt()
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
        self,
        act: Callable[[], T],
        calls: Sequence[Call] = (),
        key: str = "",
        *,
        writes: bool = False,
        is_long: bool = False,
    ) -> T:
        """Act, and keep what came of it. An act that `writes` in any case need not ask before whether somebody else has: the
        store refuses it then. One that `is_long` is done in a thread, and other conversations go on meanwhile.
        """
        async with self._one_at_a_time:
            return await self._keep(act, calls, key, writes=writes, is_long=is_long)

    async def _keep(
        self,
        act: Callable[[], T],
        calls: Sequence[Call] = (),
        key: str = "",
        *,
        writes: bool = False,
        is_long: bool = False,
    ) -> T:
        for _ in range(TRIES):
            await self._catch_up(asks=not writes)
            put_back = self._mark()
            with self._talk.memory.telling.held() as tell:
                result = await self._apart(act, put_back) if is_long and self._is_alone else act()
                self._is_behind = True
            try:
                await self._journal.save(self._talk.memory, calls, key)
            except BaseException as error:
                put_back()
                if not isinstance(error, Conflict):
                    raise
                self._doubt = None
                if key and await self._has_key(key):
                    return result  # it came twice at the same time
                continue
            self._is_behind = False
            tell()
            self._look_at_sent()
            return result
        raise _overrun()

    async def _apart(self, act: Callable[[], T], put_back: Callable[[], None]) -> T:
        """Act in a thread. Who writes a summary reads memory at any time, so this is for when nobody does. An act whose caller
        is stopped comes to its end, and nothing comes of it.
        """
        self._is_behind = True
        try:
            return await settled(asyncio.to_thread(act))
        except asyncio.CancelledError:
            put_back()
            raise

    @property
    def _is_alone(self) -> bool:
        return not self._is_writing

    async def _has_key(self, key: str) -> bool:
        return await self._journal.store.find_key(self._journal.seen, key) is not None

    async def _stepped(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do what takes several steps in the store. Cut off between two of them, memory is read again before anything else."""
        async with self._one_at_a_time:
            return await self._step(act)

    async def _step(self, act: Callable[[], Awaitable[T]]) -> T:
        for _ in range(TRIES):
            await self._catch_up()
            self._is_behind, put_back = True, self._mark()
            try:
                result = await act()
            except BaseException as error:
                put_back()
                if not isinstance(error, Conflict):
                    raise
                self._doubt = None
                continue
            await self.load()
            # The act is done, whatever comes of this: how full it left the context is noted with the next one, if need be.
            with suppress(StoreError):
                await self._journal.tell(self._talk.memory)
            return result
        raise _overrun()

    def _mark(self) -> Callable[[], None]:
        """How to put memory back as it is now, where an act comes to nothing or has to be done again."""
        memory, place = self._talk.memory, self._journal.seen.place
        put_back = _mark(memory)

        def take_back() -> None:
            self._doubt = _Doubt(place, memory.folded.size, _mark(memory))
            put_back()

        return take_back

    async def _resolve_doubt(self) -> None:
        """Was an act kept of which nobody knows? Where nothing that was said is, memory is all there is: the act is done again
        in it, if the branch has moved by as much.
        """
        doubt, seen = self._doubt, self._journal.seen
        if doubt is not None and not self._journal.keeps_content:
            head = await self._journal.store.head(seen.owner, seen.conversation, seen.branch)
            if head is not None and head.place != doubt.place and head.next_seq == doubt.size:
                doubt.act()
                self._talk.memory.changes.clear()
        self._doubt = None

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

        asking = structs.replace(
            self._asking(question, write, self._recipe(summariser, focus)),
            is_wanted=self._compacting.locked(),
            is_enough=lambda last: self._place == place and self._is_enough(request, last),
        )
        outcome = await self._worked(request, asking)
        if outcome.has_failed:
            self._given_up = place
        return outcome.summary

    def _asking(self, question: Question, write: Write, recipe: str) -> Asking:
        may_ask = self._breaker.may_ask
        return Asking(recipe=recipe, write=write, bill=question.bill, price=dollars_for, may_ask=may_ask)

    async def _worked(
        self, request: SummaryRequest, asking: Asking, session: Session | None = None
    ) -> Outcome:
        """What comes of the work; a store that fails is no failure of the model's."""
        try:
            outcome = await self._work.summarise(request, asking, session)
        except RefoldError as error:
            _log.warning("a summary could not be written: %s", type(error).__name__)
            return Outcome()
        self._breaker.note(outcome)
        return outcome

    def _recipe(self, summariser: Summariser, focus: str) -> str:
        """The hash of how a summary is made."""
        policy = self._talk.memory.frame.policy
        parts = (policy.recipe, policy.scope, policy.source, focus, name_of(summariser))
        return sha256(msgspec.json.encode(parts)).hexdigest()[:32]

    async def _hold_originals(self) -> None:
        """Where a summary is made from everything ever said, all of it has to be there."""
        if self._talk.memory.frame.policy.source == "all":
            await hold_originals(self._journal, self._talk.memory)


class _Doubt(Struct, frozen=True):
    """An act of which nobody knows whether it was kept: where the branch was before it, how many messages there were after it,
    and how to put memory where it was then.
    """

    place: tuple[object, ...]
    size: int
    act: Callable[[], None]


def _mark(memory: Memory) -> Callable[[], None]:
    """How to put memory back as it is now; a summary that was written meanwhile is not lost by it."""
    parts = (memory, memory.limits, memory.secrecy)
    known = [vars(part).copy() for part in parts]
    receipts, changes = tuple(memory.receipts), tuple(memory.changes)

    def put_back() -> None:
        prepared: Summary | None = vars(memory)["_prepared"]
        for part, state in zip(parts, known, strict=True):
            vars(part).update(state)
        memory.receipts[:], memory.changes[:] = receipts, changes
        if prepared is not None:
            memory.prepare(prepared)

    return put_back


def _overrun() -> Conflict:
    return Conflict("other writers were first again and again", hint="is something writing in a loop?")
