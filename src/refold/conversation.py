"""Conversations for programs that serve others meanwhile: the library's main face.

One idea: nobody waits for a summary. When the window is getting full, one is asked for in the background; when it is full,
the switch takes the one that is there, or a digest that needs no model. The conversation goes on in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from refold import sync
from refold.compose import USUAL_OUTPUT
from refold.core import extractive
from refold.core.fold import Folded
from refold.core.plan import Frame, SummaryRequest
from refold.engine.bill import Bill
from refold.engine.memory import Memory
from refold.engine.receipts import Receipt
from refold.engine.refusal import read_refusal
from refold.engine.tasks import task_of
from refold.model.dialect import Dialect
from refold.model.errors import ContextOverflow
from refold.model.summary import Summary
from refold.model.tokens import Measurement
from refold.ports.summariser import Summariser, SummaryTask
from refold.ports.upstream import Ask, CountingUpstream, Upstream
from refold.wire.plain import plain_message
from refold.wire.reply import Reply

T = TypeVar("T")

_log = logging.getLogger("refold")

ENOUGH = 0.5
"""Of the messages that a compaction would take out now: a summary of so many is used as it is, and no other is paid for."""


class Summarise(Protocol):
    """Writes a summary by whatever means; an empty text means that none could be written."""

    async def __call__(
        self, messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int
    ) -> str: ...


class Conversation:
    """One chat and its context window, for one task at a time.

    Takes the settings of `refold.sync.Conversation`, and `summariser`: who writes summaries ahead of time, a model (see
    `refold.summarisers`) or a function of your own. Without one, a digest is made of the messages' own words.
    """

    def __init__(
        self, model: str = "", *, summariser: Summariser | Summarise | None = None, **settings: Any
    ) -> None:
        self._talk = sync.Conversation(model, **settings)
        dialect = self._talk.memory.frame.fixed.dialect
        self._summariser = _Function(summariser, dialect) if callable(summariser) else summariser
        if self._talk.memory.frame.policy.recipe.strategy == "extractive":
            self._summariser = None
        self._writing: asyncio.Task[None] | None = None
        self._asked: SummaryRequest | None = None
        """What is being written, or was and is there."""
        self._given_up: tuple[Summary, ...] | None = None
        """The summaries shown when a new one could not be written."""
        self._is_skipped = False
        """A compaction was left out since then: whoever failed may be asked again."""
        self._talk.memory.summarise = self._without_model

    async def add(self, *messages: object, sensitive: bool = False) -> None:
        """Add what was said; see `refold.sync.Conversation.add`."""
        await self._done(lambda: self._talk.add(*messages, sensitive=sensitive))
        self._write_ahead()

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
        sent = (*window.summaries, *window.messages)
        found = await upstream.count(Ask(sent, system=window.system, tools=window.fixed.tools))
        if found is not None:
            await self._done(lambda: memory.measured(found))
        return found

    async def compact(self, *, focus: str = "") -> dict[str, Any]:
        """Compact now, and give the fields of the next request. `focus` is what the summary should give its room to."""
        request = self._talk.memory.asked_for()
        if self._summariser is not None and request is not None:
            if not focus and self._is_asked_for(request):
                await self.ready()
            else:
                await self.close()
                await self._write(request, self._summariser, focus)
        return await self._done(self._talk.compact)

    async def undo(self) -> bool:
        """Take back the last thing that was done to the context."""
        self._asked = None
        return self._talk.undo()

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """An original by its handle, or passages that fit the words."""
        return self._talk.recall(what, max_tokens=max_tokens)

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
        most = memory.frame.budget.max_output if max_output is None else max_output
        window, reply = await self._done(memory.context), None
        while reply is None:
            sent = (*window.summaries, *window.messages)
            try:
                reply = await upstream.ask(
                    Ask(sent, window.system, window.fixed.tools, most or USUAL_OUTPUT, temperature=None)
                )
            except ContextOverflow as error:
                status, body = read_refusal(error)
                window = await self._done(partial(memory.recover, status, body))
        await self.record(reply.usage)
        await self._done(partial(memory.add, *reply.messages))
        self._write_ahead()
        return reply

    async def ready(self) -> None:
        """Wait until no summary is being written: for tests, and before a program ends."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    async def close(self) -> None:
        """Stop what goes on in the background. Nothing that was said is lost by it."""
        if self._writing is not None:
            self._writing.cancel()
        await self.ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def memory(self) -> Memory:
        """The engine's own state."""
        return self._talk.memory

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return self._talk.receipts

    @property
    def measurement(self) -> Measurement:
        return self._talk.measurement

    @property
    def bill(self) -> Bill:
        return self._talk.bill

    async def _done(self, act: Callable[[], T]) -> T:
        """Everything that may change the conversation goes through here."""
        return act()

    def _write_ahead(self) -> None:
        """Ask for a summary, where it is time. Once for each fold: who is down is not asked with every message."""
        is_busy = self._writing is not None and not self._writing.done()
        has_failed = self._has_failed(self._talk.memory.folded) and not self._is_skipped
        if self._summariser is None or is_busy or has_failed:
            return
        request = self._talk.memory.ahead()
        if request is not None:
            self._writing = asyncio.create_task(self._write(request, self._summariser))

    def _is_asked_for(self, request: SummaryRequest) -> bool:
        """Does what is being written, or is there already, stand for enough of what would leave now?"""
        asked = self._asked
        if asked is None or asked.previous is not request.previous:
            return False
        start = asked.previous[-1].last if asked.previous else 0
        return ENOUGH * (request.last - start) <= asked.last - start <= request.last - start

    def _has_failed(self, folded: Folded) -> bool:
        return self._given_up is not None and self._given_up is folded.summaries

    def _without_model(self, request: SummaryRequest, folded: Folded, frame: Frame) -> Summary | None:
        """What stands for messages where no model's summary does: a digest, or what the policy says after a failure."""
        if self._has_failed(folded) and frame.policy.on_failure != "digest":
            self._is_skipped = True
            return None
        return extractive.summarise(request, folded, frame)

    async def _write(self, request: SummaryRequest, summariser: Summariser, focus: str = "") -> None:
        """Have one summary written. Whatever goes wrong, the history is there, and a digest needs no model."""
        memory = self._talk.memory
        self._asked, self._is_skipped = request, False
        try:
            summary = await self._written(request, summariser, focus)
        except asyncio.CancelledError:
            self._asked = None
            raise
        if memory.folded.summaries is not request.previous:
            return  # it came too late, or was undone: what it covers is not what is shown now
        if summary is None:
            self._asked, self._given_up = None, request.previous
        else:
            self._given_up = None
            memory.prepare(summary)

    async def _written(self, request: SummaryRequest, summariser: Summariser, focus: str) -> Summary | None:
        memory = self._talk.memory
        try:
            task = task_of(
                request,
                memory.folded,
                memory.frame,
                focus=focus,
                secrecy=memory.secrecy,
                sent=memory.last_window,
            )
            return await summariser.write(task)
        except Exception as error:  # noqa: BLE001  # somebody else's code: its failure must not stop the conversation
            _log.warning("a summary could not be written: %s", type(error).__name__)
            return None


class _Function:
    """A function as a summariser: it is given plain messages, and its text is taken as it is."""

    def __init__(self, write: Summarise, dialect: Dialect) -> None:
        self._write, self._dialect = write, dialect

    async def write(self, task: SummaryTask) -> Summary | None:
        messages = [plain_message(passage.message, self._dialect) for passage in task.passages]
        text = (await self._write(messages, previous=task.previous, max_tokens=task.max_tokens)).strip()
        return Summary(text, task.first, task.last, 0, "model", task.scope) if text else None
