"""A conversation and its store, in step.

One idea: an act counts when the store has it. Memory acts, the journal keeps what came of it; where another process was first,
memory is read again and the act is done again on what is there now. What a model writes meanwhile is work of its own, written
down before it begins.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
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
from refold.engine.hindsight import Sent, is_usual, note_sent
from refold.engine.journal import Draft, Journal
from refold.engine.memory import Memory, mark
from refold.engine.originals import with_originals
from refold.engine.tasks import Source
from refold.engine.work import Asking, Outcome, Work, Write
from refold.model.errors import Conflict, RefoldError, StoreError
from refold.model.summary import Summary
from refold.model.window import Window
from refold.ports.store import Call, Session
from refold.ports.summariser import Summariser
from refold.text_work import run_text_act
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
        self._is_behind, self._is_open = True, False
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
        await self._find_twins()
        if not (self._is_writing and self._asked and self._asked.place == self._place):
            self._asked = None
        if (prepared := await self._work.ready()) is not None:
            memory.prepare(prepared)
            self._note_asked(prepared.last)

    async def _find_twins(self) -> None:
        """Find what to show instead of compactions that another provider or model made."""

    async def _done(self, act: Callable[[], T], new: int = 0) -> T:
        return await self._kept(act, new=new)

    async def _kept(
        self,
        act: Callable[[], T],
        calls: Sequence[Call] = (),
        key: str = "",
        *,
        new: int = 0,
        writes: bool = False,
        is_brief: bool = False,
    ) -> T:
        """Act, and keep what came of it; `new` is how much text comes with it. An act that `writes` in any case need not ask before
        whether somebody else has: the store refuses it then. One that `is_brief` reads no text, however much is held.
        """
        async with self._one_at_a_time:
            return await self._keep(act, calls, key, new=new, writes=writes, is_brief=is_brief)

    async def _keep(
        self,
        act: Callable[[], T],
        calls: Sequence[Call] = (),
        key: str = "",
        *,
        new: int = 0,
        writes: bool = False,
        is_brief: bool = False,
    ) -> T:
        memory = self._talk.memory
        for _ in range(TRIES):
            await self._catch_up(asks=not writes)
            put_back, size = self._mark(), new + memory.text_size
            if is_brief and not memory.changes:
                size = 0
            with memory.telling.held() as tell:
                result, draft = await self._drafted(act, put_back, calls, key, size)
            try:
                await self._store(draft)
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
            await self._look_at_sent()
            return result
        raise _overrun()

    async def _drafted(
        self, act: Callable[[], T], put_back: Callable[[], None], calls: Sequence[Call], key: str, size: int
    ) -> tuple[T, Draft | Exception | None]:
        """Act, and say what is to be stored of it, or why that cannot be said: both in one thread, where it is much text.

        An act that fails leaves what it has done by then to the next one. One that is stopped comes to its end, and nothing comes of
        it: memory is read again before anything else is done.
        """

        def act_and_draft() -> tuple[T, Draft | Exception | None]:
            result = act()
            try:
                return result, self._journal.draft(self._talk.memory, calls, key)
            except Exception as error:  # noqa: BLE001  # told apart from what the act raises
                return result, error

        was_behind, self._is_behind = self._is_behind, True
        try:
            return await self._run(act_and_draft, size)
        except Exception:
            self._is_behind = was_behind
            raise
        except BaseException:
            put_back()
            raise

    async def _store(self, draft: Draft | Exception | None) -> None:
        if isinstance(draft, Exception):
            raise draft
        await self._journal.store_draft(self._talk.memory, draft)

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
        put_back = mark(memory)

        def take_back() -> None:
            self._doubt = _Doubt(place, memory.folded.size, mark(memory))
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

    async def _look_at_sent(self) -> None:
        """Note what a new window was made of, before anything else happens."""
        memory, journal = self._talk.memory, self._journal
        window = memory.last_window
        if window is self._window:
            return
        self._window, self._sent = window, None
        if window is not None:
            size = 0 if is_usual(memory) else memory.text_size  # then all that was shown is written down
            self._sent = await run_text_act(size, note_sent, journal, memory)

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

    async def _look(self, read: Callable[[], T]) -> T:
        async with self._reading() as memory:
            return await self._acted(read, memory.text_size)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Memory]:
        """Memory as the store has it, while nobody changes it."""
        async with self._one_at_a_time:
            await self._catch_up()
            yield self._talk.memory

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

    def _write_ahead(self, request: SummaryRequest | None) -> None:
        # Where memory is behind, the request is of an act that was not kept.
        if not self._breaker.is_open and not self._is_behind:
            super()._write_ahead(request)

    async def _written(
        self, request: SummaryRequest, summariser: Summariser, focus: str, source: Source | None = None
    ) -> Summary | None:
        place, question = self._place, Question(summariser)
        source = source or Source.of(self._talk.memory)

        async def write() -> Summary | None:
            whole = await self._with_originals(source)
            if self._place != place:
                raise Conflict("the conversation has moved on")
            return await self._answer(request, question, focus, whole)

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

    async def _with_originals(self, source: Source) -> Source:
        """All messages that a summary is made from: everything ever said, or what the summaries so far do not tell."""
        folded, first = source.folded, source.folded.origin
        if source.frame.policy.source == "all":
            first = 0
        elif folded.summaries and folded.summaries[-1].last == folded.origin:
            first = folded.summaries[-1].told_until
        folded = await with_originals(self._journal, self._talk.memory, folded, first)
        return structs.replace(source, folded=folded)


class _Doubt(Struct, frozen=True):
    """An act of which nobody knows whether it was kept: where the branch was before it, how many messages there were after it,
    and how to put memory where it was then.
    """

    place: tuple[object, ...]
    size: int
    act: Callable[[], None]


def _overrun() -> Conflict:
    return Conflict("other writers were first again and again", hint="is something writing in a loop?")
