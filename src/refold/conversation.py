"""Conversations for programs that serve others meanwhile: the library's main face.

One idea: nobody waits for a summary. When the window is getting full, one is asked for in the background; when it is full,
the switch takes the one that is there, or a digest that needs no model. The conversation goes on in any case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol, Self

from refold import sync
from refold.core.plan import SummaryRequest
from refold.engine.bill import Bill
from refold.engine.memory import Receipt
from refold.engine.tasks import task_of
from refold.model.dialect import Dialect
from refold.model.summary import Summary
from refold.model.tokens import Measurement
from refold.ports.summariser import Summariser, SummaryTask
from refold.wire.plain import plain_message

_log = logging.getLogger("refold")


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
        self._writing: asyncio.Task[None] | None = None
        self._given_up: tuple[Summary, ...] | None = None

    async def add(self, *messages: object) -> None:
        """Add what was said; see `refold.sync.Conversation.add`."""
        self._talk.add(*messages)
        self._write_ahead()

    async def context(self) -> dict[str, Any]:
        """The fields of the next request."""
        return self._talk.context()

    async def record(self, usage: object) -> None:
        """Take in what the provider reported."""
        self._talk.record(usage)

    async def compact(self, *, focus: str = "") -> dict[str, Any]:
        """Compact now, and give the fields of the next request. `focus` is what the summary should give its room to."""
        request = self._talk.memory.asked_for()
        if self._summariser is not None and request is not None:
            await self.close()
            await self._write(request, self._summariser, focus)
        return self._talk.compact()

    async def undo(self) -> bool:
        """Take back the last thing that was done to the context."""
        return self._talk.undo()

    async def recall(self, what: str, *, max_tokens: int = 1_000) -> dict[str, Any] | str:
        """An original by its handle, or passages that fit the words."""
        return self._talk.recall(what, max_tokens=max_tokens)

    async def recover(self, error: object) -> dict[str, Any]:
        """The fields of a smaller request, after a provider has refused the last one as too long."""
        return self._talk.recover(error)

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
    def receipts(self) -> tuple[Receipt, ...]:
        return self._talk.receipts

    @property
    def measurement(self) -> Measurement:
        return self._talk.measurement

    @property
    def bill(self) -> Bill:
        return self._talk.bill

    def _write_ahead(self) -> None:
        """Ask for a summary, where it is time. Once for each fold: who is down is not asked with every message."""
        is_busy = self._writing is not None and not self._writing.done()
        if self._summariser is None or is_busy or self._given_up is self._talk.memory.folded.summaries:
            return
        request = self._talk.memory.ahead()
        if request is not None:
            self._given_up = None
            self._writing = asyncio.create_task(self._write(request, self._summariser))

    async def _write(self, request: SummaryRequest, summariser: Summariser, focus: str = "") -> None:
        """Have one summary written. Whatever goes wrong, the history is there, and a digest needs no model."""
        memory = self._talk.memory
        task = task_of(request, memory.folded, memory.frame, focus=focus, sent=memory.last_window)
        try:
            summary = await summariser.write(task)
        except Exception as error:  # noqa: BLE001  # somebody else's code: its failure must not stop the conversation
            _log.warning("a summary could not be written: %s", type(error).__name__)
            summary = None
        if memory.folded.summaries is not request.previous:
            return  # it came too late, or was undone: what it covers is not what is shown now
        if summary is None:
            self._given_up = request.previous
        else:
            memory.prepare(summary)


class _Function:
    """A function as a summariser: it is given plain messages, and its text is taken as it is."""

    def __init__(self, write: Summarise, dialect: Dialect) -> None:
        self._write, self._dialect = write, dialect

    async def write(self, task: SummaryTask) -> Summary | None:
        messages = [plain_message(passage.message, self._dialect) for passage in task.passages]
        text = (await self._write(messages, previous=task.previous, max_tokens=task.max_tokens)).strip()
        return Summary(text, task.first, task.last, 0, "model", task.scope) if text else None
