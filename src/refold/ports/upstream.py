"""The upstream protocol: asks a model for a reply to some messages.

Provider, wire format, key and retries are the upstream's own business; callers do not see them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct

from refold.model.message import Message
from refold.model.window import Tool
from refold.wire.reply import Reply
from refold.wire.sse import Delta


class Ask(Struct, frozen=True):
    """One question to a model, in no particular wire format."""

    messages: tuple[Message, ...]
    system: str | tuple[Message, ...] = ""
    """A text, or the system messages of a conversation as they came, so that the provider's cache hits."""
    tools: tuple[Tool, ...] = ()
    """The tools of the conversation, for the same reason. They are not meant to be called."""
    max_output: int = 2_048
    temperature: float | None = 0.3
    is_cached: bool = False
    """Whether the provider has read most of it before, and should look it up in its cache."""
    estimated: int | None = None
    """Our own count of the input."""
    budget: int | None = None
    """The input that was allowed. A provider's refusal without a text is taken for an overflow only near this
    size."""

    @property
    def characters(self) -> int:
        """Characters in the messages."""
        return sum(message.characters for message in self.messages)


class Upstream(Protocol):
    """A connection to one model."""

    @property
    def model(self) -> str: ...

    async def ask(self, ask: Ask) -> Reply:
        """Return the model's reply.

        Raises:
            UpstreamError: there is none. The type of the error says why, and whether a smaller window would
                help.
        """
        ...


class CountingUpstream(Upstream, Protocol):
    """An upstream that can also count tokens."""

    async def count(self, ask: Ask) -> int | None:
        """Return how many tokens the provider would read, by its own count; None if it cannot count.

        Raises:
            UpstreamError: as for `ask`.
        """
        ...


class StreamingUpstream(CountingUpstream, Protocol):
    """An upstream that can also stream replies."""

    def stream(self, ask: Ask) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the reply while it is written, and at the end the same reply that `ask` returns.

        Close it (`contextlib.aclosing`) to stop the model early; the deltas so far were already received.

        Raises:
            UpstreamError: as for `ask`, also in the middle of a reply.
        """
        ...
