"""What a client sent: one request, as it came and as it reads.

One idea: a test asks what left the application under test. So everything that came is kept, bytes and headers, and shown only
to whoever asks for it: printing a request shows neither its content nor its key.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from refold.model.dialect import Dialect
from refold.model.message import Message, after_compaction
from refold.wire import Request


def key_of(headers: Mapping[str, str]) -> str:
    return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")


class Received(Struct, frozen=True):
    number: int
    """The first request is number one."""
    path: str
    dialect: Dialect
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    request: Request | None = None
    """The body as Refold reads it; None where it is no request of its dialect."""

    @property
    def json(self) -> object:
        """The body as Python values."""
        return msgspec.json.decode(self.body)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation after the system prompt."""
        return self.request.messages if self.request else ()

    @property
    def seen(self) -> tuple[Message, ...]:
        """What the model sees of the conversation: providers ignore what stands before their own newest compaction."""
        return after_compaction(self.messages)

    @property
    def system(self) -> str:
        """The system prompt as one text."""
        return "\n".join(message.text for message in self.request.system) if self.request else ""

    @property
    def text(self) -> str:
        """What the user said last."""
        said = (message.text for message in reversed(self.messages) if message.role == "user")
        return next(said, "")

    @property
    def model(self) -> str:
        return self.request.model if self.request else ""

    @property
    def stream(self) -> bool:
        return bool(self.request and self.request.stream)

    @property
    def key(self) -> str:
        """The key it was sent with, in whichever header."""
        return key_of(self.headers)

    def __repr__(self) -> str:
        return (
            f"<request {self.number}: {self.path}, {len(self.messages)} messages, {len(self.body):,} bytes>"
        )
