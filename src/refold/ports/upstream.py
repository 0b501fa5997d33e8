"""A model somewhere: what can be asked of it.

One idea: whoever needs a model needs an answer to some messages. Which provider, which wire format, which key and how often
it was tried is the upstream's own business.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from refold.model.message import Message
from refold.model.window import Tool
from refold.wire.reply import Reply


class Ask(Struct, frozen=True):
    """One question to a model, in no particular wire format."""

    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[Tool, ...] = ()
    """Bound but not meant to be called: the same tools as in the conversation, so that the provider's cache hits."""
    max_output: int = 2_048
    temperature: float | None = 0.3


class Upstream(Protocol):
    @property
    def model(self) -> str: ...

    async def ask(self, ask: Ask) -> Reply:
        """The model's answer.

        Raises:
            UpstreamError: there is none; the kind of error says why, and whether a smaller window would help.
        """
        ...
