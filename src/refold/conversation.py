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
from refold.model.summary import Summary
from refold.model.tokens import Measurement
from refold.wire.plain import plain_message

_log = logging.getLogger("refold")


class Summarise(Protocol):
    """Writes a summary, by a model or by any other means; an empty text means that none could be written."""

    async def __call__(
        self, messages: Sequence[dict[str, Any]], *, previous: str, max_tokens: int
    ) -> str: ...


class Conversation:
    """One chat and its context window, for one task at a time.

    Takes the settings of `refold.sync.Conversation`, and `summarise`: how a summary is written ahead of time. Without it, a
    digest is made of the messages' own words.
    """

    def __init__(self, model: str = "", *, summarise: Summarise | None = None, **settings: Any) -> None:
        self._talk = sync.Conversation(model, **settings)
        self._summarise = summarise
        self._writing: asyncio.Task[None] | None = None

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

    async def compact(self) -> dict[str, Any]:
        """Compact now, and give the fields of the next request."""
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
        if self._summarise is None or (self._writing is not None and not self._writing.done()):
            return
        request = self._talk.memory.ahead()
        if request is not None:
            self._writing = asyncio.create_task(self._write(request, self._summarise))

    async def _write(self, request: SummaryRequest, summarise: Summarise) -> None:
        """Write one summary. Whatever goes wrong, the history is there, and a digest can be made without a model."""
        memory = self._talk.memory
        dialect, counter = memory.frame.fixed.dialect, memory.folded.shown.counter
        previous = request.previous[-1] if request.previous else None
        originals = memory.folded.branch.messages(previous.last if previous else 0, request.last)
        messages = [plain_message(message, dialect) for message in originals]
        try:
            text = await summarise(
                messages, previous=previous.text if previous else "", max_tokens=request.max_tokens
            )
        except Exception as error:  # noqa: BLE001  # somebody else's code: its failure must not stop the conversation
            _log.warning("a summary could not be written: %s", type(error).__name__)
            return
        if text.strip():
            scope = memory.frame.policy.scope
            memory.prepare(Summary(text, request.first, request.last, counter.text(text), "model", scope))
