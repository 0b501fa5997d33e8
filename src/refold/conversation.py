"""Conversations for programs that serve others meanwhile: the library's main face.

One idea: nobody waits for a summary. When the window is getting full, one is asked for in the background; when it is full,
the switch takes the one that is there, or a digest that needs no model. The conversation goes on in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar

from msgspec import Struct, structs

from refold import sync
from refold.compose import USUAL_OUTPUT
from refold.core import extractive
from refold.core.fold import Folded
from refold.core.frame import Frame
from refold.core.plan import SummaryRequest
from refold.engine.author import Summarise, bill_of, summariser_of
from refold.engine.bill import Bill
from refold.engine.memory import Memory, mark
from refold.engine.output_warning import warn_of_little_room
from refold.engine.receipts import Receipt
from refold.engine.refusal import read_refusal
from refold.engine.tasks import Source
from refold.engine.telling import OVERTAKEN, UNFIT, Act
from refold.model.errors import ContextOverflow
from refold.model.summary import Summary
from refold.model.tokens import Measurement
from refold.ports.summariser import Summariser, SummaryTask
from refold.ports.upstream import Ask, CountingUpstream, Upstream
from refold.text_work import is_long, run_text_act, run_text_work
from refold.wire.plain import text_in
from refold.wire.reply import Reply

__all__ = ["Conversation", "Summarise"]

T = TypeVar("T")
Place: TypeAlias = tuple[object, ...]
"""What a summary would follow: where two places are the same, so is what is shown before it."""

_log = logging.getLogger("refold")

ENOUGH = 0.5
"""Of the messages that a compaction would take out now: a summary of so many is used as it is, and no other is paid for."""


_held: set[asyncio.Task[Any]] = set()
"""What is being written: a loop does not hold its tasks, and what is paid for must not vanish with a conversation."""


class _Asked(Struct, frozen=True):
    """A summary that is being written, or was and is there: what it follows, and where it ends."""

    place: Place
    last: int


class Conversation:
    """One chat and its context window, for one task at a time.

    Takes the settings of `refold.sync.Conversation`, and `summariser`: who writes summaries ahead of time, a model (see
    `refold.summarisers`) or a function of your own. Without one, a digest is made of the messages' own words.
    """

    def __init__(
        self, model: str = "", *, summariser: Summariser | Summarise | None = None, **settings: Any
    ) -> None:
        self._talk = sync.Conversation(model, **settings)
        memory = self._talk.memory
        count = memory.folded.shown.counter.text
        self._summariser = summariser_of(summariser, memory.frame.fixed.dialect, count)
        if self._talk.memory.frame.policy.recipe.strategy == "extractive":
            self._summariser = None
        self._writing: asyncio.Task[Summary | None] | None = None
        self._asked: _Asked | None = None
        self._given_up: Place | None = None
        """Where a summary could not be written."""
        self._is_skipped = False
        """A compaction was left out since then: whoever failed may be asked again."""
        self._compacting = asyncio.Lock()
        self._one_at_a_time = asyncio.Lock()
        """Held by whoever reads or changes memory: an act on much text runs in a thread."""
        self._in_thread: asyncio.Future[None] | None = None
        """Is there while an act runs in a thread, and done with it."""
        self._talk.memory.summarise = self._without_model

    async def add(self, *messages: object, sensitive: bool = False) -> None:
        """Add what was said; see `refold.sync.Conversation.add`."""
        await self._take_in(partial(self._talk.add, *messages, sensitive=sensitive), text_in(messages))

    async def _take_in(self, add: Callable[[], None], new: int) -> None:
        """Add messages, with `new` characters of text, and have a summary written where it is time."""
        self._write_ahead(await self._done(lambda: self._then_ahead(add), new))

    async def context(self) -> dict[str, Any]:
        """The fields of the next request."""
        return await self._done(self._talk.context)

    async def record(self, usage: object) -> None:
        """Take in what the provider reported."""
        await self._done(lambda: self._talk.record(usage))

    async def count(self, upstream: CountingUpstream) -> int | None:
        """How many tokens the provider says that the next request has, before it is sent; None where it cannot say.

        Worth a round trip for a very large request: where it would not fit, the context that is asked for next is smaller.

        Raises:
            UpstreamError: the provider did not answer.
        """
        memory = self._talk.memory
        window = await self._done(memory.context)
        sent = window.sent
        found = await upstream.count(Ask(sent, system=window.system, tools=window.fixed.tools))
        if found is not None:
            await self._done(lambda: memory.measured(found))
        return found

    async def compact(self, *, focus: str = "") -> dict[str, Any]:
        """Compact now, and give the fields of the next request. `focus` is what the summary should give its room to."""
        before = self._place
        async with self._compacting:
            before, memory = self._place if focus else before, self._talk.memory
            with memory.telling.act(memory, "manual") as act:
                if self._place == before:  # else somebody who asked at the same time has done it
                    await self._have_written(focus)
                return await self._done(lambda: self._compacted(before, act))

    def _compacted(self, before: Place, act: Act) -> dict[str, Any]:
        if self._place != before:
            act.end("superseded", OVERTAKEN)
            return self._talk.context()
        with self._talk.memory.telling.within(act):
            return self._talk.compact()

    async def _have_written(self, focus: str) -> None:
        """Wait for the summary that a compaction would take now: the one that is being written, or another one."""
        memory = self._talk.memory
        if self._summariser is None:
            return
        request, place, is_asked = await self._look(self._wanted)
        if request is None:
            return
        if not focus and is_asked:
            await self._wait_for_writing()
            if self._asked is not None or self._has_failed or self._place != place:
                return
            # Nobody waited when it was begun, and another program had it in hand.
        await self._stop_writing()
        request = await self._look(memory.asked_for) or request
        self._begin(request, self._summariser, focus)
        await self._wait_for_writing()

    def _wanted(self) -> tuple[SummaryRequest | None, Place, bool]:
        """What a compaction would have summarised now, after what, and whether a summary of enough of it is on its way."""
        request = self._talk.memory.asked_for()
        return request, self._place, request is not None and self._is_asked_for(request)

    async def undo(self) -> bool:
        """Take back the last thing that was done to the context."""
        self._asked = None
        return await self._done(self._talk.undo)

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """An original by its handle, or passages that fit the words."""
        return await self._done(lambda: self._talk.recall(what, max_tokens=max_tokens))

    async def recover(self, error: object) -> dict[str, Any]:
        """The fields of a smaller request, after a provider has refused the last one as too long. No model is asked for it."""
        self._given_up = None
        return await self._done(lambda: self._talk.recover(error))

    async def ask(self, upstream: Upstream, *, max_output: int | None = None) -> Reply:
        """Ask a model what comes next, and add its reply. A refusal as too long is answered with a smaller request at once.

        Raises:
            UpstreamError: there is no reply; what was said before stays.
            RecoverySpent: the provider refused every smaller request that could be made too.
        """
        memory = self._talk.memory
        warn_of_little_room(memory)
        window, reply = await self._done(memory.context), None
        while reply is None:
            sent = window.sent
            most = memory.output if max_output is None else max_output
            if window.output is not None:
                most = min(most, window.output)
            try:
                reply = await upstream.ask(
                    Ask(sent, window.system, window.fixed.tools, most or USUAL_OUTPUT, temperature=None)
                )
            except ContextOverflow as error:
                status, body = read_refusal(error)
                window = await self._done(partial(memory.recover, status, body))
        await self.record(reply.usage)
        new = sum(one.characters for one in reply.messages)
        await self._take_in(partial(memory.add, *reply.messages), new)
        return reply

    async def ready(self) -> None:
        """Wait until no summary is being written. Who stops waiting does not stop the work: it is paid for; `close` does."""
        await self._wait_for_writing()

    async def _wait_for_writing(self) -> None:
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})

    async def close(self) -> None:
        """Stop what goes on in the background. Nothing that was said is lost by it."""
        await self._stop_writing()

    async def _stop_writing(self) -> None:
        writing, asked = self._writing, self._asked
        if writing is None:
            return
        writing.cancel()
        await asyncio.wait({writing})
        if writing.cancelled() and self._asked is asked:
            self._asked = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def memory(self) -> Memory:
        """The engine's own state."""
        return self._talk.memory

    @property
    def max_output(self) -> int:
        """How many tokens of output to ask for with the last context; see `refold.sync.Conversation.max_output`."""
        return self._talk.max_output

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return self._talk.receipts

    @property
    def measurement(self) -> Measurement:
        return self._talk.measurement

    @property
    def bill(self) -> Bill:
        return self._talk.bill

    async def _done(self, act: Callable[[], T], new: int = 0) -> T:
        """Everything that may change the conversation goes through here, one act at a time; `new` is how much text comes with it."""
        async with self._one_at_a_time:
            return await self._acted(act, self._talk.memory.text_size + new)

    async def _look(self, read: Callable[[], T]) -> T:
        """What is read of the conversation, while nobody changes it."""
        async with self._one_at_a_time:
            return await self._acted(read, self._talk.memory.text_size)

    async def _acted(self, act: Callable[[], T], size: int) -> T:
        """Do what reads or changes memory, in a thread where it reads much text; whoever calls this holds the lock.

        An act whose caller is stopped comes to its end in its thread, and nothing comes of it. What an act tells is told by the
        event loop, once it is done.
        """
        if not is_long(size):
            return act()
        memory = self._talk.memory
        put_back = mark(memory)
        with memory.telling.held() as tell:
            try:
                result = await self._run(act, size)
            except asyncio.CancelledError:
                put_back()
                raise
        tell()
        return result

    async def _run(self, act: Callable[[], T], size: int) -> T:
        """Call an act, in a thread where it reads much text: to its end, also where whoever waits for it is stopped."""
        if not is_long(size):
            return act()
        over = self._in_thread = asyncio.get_running_loop().create_future()
        try:
            return await run_text_act(size, act)
        finally:
            self._in_thread = None
            over.set_result(None)

    async def _until_no_thread(self) -> None:
        """Wait until no act runs in a thread."""
        while self._in_thread is not None:
            await asyncio.wait({self._in_thread})

    def _then_ahead(
        self, act: Callable[..., object], *args: object, **kwargs: object
    ) -> SummaryRequest | None:
        """Act, and say what is to be summarised ahead of time then."""
        act(*args, **kwargs)
        return self._ahead()

    def _ahead(self) -> SummaryRequest | None:
        """What to have summarised before it is needed, where it is time. Once for each fold: who is down is not asked with every
        message.
        """
        if self._summariser is None or self._is_writing or (self._has_failed and not self._is_skipped):
            return None
        return self._talk.memory.ahead()

    def _write_ahead(self, request: SummaryRequest | None) -> None:
        """Have a summary written in the background, if one is due. Called with nothing awaited since the act that asked for it."""
        if request is not None and self._summariser is not None and not self._is_writing:
            self._begin(request, self._summariser)

    def _begin(self, request: SummaryRequest, summariser: Summariser, focus: str = "") -> None:
        self._writing = held(self._write(request, summariser, focus))

    @property
    def _place(self) -> Place:
        """By what is covered, and not by identity: what is read again from a store is the same."""
        return tuple((one.last, one.number) for one in self._talk.memory.folded.summaries)

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    @property
    def _has_failed(self) -> bool:
        return self._given_up is not None and self._given_up == self._place

    def _is_asked_for(self, request: SummaryRequest) -> bool:
        """Does what is being written, or is there already, stand for enough of what would leave now?"""
        asked = self._asked
        return asked is not None and asked.place == self._place and self._is_enough(request, asked.last)

    def _is_enough(self, request: SummaryRequest, last: int) -> bool:
        """Does a summary up to this message stand for enough of what would leave now?"""
        covered, wanted = last - self._shown_from, request.last - self._shown_from
        return ENOUGH * wanted <= covered <= wanted and self._talk.memory.suffices(last)

    @property
    def _shown_from(self) -> int:
        """Where the next summary begins."""
        shown = self._talk.memory.folded.summaries
        return shown[-1].last if shown else 0

    def _note_asked(self, last: int) -> _Asked:
        """Note that a summary up to this message is being written, or there, for what is shown now."""
        self._asked = _Asked(self._place, last)
        return self._asked

    def _without_model(self, request: SummaryRequest, folded: Folded, frame: Frame) -> Summary | None:
        """What stands for messages where no model's summary does: a digest, or what the policy says after a failure."""
        if self._has_failed and frame.policy.on_failure != "digest":
            self._is_skipped = True
            return None
        return extractive.summarise(request, folded, frame)

    def _write(
        self, request: SummaryRequest, summariser: Summariser, focus: str = ""
    ) -> Coroutine[Any, Any, Summary | None]:
        """Have one summary written. Whatever goes wrong, the history is there, and a digest needs no model."""
        self._is_skipped = False
        source = Source.of(self._talk.memory)
        return self._prepare(self._note_asked(request.last), request, summariser, focus, source)

    async def _prepare(
        self, asked: _Asked, request: SummaryRequest, summariser: Summariser, focus: str, source: Source
    ) -> Summary | None:
        summary = None
        try:
            if self._place == asked.place:
                summary = await self._written(request, summariser, focus, source)
            await self._until_no_thread()
        finally:
            # It may have come too late, or been undone: what it covers is not what is shown now.
            is_of_use = summary is not None and self._place == asked.place
            if self._asked is asked and not is_of_use:
                self._asked = None
        if summary is not None and is_of_use:
            self._given_up = None
            self._talk.memory.prepare(summary)
            self._note_asked(summary.last)
        return summary

    async def _written(
        self, request: SummaryRequest, summariser: Summariser, focus: str, source: Source | None = None
    ) -> Summary | None:
        place = self._place
        summary = await self._answer(request, summariser, focus, source or Source.of(self._talk.memory))
        if summary is None:
            self._given_up = place
        return summary

    async def _answer(
        self, request: SummaryRequest, summariser: Summariser, focus: str, source: Source
    ) -> Summary | None:
        task = partial(source.task, request, focus)
        return await self._put(
            summariser, request, task, source.text_size, is_awaited=self._compacting.locked
        )

    async def _put(
        self,
        summariser: Summariser,
        request: SummaryRequest,
        task: Callable[[], SummaryTask],
        size: int,
        *,
        is_awaited: Callable[[], bool],
    ) -> Summary | None:
        """Put a task, which is made from text of a size, to a summariser, and tell what came of it; whether somebody waits for it is
        asked at its end.
        """
        problem = UNFIT
        try:
            made = await run_text_work(size, task)
            summary = await summariser.write(made)
            if summary is not None and made.digested:
                summary = structs.replace(summary, digested=made.digested)
        except Exception as error:  # noqa: BLE001  # somebody else's code: its failure must not stop the conversation
            _log.warning("a summary could not be written: %s", type(error).__name__)
            summary, problem = None, type(error).__name__
        bill, telling = bill_of(summariser, summary), self._talk.memory.telling
        telling.asked(request, summary, bill, problem, is_awaited=is_awaited())
        return summary


def held(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin work in the background that does not vanish with whoever began it."""
    task = asyncio.create_task(work)
    _held.add(task)
    task.add_done_callback(_held.discard)
    return task
