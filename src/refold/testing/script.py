"""The script of a test: the answers to the next requests.

An answer is a value, or a function of the request that returns one. Answers are used in order, and
`otherwise` after the last. Without `otherwise` a further request is an error that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from inspect import isawaitable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from refold.model.dialect import Dialect
from refold.model.message import Message, Reasoning, Text, ToolCall, after_compaction
from refold.model.tokens import Usage
from refold.wire import Request

# Replies: the parts and the finish reason, independent of a protocol

ReplyPart: TypeAlias = Text | Reasoning | ToolCall
Finish: TypeAlias = Literal["stop", "length", "calls", "refusal", "filter", "window"]
"""The finish reason; each protocol has its own word for it. `window`: the model ran out of room while it
wrote.
"""


class Say(Struct, frozen=True):
    """A reply. Without parts it is empty."""

    parts: tuple[ReplyPart, ...] = ()
    finish: Finish = "stop"
    usage: Usage | None = None
    """The reported usage; None to count it."""


def say(*parts: str | ReplyPart, finish: Finish | None = None, usage: Usage | None = None) -> Say:
    """A reply of texts, reasoning and calls. The finish reason defaults to `calls` if it has any."""
    found = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    has_calls = any(isinstance(part, ToolCall) for part in found)
    return Say(found, finish or ("calls" if has_calls else "stop"), usage)


def as_say(answer: Say | str) -> Say:
    return say(answer) if isinstance(answer, str) else answer


def call(name: str, arguments: Mapping[str, object] | str = "{}", *, id: str = "") -> ToolCall:  # noqa: A002
    """A tool call. Arguments given as text are sent unchanged, even if they are not JSON."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(id, name, text)


def think(text: str, *, sealed: str = "") -> Reasoning:
    """Reasoning, which the server signs; or encrypted reasoning, whose text the client does not get."""
    return Reasoning("" if sealed else text, sealed=sealed)


def sign(text: str, before: bytes = b"") -> str:
    """The signature that the server gives to reasoning. A history written by a test needs it to be accepted.

    `before` is the hash of the conversation that the reasoning is bound to, if it is.
    """
    return f"sig_{blake2b(text.encode(), key=before, digest_size=24, person=b'refold-testing').hexdigest()}"


class NumberedReply(Struct, frozen=True):
    """A reply with its number, model and usage, ready to be encoded."""

    number: int
    model: str
    parts: tuple[ReplyPart, ...]
    finish: Finish
    usage: Usage
    written_1h: int = 0
    """The tokens written to the cache for an hour."""
    include_usage: bool = True
    """A client of Chat Completions has to ask for the usage of a stream."""
    include_sealed: bool = False
    """A client of Responses has to ask for encrypted reasoning, to be able to send it back."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def thoughts(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Reasoning) and part.text)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


# Faults: all answers that are not a whole reply

HTML = "text/html; charset=utf-8"
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
_STARTS_STREAM = (b"data:", b"event:", b"id:", b"retry:", b":")
_BLANK = b"\xef\xbb\xbf \t\r\n"


class Refuse(Struct, frozen=True):
    """An error. Empty fields get the default of the protocol's provider for this status."""

    status: int
    message: str = ""
    type: str = ""
    code: str | None = None
    retry_after_s: float | None = None
    in_stream: bool = False
    """For a streaming client: begin with a 200, and send the error as an event."""


class Body(Struct, frozen=True):
    """Exactly these bytes."""

    status: int
    content: bytes = b""
    content_type: str = JSON
    headers: dict[str, str] = {}
    in_stream: bool = False
    """For a streaming client: begin with a 200, and send these bytes as the error in the stream."""

    @classmethod
    def of(cls, status: int, value: object) -> Body:
        """Bytes unchanged, as an event stream if they begin like one; text as an HTML page, anything
        different as JSON.
        """
        if isinstance(value, bytes):
            return cls(status, value, EVENTS if value.lstrip(_BLANK).startswith(_STARTS_STREAM) else HTML)
        if isinstance(value, str):
            return cls(status, value.encode(), HTML)
        return cls(status, msgspec.json.encode(value))


class Broken(Struct, frozen=True):
    """A reply of which only the first events arrive; of a reply that is not streamed, the first half."""

    answer: Say | str
    after: int = 3
    then: Literal["end", "reset", "garbage", "error"] = "end"
    """The stream ends without its last events, the connection is reset, invalid JSON follows, or an error
    follows.
    """


class Reset(Struct, frozen=True):
    """The connection is reset before the first byte of an answer."""


ImmediateAnswer: TypeAlias = Say | Refuse | Body | Broken | Reset


