"""Asks a provider over HTTP, streamed or not; classifies its error responses, and retries calls that may succeed later.

Both ways of asking share one code path: an attempt is a generator of items whose last item is the reply; without a
stream the reply is the only item. The content type of the answer decides how it is read, because some servers
stream unasked and some never stream.

`core.overflow` classifies the provider's error text; this module turns the result into an error that is safe to
show. The provider's own text is left out, because it may quote the conversation or the key; its error code is
kept if it is a known one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from io import BytesIO
from math import hypot, isfinite
from typing import TypeVar

import aiohttp
from msgspec import DecodeError, MsgspecError, Raw, Struct, json
from msgspec.json import decode

from refold.core.assemble import BRIDGE, needs_bridge
from refold.core.overflow import classify
from refold.core.pairs import repair
from refold.core.prompt_cache import mark_prompt
from refold.model.dialect import Dialect
from refold.model.errors import (
    BodyTooLarge,
    ContextOverflow,
    MalformedHistory,
    OutputCapExceeded,
    Overflow,
    OverflowKind,
    RateLimited,
    UpstreamError,
    UpstreamUnavailable,
    WireError,
)
from refold.model.message import Message, system, user
from refold.model.window import FixedFields, Ttl, Window
from refold.ports.models import Ask
from refold.text_work import run_text_act, run_text_work
from refold.upstreams.provider import Pace, Provider, ProviderKey, Retries
from refold.wire.error import ErrorBody, answer_error, decode_error
from refold.wire.json_codec import MAX_BODY_BYTES, NULL, write
from refold.wire.reply import Reply, StreamReader, decode_reply
from refold.wire.request import (
    COMPACTION_BETA,
    Request,
    beta_for,
    decode_tools,
    encode_request,
    encode_window,
    with_beta,
)
from refold.wire.sse import Delta
from refold.wire.translate import translate_messages, translate_tools

MAX_ERROR_BYTES = 256 * 1024
"""Size of an error's body: far more than a provider sends, unless it echoes the request."""

_KINDS: dict[OverflowKind, tuple[type[UpstreamError], str]] = {
    "input_too_long": (ContextOverflow, "says that the input is too long"),
    "input_plus_output": (ContextOverflow, "says that input and output together are too long"),
    "bytes_too_large": (ContextOverflow, "says that the request has too many bytes"),
    "output_cap": (OutputCapExceeded, "cannot write that many output tokens"),
    "rate_limit": (RateLimited, "asks to slow down"),
    "malformed_history": (MalformedHistory, "refuses the order or the pairing of the messages"),
}
_HINTS = {
    401: "check the key: the variable named by key_env, or what key_command prints",
    403: "check what the key may do",
    404: "check base_url and the name of the model",
}
_FINAL = (501, 505)
_PASSING = frozenset(
    {"api_error", "server_error", "internal_server_error", "internal_error", "overloaded_error", "timeout_error",
     "service_unavailable", "upstream_error", "unavailable"}
)  # fmt: skip
"""Types and codes with which an error inside a 200 says that the server itself is in trouble."""
_CODES = _PASSING | {
    "authentication_error", "billing_error", "context_length_exceeded", "insufficient_quota", "invalid_api_key",
    "invalid_encrypted_content", "invalid_request_error", "invalid_value", "missing_required_parameter",
    "model_not_found", "not_found_error", "permission_error", "rate_limit_error", "rate_limit_exceeded",
    "request_too_large", "unknown_parameter", "unsupported_parameter", "unsupported_value",
}  # fmt: skip
"""The codes that are shown. A fixed list, because a server may put anything there."""


