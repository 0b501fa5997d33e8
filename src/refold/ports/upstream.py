"""A model somewhere: what can be asked of it.

One idea: whoever needs a model needs an answer to some messages. Which provider, which wire format, which key and how often
it was tried is the upstream's own business.
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
    """Bound but not meant to be called: the same tools as in the conversation, for the same reason."""
    max_output: int = 2_048
    temperature: float | None = 0.3
    is_cached: bool = False
    """The provider has read most of it before, and should look it up."""
    estimated: int | None = None
    """Our own count of the input, and"""
    budget: int | None = None
    """what it was allowed: a provider that refuses without a word means an overflow only near that."""

    @property
    def characters(self) -> int:
        """How much text there is in the messages."""
        return sum(message.characters for message in self.messages)


class Upstream(Protocol):
    @property
    def model(self) -> str: ...

    async def ask(self, ask: Ask) -> Reply:
        """The model's answer.

        Raises:
            UpstreamError: there is none; the kind of error says why, and whether a smaller window would help.
        """
        ...


class CountingUpstream(Upstream, Protocol):
    async def count(self, ask: Ask) -> int | None:
        """How many tokens the provider would read, by its own count; None where it has no way to ask.

        Raises:
            UpstreamError: as for `ask`.
        """
        ...


class StreamingUpstream(CountingUpstream, Protocol):
    def stream(self, ask: Ask) -> AsyncGenerator[Delta | Reply, None]:
        """The model's answer while it is written, and at the end the same reply that `ask` gives.

        Close it (`contextlib.aclosing`) to stop the model early; what was received is yours already.

        Raises:
            UpstreamError: as for `ask`, also in the middle of a reply.
        """
        ...