class Slow(Struct, frozen=True):
    """A delayed answer. An infinite `before_s` never answers: the client has to give up."""

    answer: ImmediateAnswer | str
    before_s: float = 0.0
    between_s: float = 0.0
    """Between the events of a stream."""


Answer: TypeAlias = ImmediateAnswer | Slow


def rate_limited(retry_after_s: float | None = None) -> Refuse:
    """A 429, with the seconds to wait if given."""
    return Refuse(429, retry_after_s=retry_after_s)


def garbage() -> Body:
    """A success that is not JSON, as from a proxy or a captive portal."""
    return Body(200, b"<html><body>Welcome! Please log in.</body></html>", HTML)


# Received requests


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
    """The decoded body; None if it is not a request of its dialect."""

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
        """The part of the conversation that the model sees: providers ignore messages before their own newest
        compaction.
        """
        return after_compaction(self.messages)

    @property
    def system(self) -> str:
        """The system prompt as one text."""
        return "\n".join(message.text for message in self.request.system) if self.request else ""

    @property
    def text(self) -> str:
        """The text of the last user message."""
        texts = (message.text for message in reversed(self.messages) if message.role == "user")
        return next(texts, "")

    @property
    def model(self) -> str:
        return self.request.model if self.request else ""

    @property
    def stream(self) -> bool:
        return bool(self.request and self.request.stream)

    @property
    def key(self) -> str:
        """The key of the request, from any of the usual headers."""
        return key_of(self.headers)

    def __repr__(self) -> str:
        return (
            f"<request {self.number}: {self.path}, {len(self.messages)} messages, {len(self.body):,} bytes>"
        )


Function: TypeAlias = Callable[[Received], "str | Answer | Awaitable[str | Answer]"]
Scripted: TypeAlias = str | Answer | Function

GIVEN_UP = 410
"""The status of an error in the script itself: clients do not retry after it."""


class Script:
    def __init__(self, answers: list[Scripted], otherwise: Scripted | None) -> None:
        self.answers = answers
        """The remaining answers; may be changed at any time."""
        self.otherwise = otherwise

    async def next(self, received: Received) -> Answer:
        """The answer to a request."""
        scripted = self.answers.pop(0) if self.answers else self.otherwise
        if scripted is None:
            message = f"The script is over: it has no answer to request {received.number}."
            return Refuse(GIVEN_UP, message, "script_over")
        return await answer_of(scripted, received)


async def answer_of(scripted: Scripted, received: Received) -> Answer:
    """The answer that an entry of a script gives to a request."""
    found = scripted(received) if callable(scripted) else scripted
    answer = await found if isawaitable(found) else found
    return as_say(answer) if isinstance(answer, str) else answer


def echo(received: Received) -> Say:
    """Repeat the text of the last user message."""
    return say(received.text)


class LateSummaries:
    """A script for a chat and its summaries. A request to the model `writer` is for a summary, and is answered
    after `turns` further requests to other models; or `patience_s` seconds after the last of them, because a
    chat may wait for its summary.
    """

    def __init__(
        self,
        turns: int,
        *,
        writer: str,
        summary: Scripted,
        otherwise: Scripted,
        patience_s: float = 0.1,
    ) -> None:
        self.turns, self.writer, self.patience_s = turns, writer, patience_s
        self.summary, self.otherwise = summary, otherwise
        self._turn = 0
        self._passed = asyncio.Condition()

    async def __call__(self, received: Received) -> Answer:
        if received.model != self.writer:
            async with self._passed:
                self._turn += 1
                self._passed.notify_all()
            return await answer_of(self.otherwise, received)
        ready = self._turn + self.turns
        async with self._passed:
            with suppress(TimeoutError):
                while self._turn < ready:
                    await asyncio.wait_for(self._passed.wait(), self.patience_s)
        return await answer_of(self.summary, received)


def overloaded(received: Received) -> Refuse:
    """The provider is overloaded: a 529 from Anthropic, a 503 from other providers."""
    return Refuse(529 if received.dialect.name == "anthropic" else 503)


# Server-sent events of a streamed reply. The protocol modules return a list of events; the server
# decides when and whether to send each, so that a stream can be cut at any event.

JsonObject: TypeAlias = dict[str, object]

PIECE = 24
"""Characters of text in one event: a few words, so that a sentence takes several."""


class ReplyEvent(Struct, frozen=True):
    data: JsonObject | str
    name: str = ""

    def encode(self) -> bytes:
        data = self.data.encode() if isinstance(self.data, str) else msgspec.json.encode(self.data)
        return (b"event: %s\n" % self.name.encode() if self.name else b"") + b"data: %s\n\n" % data


GARBAGE = ReplyEvent('{"id": "cut in the midd')


def pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