class FailedAttempt(Exception):
    """One failed attempt: its error, whether a retry may help, and the wait that the provider asks for.

    `is_mended` means that the next attempt differs from this one: it starts at once and is not counted.
    """

    def __init__(self, error: UpstreamError, *, again: bool = False, wait_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error, self.again, self.wait_s = error, again, wait_s
        self.is_mended = False


class ErrorReply(Struct, frozen=True):
    """A response without a reply. Status 200 stands for an error found inside an answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def error_of_response(provider: Provider, answer: ErrorReply, ask: Ask, now: float) -> FailedAttempt:
    """The failure that an error response stands for."""
    status, error_body = answer.status, decode_error(answer.body)
    stated = None if status == 200 else status
    verdict = classify(stated, answer.body, estimated=ask.estimated, budget=ask.budget)
    passing = verdict.kind == "rate_limit" or (verdict.kind == "other" and _is_passing(status, error_body))
    again = passing and answer.headers.get("x-should-retry") != "false"
    wait_s = asked_wait(answer.headers, now)
    return FailedAttempt(_error(provider, status, error_body, verdict), again=again, wait_s=wait_s)


def unreadable_reply(provider: Provider, error: WireError) -> FailedAttempt:
    """The failure for a response that is neither a reply nor an error."""
    reason = "answered with neither a reply nor an error"
    message = f"{provider.name} ({provider.model}) {reason}: {error.message}"
    reason = "answered with too many bytes" if isinstance(error, BodyTooLarge) else reason
    hint = "check base_url and format: is this the provider's own API?"
    return FailedAttempt(UpstreamError(message, reason=reason, hint=hint))


def broken_reply(provider: Provider, error: WireError) -> FailedAttempt:
    """The failure for a stream that began as a reply, and ended or became unreadable before the end of it."""
    reason = "broke off its reply"
    message = f"{provider.name} ({provider.model}) {reason}: {error.message}"
    hint = "ask again, or ask it to go on; if it happens often, look for a time limit of the server or of a proxy"
    return FailedAttempt(UpstreamError(message, reason=reason, hint=hint))


def _is_passing(status: int, error_body: ErrorBody) -> bool:
    if status == 200:
        stated = int(error_body.code) if error_body.code.isdecimal() and len(error_body.code) == 3 else 0
        return stated >= 500 or error_body.type in _PASSING or error_body.code in _PASSING
    return status == 408 or (status >= 500 and status not in _FINAL)


def _error(provider: Provider, status: int, error_body: ErrorBody, verdict: Overflow) -> UpstreamError:
    kind, words = _KINDS.get(verdict.kind, (UpstreamError, "did not give a reply"))
    if verdict.kind == "other" and _is_passing(status, error_body):
        kind, words = UpstreamUnavailable, "has a temporary failure"
    code = next((code for code in (error_body.code, error_body.type) if code in _CODES), "")
    where = "an error inside of its answer" if status == 200 else f"status {status}"
    what = f", {code}" if code else ""
    message = f"{provider.name} ({provider.model}) {words}: {where}{what}"
    reason = f"answered {'with an error' if status == 200 else status}{what}"
    return kind(message, overflow=verdict, reason=reason, hint=_HINTS.get(status, ""))


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that the provider asks to wait; `now` is used if the response has no date."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = headers.get("retry-after", "")
    seconds = _number(asked)
    if seconds is not None or not asked:
        return seconds
    until, its_now = _time(asked), _time(headers.get("date", ""))
    return None if until is None else max(0.0, until - (now if its_now is None else its_now))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _time(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


# Retries

T = TypeVar("T")
log = logging.getLogger("refold.upstreams")


async def with_retries(
    attempt: Callable[[], AsyncGenerator[T, None]], provider: Provider, pace: Pace, until: float
) -> AsyncGenerator[T, None]:
    """The items of the first attempt that succeeds.

    Raises:
        UpstreamError: no attempt succeeded, or a failed one had already yielded items.
    """
    tried = 0
    while True:
        tried, given = tried + 1, False
        try:
            async with aclosing(attempt()) as items:
                async for item in items:
                    given = True
                    yield item
        except FailedAttempt as setback:
            if setback.is_mended:
                tried -= 1
                continue
            wait_s = None if given else _wait(setback, tried, provider.retries, pace)
            if wait_s is None or pace.clock() + wait_s >= until:
                raise setback.error from None
            log.info("%s; try %d failed, the next in %.1f s", setback.error.message, tried, wait_s)
        else:
            return
        await pace.sleep(wait_s)


def _wait(setback: FailedAttempt, tried: int, retries: Retries, pace: Pace) -> float | None:
    """Seconds until the next attempt; None if there is none."""
    if not setback.again or tried >= retries.tries or (setback.wait_s or 0) > retries.longest_asked_s:
        return None
    own = pace.draw() * min(retries.longest_s, retries.base_s * 2.0 ** (tried - 1))
    return max(own, setback.wait_s or 0)


# The HTTP connection to a provider: sends requests, reads bytes, and limits every wait. Every wait
# has two limits: its own, and the time left for the whole question. Every failure of the network
# becomes a `FailedAttempt`. Redirects are not followed: a key goes only to the host it was given for.

# Network failures as typed errors


def network_failure(provider: Provider, error: Exception, waited_s: float | None) -> FailedAttempt:
    """The error for a request without an answer, or with only the beginning of one.

    `waited_s` is the time without data; None if the time for the whole question was over.
    """
    what, hint, again = _explain(provider, error, waited_s)
    return FailedAttempt(UpstreamUnavailable(f"{provider.name} {what}", reason=what, hint=hint), again=again)


def _explain(provider: Provider, error: Exception, waited_s: float | None) -> tuple[str, str, bool]:
    match error:
        case aiohttp.ServerTimeoutError():
            connect_s = provider.timeouts.connect_s
            return f"could not be reached within {connect_s:g} s", "check base_url and proxy", True
        case TimeoutError():
            late = f"did not finish within {provider.timeouts.total_s:g} s"
            problem = late if waited_s is None else f"sent nothing for {waited_s:g} s"
            return problem, "raise its timeouts, or ask for less", False
        case aiohttp.ClientSSLError():
            return "shows a certificate that is not trusted", "name your own authority with ca_file", False
        case aiohttp.ClientHttpProxyError():
            return f"is behind a proxy that answered {error.status}", "check proxy", error.status >= 500
        case aiohttp.ClientConnectorError():
            return "cannot be reached", "check base_url and proxy", True
        case _:
            return "broke the connection", "it may have billed an answer all the same", False


ANTHROPIC_VERSION = "2023-06-01"
LINGER_S = 0.05
"""Wait for the end of the connection after the end of a stream, so that the connection can be reused."""
_PATHS = {"chat": "/chat/completions", "responses": "/responses", "anthropic": "/v1/messages"}


class Connection:
    def __init__(
        self,
        provider: Provider,
        dialect: Dialect,
        session: aiohttp.ClientSession,
        key: ProviderKey,
        pace: Pace,
        path: str = "",
    ) -> None:
        """`path` replaces the path of the format, for questions that do not ask for a reply."""
        self._provider, self._session, self._key, self._pace = provider, session, key, pace
        own = {name.lower(): value for name, value in provider.headers.items()}
        fixed = {"content-type": "application/json", "user-agent": "refold"}
        if dialect.name == "anthropic":
            fixed["anthropic-version"] = ANTHROPIC_VERSION
        self._headers, self._own = fixed, own
        path = path or _PATHS[dialect.name]
        # Anthropic's own base URL ends before the version, those of compatible servers often after it.
        self._url = provider.base_url.removesuffix("/v1" if path.startswith("/v1/") else "") + path

    def __repr__(self) -> str:
        return f"<connection to {self._provider.name}>"

    @asynccontextmanager
    async def post(
        self, body: bytes, accept: str, until: float, *, under: str = "", beta: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The provider's response. If the key is refused and a key command is configured, the key is renewed
        once.

        `under` is appended to the path: providers count the tokens of a request below the path that would
        answer it. `beta` is a feature of Anthropic's that the request needs, besides those of the settings.
        """
        url, key = self._url + under, await self._key.headers()
        response = await self._send(url, body, {"accept": accept, **key}, until, beta)
        try:
            if response.status == 401 and await self._key.renew(key):
                response.close()
                renewed = {"accept": accept, **await self._key.headers()}
                response = await self._send(url, body, renewed, until, beta)
            yield response
        finally:
            response.close()

    async def _send(
        self, url: str, body: bytes, headers: dict[str, str], until: float, beta: str = ""
    ) -> aiohttp.ClientResponse:
        own = with_beta(self._own, beta) if beta else self._own
        async with self._waiting(self._provider.timeouts.first_byte_s, until):
            return await self._session.post(
                url,
                data=BytesIO(body),
                headers={**self._headers, **headers, **own},
                allow_redirects=False,
                proxy=self._provider.proxy or None,
            )

    async def chunks(self, response: aiohttp.ClientResponse, until: float) -> AsyncGenerator[bytes, None]:
        limit_s = self._provider.timeouts.first_byte_s
        while True:
            async with self._waiting(limit_s, until):
                chunk = await response.content.readany()
            if not chunk:
                return
            yield chunk
            limit_s = self._provider.timeouts.between_s

    async def body(self, response: aiohttp.ClientResponse, until: float, limit: int) -> bytes:
        """The whole body, or its first `limit` + 1 bytes."""
        body = bytearray()
        async with aclosing(self.chunks(response, until)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > limit:
                    break
        return bytes(body[: limit + 1])

    async def linger(self, response: aiohttp.ClientResponse) -> None:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(LINGER_S):
                while await response.content.readany():
                    pass

    @asynccontextmanager
    async def _waiting(self, limit_s: float, until: float) -> AsyncIterator[None]:
        left_s = until - self._pace.clock()
        try:
            async with asyncio.timeout(min(limit_s, left_s)):
                yield
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise network_failure(self._provider, error, limit_s if limit_s <= left_s else None) from None


# Request bodies


def compaction_body(ask: Ask, provider: Provider, dialect: Dialect) -> bytes:
    """The body of a request for a compaction. It has no parameters of a reply: providers refuse them here.

    Raises:
        WireError: a message cannot be written in this format.
    """
    fields: dict[str, object] = {"model": provider.model}
    if dialect.name == "anthropic":
        wish = {"type": "summarize", **({"instructions": ask.instructions} if ask.instructions else {})}
        fields |= {"max_tokens": ask.max_output, "compaction": wish}
        if ask.tools:
            fields["tools"] = translate_tools(ask.tools, dialect) or None
        if ask.is_cached:
            fields["cache_control"] = {"type": "ephemeral"}
    raws = {key: _raw(value) for key, value in fields.items() if value is not None}
    return encode_request(
        Request(dialect, (), fields=raws), _messages(ask, dialect), system=_system(ask, dialect)
    )


def request_body(
    ask: Ask, provider: Provider, dialect: Dialect, *, stream: bool, without: frozenset[str] = frozenset()
) -> bytes:
    """The body of a request. `without` names parameters that the model has refused.

    Raises:
        WireError: a message cannot be written in this format.
    """
    fields = {**_fields(ask, provider, dialect, stream=stream), **provider.parameters}
    raws = {key: _raw(value) for key, value in fields.items() if value is not None and key not in without}
    request, messages, prompt = (
        Request(dialect, (), fields=raws),
        _messages(ask, dialect),
        _system(ask, dialect),
    )
    if ask.cache_ttl is None or not dialect.max_breakpoints:
        return encode_request(request, messages, system=prompt)
    # The marks are set here, in the provider's format: that of the conversation may be another one.
    tools = decode_tools(raws.get("tools", NULL))
    automatic: Ttl | None = "5m" if "cache_control" in raws else None
    fixed = FixedFields(dialect, prompt, tools, automatic)
    return encode_window(request, mark_prompt(Window(fixed, messages), ask.cache_ttl))


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


_COMPACTED_UNDER = {"anthropic": "", "responses": "/compact"}
"""Where a request for a compaction goes, below the path of the format."""
_NO_COMPACTION = re.compile(
    rb"(?i)\bcompaction: extra inputs|unexpected value\(s\)[^\"]{0,200}" + COMPACTION_BETA.encode()
)
"""Refusals of servers that speak Anthropic's format and do not know its field or its beta feature."""
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

    @property
    def name(self) -> str:
        return self._provider.name

    async def ask(self, ask: Ask) -> Reply:
        if ask.compacts and self._dialect.name not in _COMPACTED_UNDER:
            reason = f"has no compaction in the format {self._dialect.name}"
            raise UpstreamError(f"{self._provider.name} {reason}", reason=reason)
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
        beta = beta_for(ask.messages, self._dialect)
        async with self._connection.post(body, _JSON, until, under=under, beta=beta) as response:
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
        if ask.compacts:
            write = partial(compaction_body, ask, self._provider, self._dialect)
        else:
            write = partial(
                request_body, ask, self._provider, self._dialect, stream=stream, without=self._without
            )
        body = await run_text_work(ask.characters, write)
        accept = _EVENTS if stream else _JSON
        under = _COMPACTED_UNDER[self._dialect.name] if ask.compacts else ""
        beta = beta_for(ask.messages, self._dialect, compacts=ask.compacts)
        async with self._connection.post(body, accept, until, under=under, beta=beta) as response:
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
        reader, lost, has_begun = StreamReader(self._dialect), None, False
        try:
            async with aclosing(self._connection.chunks(response, until)) as chunks:
                async for chunk in chunks:
                    for delta in await run_text_act(reader.pending + len(chunk), reader.feed, chunk):
                        has_begun = True
                        yield delta
                    if reader.is_over:
                        break
        except FailedAttempt as setback:
            lost = setback
        reader.end()
        if reader.failure is not None:
            raise self._refused(ErrorReply(200, reader.failure), ask)
        if lost is not None:
            raise lost
        try:
            reply = await run_text_work(reader.seen, reader.reply)
        except WireError as error:
            tell = broken_reply if has_begun else unreadable_reply
            raise tell(self._provider, error) from None
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

    async def _refusal(self, response: aiohttp.ClientResponse, ask: Ask, until: float) -> FailedAttempt:
        try:
            body = await self._connection.body(response, until, MAX_ERROR_BYTES)
        except FailedAttempt:
            body = b""  # the status is enough
        answer = ErrorReply(response.status, body, response.headers)
        setback = await run_text_work(len(body), self._refused, answer, ask)
        is_open = ask.temperature is not None and _OPTIONAL not in self._without
        if is_open and type(setback.error) is UpstreamError and _OPTIONAL.encode() in body:
            self._without |= {_OPTIONAL}
            setback.is_mended = True
        return setback

    def _refused(self, answer: ErrorReply, ask: Ask) -> FailedAttempt:
        if ask.compacts and answer.status in (400, 422) and _NO_COMPACTION.search(answer.body):
            reason = f"has no compaction (answered {answer.status})"
            return FailedAttempt(UpstreamError(f"{self._provider.name} {reason}", reason=reason))
        return error_of_response(self._provider, answer, ask, self._pace.wall())


# Vectors from a provider: any server with OpenAI's `/embeddings`. Uses the same connection, key,
# timeouts, retries and errors as a question for a reply.

MAX_CHARACTERS = 6_000
"""Characters of a text, about 1,500 tokens: its beginning shows its subject, and some servers refuse longer
texts.
"""


class _Vector(Struct, frozen=True):
    embedding: list[float]
    index: int = 0


class _Answer(Struct, frozen=True):
    data: list[_Vector]


class HttpEmbedder:
    """Made by `open_embedder`."""

    def __init__(self, provider: Provider, connection: Connection, pace: Pace) -> None:
        self._provider, self._connection, self._pace = provider, connection, pace
        self.least = -1.0  # not measured for arbitrary models
        size = provider.parameters.get("dimensions")
        self.name = f"{provider.name}:{provider.model}" + (f":{size}" if size else "")

    def __repr__(self) -> str:
        return f"<embedder {self.name}>"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each of the texts, empty for a blank text.

        Raises:
            UpstreamError: the provider gave no vectors.
        """
        asked = [text[:MAX_CHARACTERS] for text in texts if text.strip()]
        if not asked:
            return [b""] * len(texts)
        until = self._pace.clock() + self._provider.timeouts.total_s
        tries = with_retries(lambda: self._try(asked, until), self._provider, self._pace, until)
        async with aclosing(tries):
            found = iter(await anext(tries))
        return [next(found) if text.strip() else b"" for text in texts]

    async def _try(self, texts: list[str], until: float) -> AsyncGenerator[list[bytes], None]:
        fields = {"model": self._provider.model, "input": texts, **self._provider.parameters}
        body = json.encode({key: value for key, value in fields.items() if value is not None})
        async with self._connection.post(body, _JSON, until) as response:
            is_fine = 200 <= response.status < 300
            limit = MAX_BODY_BYTES if is_fine else MAX_ERROR_BYTES
            answer = ErrorReply(
                response.status, await self._connection.body(response, until, limit), response.headers
            )
        if not is_fine:
            raise error_of_response(self._provider, answer, Ask(()), self._pace.wall())
        yield self._read(answer.body, len(texts))

    def _read(self, body: bytes, count: int) -> list[bytes]:
        try:
            found = sorted(json.decode(body, type=_Answer).data, key=lambda one: one.index)
            vectors = [_packed(one.embedding) for one in found]
        except (MsgspecError, ZeroDivisionError):
            raise self._unreadable_reply("no vectors") from None
        if len(vectors) != count:
            raise self._unreadable_reply(f"{len(vectors)} vectors for {count} texts")
        return vectors

    def _unreadable_reply(self, what: str) -> FailedAttempt:
        return unreadable_reply(self._provider, WireError(what))


def _packed(numbers: list[float]) -> bytes:
    """A vector of length one, in the stored format."""
    length = hypot(*numbers)
    packed = array("f", (number / length for number in numbers))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
