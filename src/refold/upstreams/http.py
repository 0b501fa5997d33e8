"""Asks a provider over HTTP, streamed or not.

Both ways share one code path: an attempt is a generator of items whose last item is the reply; without a
stream the reply is the only item. The content type of the answer decides how it is read, because some servers
stream unasked and some never stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

import aiohttp
from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode

from refold.core.assemble import BRIDGE, needs_bridge
from refold.core.pairs import repair
from refold.model.dialect import Dialect
from refold.model.errors import UpstreamError, WireError
from refold.model.message import Message, system, user
from refold.ports.upstream import Ask
from refold.text_work import run_text_act, run_text_work
from refold.upstreams.connection import Connection
from refold.upstreams.provider import Provider
from refold.upstreams.response_errors import (
    MAX_ERROR_BYTES,
    ErrorReply,
    Pace,
    Setback,
    error_of_response,
    unreadable_reply,
    with_retries,
)
from refold.wire.error import answer_error
from refold.wire.json_codec import MAX_BODY_BYTES, write
from refold.wire.reply import Reply, decode_reply
from refold.wire.request import Request, encode_request
from refold.wire.sse import Delta
from refold.wire.stream import StreamReader
from refold.wire.translate import translate_messages, translate_tools

# Request bodies


def request_body(
    ask: Ask, provider: Provider, dialect: Dialect, *, stream: bool, without: frozenset[str] = frozenset()
) -> bytes:
    """The body of a request. `without` names parameters that the model has refused.

    Raises:
        WireError: a message cannot be written in this format.
    """
    fields = {**_fields(ask, provider, dialect, stream=stream), **provider.parameters}
    raws = {key: _raw(value) for key, value in fields.items() if value is not None and key not in without}
    request = Request(dialect, (), fields=raws)
    return encode_request(request, _messages(ask, dialect), system=_system(ask, dialect))


def count_body(ask: Ask, provider: Provider, dialect: Dialect) -> bytes:
    """The body of a request for a token count: the input, without parameters of the reply.

    Raises:
        WireError: a message cannot be written in this format.
    """
    tools = translate_tools(ask.tools, dialect) if ask.tools else None
    fields = {"model": _raw(provider.model), **({"tools": _raw(tools)} if tools else {})}
    return encode_request(
        Request(dialect, (), fields=fields), _messages(ask, dialect), system=_system(ask, dialect)
    )


def _fields(ask: Ask, provider: Provider, dialect: Dialect, *, stream: bool) -> dict[str, object]:
    fields: dict[str, object] = {"model": provider.model, _limit_field(provider, dialect): ask.max_output}
    if ask.temperature is not None:
        fields["temperature"] = ask.temperature
    if ask.tools:
        fields["tools"] = translate_tools(ask.tools, dialect) or None
    if ask.is_cached and dialect.max_breakpoints:
        fields["cache_control"] = {"type": "ephemeral"}  # other formats cache without being told
    if dialect.name == "responses":
        fields["store"] = False  # the provider shall not store the conversation
    if stream:
        fields["stream"] = True
        if dialect.name == "chat":
            fields["stream_options"] = {"include_usage": True}
    return fields


def _limit_field(provider: Provider, dialect: Dialect) -> str:
    if dialect.name == "chat":
        return provider.output_field
    return "max_tokens" if dialect.name == "anthropic" else "max_output_tokens"


def _raw(value: object) -> Raw:
    return write(value)  # type: ignore[arg-type]  # parameters come from a configuration and are JSON


def _messages(ask: Ask, dialect: Dialect) -> tuple[Message, ...]:
    translated = translate_messages(ask.messages, dialect)
    sound = repair(translated, dialect, as_request=True).messages
    is_bridged = dialect.starts_with_user and sound and needs_bridge(sound[0], dialect)
    return (user(BRIDGE), *sound) if is_bridged else sound


def _system(ask: Ask, dialect: Dialect) -> tuple[Message, ...]:
    if isinstance(ask.system, str):
        return (system(ask.system),) if ask.system else ()
    prompts = translate_messages(ask.system, dialect)
    if dialect.name != "anthropic" or len(prompts) < 2:
        return prompts
    return (Message("system", tuple(part for prompt in prompts for part in prompt.bare().parts)),)


_EVENTS = "text/event-stream"
_JSON = "application/json"
_OPTIONAL = "temperature"
"""Reasoning models refuse this parameter. A list of such models would not stay correct, so the first refusal
is remembered.
"""


_COUNTED_UNDER = {"anthropic": "/count_tokens", "responses": "/input_tokens"}


class _Count(Struct, frozen=True):
    input_tokens: int


class HttpUpstream:
    """A provider's client for replies; made by `open_upstream`."""

    def __init__(self, provider: Provider, dialect: Dialect, connection: Connection, pace: Pace) -> None:
        self._provider, self._dialect, self._connection, self._pace = provider, dialect, connection, pace
        self._without: frozenset[str] = frozenset()
        """Parameters that the model has refused; they are not sent again."""

    def __repr__(self) -> str:
        return f"<upstream {self._provider.name}: {self.model}>"

    @property
    def model(self) -> str:
        return self._provider.model

    async def ask(self, ask: Ask) -> Reply:
        async with aclosing(self._items(ask, stream=False)) as items:
            async for item in items:
                if isinstance(item, Reply):
                    return item
        raise UpstreamError

    def stream(self, ask: Ask) -> AsyncGenerator[Delta | Reply, None]:
        return self._items(ask, stream=True)

    async def count(self, ask: Ask) -> int | None:
        under = _COUNTED_UNDER.get(self._dialect.name)
        if under is None:
            return None
        until = self._pace.clock() + self._provider.timeouts.total_s
        counts = with_retries(lambda: self._count(ask, under, until), self._provider, self._pace, until)
        async with aclosing(counts):
            return await anext(counts)

    async def _count(self, ask: Ask, under: str, until: float) -> AsyncGenerator[int, None]:
        body = await run_text_work(ask.characters, count_body, ask, self._provider, self._dialect)
        async with self._connection.post(body, _JSON, until, under=under) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response, ask, until)
            found = await self._connection.body(response, until, MAX_ERROR_BYTES)
        try:
            yield decode(found, type=_Count).input_tokens
        except DecodeError:
            raise unreadable_reply(self._provider, WireError("no count")) from None

    def _items(self, ask: Ask, *, stream: bool) -> AsyncGenerator[Delta | Reply, None]:
        until = self._pace.clock() + self._provider.timeouts.total_s
        return with_retries(
            lambda: self._try(ask, stream=stream, until=until), self._provider, self._pace, until
        )

    async def _try(self, ask: Ask, *, stream: bool, until: float) -> AsyncGenerator[Delta | Reply, None]:
        write = partial(
            request_body, ask, self._provider, self._dialect, stream=stream, without=self._without
        )
        body = await run_text_work(ask.characters, write)
        accept = _EVENTS if stream else _JSON
        async with self._connection.post(body, accept, until) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response, ask, until)
            if not response.headers.get("content-type", accept).startswith(_EVENTS):
                answer = await self._connection.body(response, until, MAX_BODY_BYTES)
                yield await run_text_work(len(answer), self._reply, answer, ask)
                return
            async with aclosing(self._events(response, ask, until)) as items:
                async for item in items:
                    yield item

    async def _events(
        self, response: aiohttp.ClientResponse, ask: Ask, until: float
    ) -> AsyncGenerator[Delta | Reply, None]:
        reader, lost = StreamReader(self._dialect), None
        try:
            async with aclosing(self._connection.chunks(response, until)) as chunks:
                async for chunk in chunks:
                    for delta in await run_text_act(reader.pending + len(chunk), reader.feed, chunk):
                        yield delta
                    if reader.is_over:
                        break
        except Setback as setback:
            lost = setback
        reader.end()
        if reader.failure is not None:
            raise self._refused(ErrorReply(200, reader.failure), ask)
        if lost is not None:
            raise lost
        try:
            reply = await run_text_work(reader.seen, reader.reply)
        except WireError as error:
            raise unreadable_reply(self._provider, error) from None
        await self._connection.linger(response)
        yield reply

    def _reply(self, body: bytes, ask: Ask) -> Reply:
        """Decode a reply that was not streamed. Some providers send their errors with status 200."""
        try:
            reply = decode_reply(body, self._dialect)
        except WireError as error:
            setback = self._refused(ErrorReply(200, body), ask)
            is_told = answer_error(body).is_error or type(setback.error) is not UpstreamError
            raise (setback if is_told else unreadable_reply(self._provider, error)) from None
        if reply.finish == "error":
            raise self._refused(ErrorReply(200, body), ask)
        return reply

    async def _refusal(self, response: aiohttp.ClientResponse, ask: Ask, until: float) -> Setback:
        try:
            body = await self._connection.body(response, until, MAX_ERROR_BYTES)
        except Setback:
            body = b""  # the status is enough
        answer = ErrorReply(response.status, body, response.headers)
        setback = await run_text_work(len(body), self._refused, answer, ask)
        is_open = ask.temperature is not None and _OPTIONAL not in self._without
        if is_open and type(setback.error) is UpstreamError and _OPTIONAL.encode() in body:
            self._without |= {_OPTIONAL}
            setback.is_mended = True
        return setback

    def _refused(self, answer: ErrorReply, ask: Ask) -> Setback:
        return error_of_response(self._provider, answer, ask, self._pace.wall())
