"""The script: what is answered next.

One idea: an answer is a value, or a function of the request that gives one. A list of them is used up from the front; what
comes after its end is said by `otherwise`. Without that the script is over, and a request too many is an error that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from inspect import isawaitable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from refold.model.dialect import Dialect
from refold.model.message import Message, Reasoning, Text, ToolCall, after_compaction
from refold.model.tokens import Usage
from refold.wire import Request

# What a model says: the parts of a reply and why it ends, before any provider spells it.

Said: TypeAlias = Text | Reasoning | ToolCall
Finish: TypeAlias = Literal["stop", "length", "calls", "refusal", "filter", "window"]
"""Why a reply ends; each protocol has its own word for it. `window`: the model ran out of room while it wrote."""


class Say(Struct, frozen=True):
    """A reply. Without parts it says nothing at all."""

    parts: tuple[Said, ...] = ()
    finish: Finish = "stop"
    usage: Usage | None = None
    """What the bill says; None to count it."""


def say(*parts: str | Said, finish: Finish | None = None, usage: Usage | None = None) -> Say:
    """A reply of texts, thoughts and calls. Where no reason to end is given, its calls are one."""
    said = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    has_calls = any(isinstance(part, ToolCall) for part in said)
    return Say(said, finish or ("calls" if has_calls else "stop"), usage)


def as_say(answer: Say | str) -> Say:
    return say(answer) if isinstance(answer, str) else answer


def call(name: str, arguments: Mapping[str, object] | str = "{}", *, id: str = "") -> ToolCall:  # noqa: A002
    """A tool call. Arguments given as text leave as they are, also where they are no JSON."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(id, name, text)


def think(text: str, *, sealed: str = "") -> Reasoning:
    """A thought, which the server signs; or a sealed one, of which a client sees no word."""
    return Reasoning("" if sealed else text, sealed=sealed)


def sign(text: str, before: bytes = b"") -> str:
    """The signature that the server gives a thought. A history made up by a test needs it to be accepted.

    `before` is a hash of the conversation that the thought is bound to, if it is.
    """
    return f"sig_{blake2b(text.encode(), key=before, digest_size=24, person=b'refold-testing').hexdigest()}"


class Spoken(Struct, frozen=True):
    """A reply on its way: what a spelling needs to know to write it down."""

    number: int
    model: str
    parts: tuple[Said, ...]
    finish: Finish
    usage: Usage
    written_1h: int = 0
    """Of what was written to the cache, the tokens that were asked to live for an hour."""
    include_usage: bool = True
    """A client of Chat Completions has to ask for the usage of a stream."""
    include_sealed: bool = False
    """A client of Responses has to ask for what it needs to send its reasoning back."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def thoughts(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Reasoning) and part.text)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


# What can go wrong: everything a provider answers that is not a whole reply.

HTML = "text/html; charset=utf-8"
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
_STARTS_STREAM = (b"data:", b"event:", b"id:", b"retry:", b":")
_BLANK = b"\xef\xbb\xbf \t\r\n"


class Refuse(Struct, frozen=True):
    """An error. What is left empty is said as the protocol's provider says it for this status."""

    status: int
    message: str = ""
    type: str = ""
    code: str | None = None
    retry_after_s: float | None = None
    in_stream: bool = False
    """Where the client asked for a stream, it begins with a 200, and the error is an event in it."""


class Body(Struct, frozen=True):
    """Exactly these bytes."""

    status: int
    content: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = {}
    in_stream: bool = False
    """Where the client asked for a stream, it begins with a 200, and these bytes are the error in it."""

    @classmethod
    def of(cls, status: int, value: object) -> Body:
        """Bytes as they are, a stream of events where they begin like one; text as a page, anything else as JSON."""
        if isinstance(value, bytes):
            return cls(status, value, EVENTS if value.lstrip(_BLANK).startswith(_STARTS_STREAM) else HTML)
        if isinstance(value, str):
            return cls(status, value.encode(), HTML)
        return cls(status, msgspec.json.encode(value))


class Broken(Struct, frozen=True):
    """A reply of which only the first events arrive. What is not streamed has no events, and arrives by half."""

    answer: Say | str
    after: int = 3
    then: Literal["end", "reset", "garbage", "error"] = "end"
    """The stream ends without its last events, the connection is reset, what follows is no JSON, or it is an error."""


class Reset(Struct, frozen=True):
    """The connection is reset before the first byte of an answer."""


Sudden: TypeAlias = Say | Refuse | Body | Broken | Reset


class Slow(Struct, frozen=True):
    """An answer that takes its time. An infinite `before_s` never comes: the client has to give up."""

    answer: Sudden | str
    before_s: float = 0.0
    between_s: float = 0.0
    """Between the events of a stream."""


Answer: TypeAlias = Sudden | Slow


def rate_limited(retry_after_s: float | None = None) -> Refuse:
    """A 429, with the seconds to wait where given."""
    return Refuse(429, retry_after_s=retry_after_s)


def garbage() -> Body:
    """A success that is no JSON: what a proxy or a captive portal answers."""
    return Body(200, b"<html><body>Welcome! Please log in.</body></html>", HTML)


# What a client sent: one request, as it came and as it reads.


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


Function: TypeAlias = Callable[[Received], "str | Answer | Awaitable[str | Answer]"]
Scripted: TypeAlias = str | Answer | Function

GIVEN_UP = 410
"""The status of what is the script's own fault: clients do not try again after it."""


class Script:
    def __init__(self, answers: list[Scripted], otherwise: Scripted | None) -> None:
        self.answers = answers
        """What is still to come; append to it, or change it as you like."""
        self.otherwise = otherwise

    async def next(self, received: Received) -> Answer:
        """The answer to a request."""
        scripted = self.answers.pop(0) if self.answers else self.otherwise
        if scripted is None:
            message = f"The script is over: it has no answer to request {received.number}."
            return Refuse(GIVEN_UP, message, "script_over")
        found = scripted(received) if callable(scripted) else scripted
        answer = await found if isawaitable(found) else found
        return as_say(answer) if isinstance(answer, str) else answer


def echo(received: Received) -> Say:
    """Say what the user said last."""
    return say(received.text)


def overloaded(received: Received) -> Refuse:
    """The provider has no room: a 529 from Anthropic, a 503 from others."""
    return Refuse(529 if received.dialect.name == "anthropic" else 503)
