"""A provider for tests: a real HTTP server on this machine that answers by its script.

A test meets the same things as production: a port, HTTP and streams. Nothing leaves the machine, nothing is
logged, and all requests can be inspected afterwards.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.tokens import TokenCounter
from refold.testing.compactions import is_wanted, told
from refold.testing.provider import (
    Biller,
    ScaledCounter,
    ScriptedProvider,
    embed_texts,
    list_models,
    model_entry,
    token_count,
)
from refold.testing.replies import PROTOCOLS
from refold.testing.rules import ProviderLimits, overflow
from refold.testing.script import (
    EVENTS,
    GARBAGE,
    GIVEN_UP,
    JSON,
    Answer,
    Body,
    Broken,
    JsonObject,
    NumberedReply,
    Received,
    Refuse,
    ReplyEvent,
    Reset,
    Say,
    Script,
    Scripted,
    Slow,
    as_say,
    key_of,
)
from refold.tokens import FittedCounter

# Answers as bytes on a connection, with faults

_ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: closing sends a reset."""
_MIDWAY = Refuse(529, "Overloaded", "overloaded_error")
"""The error for a stream that fails midway: the most common one."""


class OpenRequest:
    """One request on its connection, waiting for its answer."""

    def __init__(self, http: web.Request, received: Received, speak: Callable[[Say], NumberedReply]) -> None:
        self.http, self.received, self.speak = http, received, speak
        self.protocol = PROTOCOLS[received.dialect.name]
        self.between_s = 0.0

    async def send(self, answer: Answer | str) -> web.StreamResponse:
        if isinstance(answer, Slow):
            self.between_s = answer.between_s
            await asyncio.sleep(answer.before_s)
            answer = answer.answer
        if isinstance(answer, Reset):
            return self._hang_up(web.Response())
        if isinstance(answer, Body):
            return await self._send_body(answer)
        if isinstance(answer, Refuse):
            return await self._refuse(answer)
        if isinstance(answer, Broken):
            return await self._break(answer)
        spoken = self.speak(as_say(answer))
        if self.received.stream:
            return await self._stream(self.protocol.events(spoken))
        return self._json(200, self.protocol.body(spoken))

    async def _send_body(self, body: Body) -> web.StreamResponse:
        if not (body.in_stream and self.received.stream):
            return self._whole(body.status, body.content, body.content_type, body.headers)
        name = "" if self.received.dialect.name == "chat" else "error"
        return await self._stream(
            [*self._opening(self.speak(Say())), ReplyEvent(body.content.decode(), name)]
        )

    async def _refuse(self, refuse: Refuse) -> web.StreamResponse:
        if refuse.in_stream and self.received.stream:
            spoken = self.speak(Say())
            error = self.protocol.error_event(spoken, refuse, self.protocol.OPENING)
            return await self._stream([*self._opening(spoken), error])
        headers = {} if refuse.retry_after_s is None else {"Retry-After": f"{refuse.retry_after_s:g}"}
        return self._json(refuse.status, self.protocol.error(refuse, self.received.number), headers)

    def _opening(self, spoken: NumberedReply) -> list[ReplyEvent]:
        """The events of a stream before its first content."""
        return self.protocol.events(spoken)[: self.protocol.OPENING]

    async def _break(self, broken: Broken) -> web.StreamResponse:
        spoken = self.speak(as_say(broken.answer))
        if not self.received.stream:
            return await self._break_whole(broken, msgspec.json.encode(self.protocol.body(spoken)))
        response = await self._begin(self.protocol.events(spoken)[: broken.after])
        if broken.then == "garbage":
            await response.write(GARBAGE.encode())
        elif broken.then == "error":
            await response.write(self.protocol.error_event(spoken, _MIDWAY, broken.after).encode())
        elif broken.then == "reset":
            return self._hang_up(response)
        await response.write_eof()
        return response

    async def _break_whole(self, broken: Broken, body: bytes) -> web.StreamResponse:
        half = body[: len(body) // 2]
        if broken.then == "error":
            return await self._refuse(_MIDWAY)
        if broken.then == "garbage":
            return self._whole(200, half, JSON, {})
        response = web.StreamResponse(headers={"Content-Type": JSON, "Content-Length": str(len(body))})
        await response.prepare(self.http)
        await response.write(half)
        return self._hang_up(response)

    async def _stream(self, events: Iterable[ReplyEvent]) -> web.StreamResponse:
        response = await self._begin(events)
        await response.write_eof()
        return response

    async def _begin(self, events: Iterable[ReplyEvent]) -> web.StreamResponse:
        headers = {"Content-Type": EVENTS, "Cache-Control": "no-cache", **self._ids()}
        response = web.StreamResponse(headers=headers)
        await response.prepare(self.http)
        for event in events:
            await response.write(event.encode())
            if self.between_s:
                await asyncio.sleep(self.between_s)
        return response

    def _json(self, status: int, value: JsonObject, headers: dict[str, str] | None = None) -> web.Response:
        return self._whole(status, msgspec.json.encode(value), JSON, headers or {})

    def _whole(self, status: int, content: bytes, kind: str, headers: dict[str, str]) -> web.Response:
        return web.Response(
            status=status, body=content, headers={"Content-Type": kind, **self._ids(), **headers}
        )

    def _ids(self) -> dict[str, str]:
        name = f"req_{self.received.number}"
        return {"request-id": name, "x-request-id": name}

    def _hang_up(self, response: web.StreamResponse) -> web.StreamResponse:
        """Reset the connection; the returned response is not sent."""
        transport = self.http.transport
        if transport is not None:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            transport.abort()
        return response


_MAX_BODY_BYTES = 64 * 1024 * 1024
"""More than any provider accepts, so that the rules decide about large bodies."""

FAULTS = (Refuse, Body, Slow, Reset)
_PATIENCE_S = 0.05
"""Time that the shutdown waits for answers in progress; aiohttp takes zero as forever."""


class ScriptedUpstream:
    """Speaks OpenAI Chat Completions, OpenAI Responses and Anthropic Messages at `url`, and gives vectors of
    texts.

    `async with` runs it in the current event loop, `with` in a thread of its own. `answers` are used in
    order, then `otherwise` for every further request; the other arguments are those of `rules.ProviderLimits`
    and of the token count.
    """

    def __init__(
        self,
        *answers: Scripted,
        otherwise: Scripted | None = None,
        window: int | None = 128_000,
        max_output: int | None = None,
        wording: str = "",
        key: str = "",
        validates: bool = True,
        strict: bool = False,
        binds_thinking: bool = False,
        alternates: bool = False,
        overflows_in_stream: bool = False,
        counter: TokenCounter | None = None,
        count_factor: float = 1.0,
        cache_minimum: int = 1_024,
        clock: Callable[[], float] = time.monotonic,
        model: str = "scripted",
        compaction: Scripted | None = told,
    ) -> None:
        """`compaction` answers requests for a compaction, each with the text of one; None refuses them, as a provider
        without compactions does.
        """
        self.url = ""
        """The address of the running server, without a path."""
        self.model = model
        """The name under which `/v1/models` lists the model; requests may name any."""
        self.reports: dict[str, object] = {}
        """The answers with which servers report their windows, by path: `/v1/models`, `/props`,
        `/api/v0/models`, `/api/ps` and `/api/show`. Without one, `/v1/models` lists `model`, and the other
        paths do not exist."""
        self.report_delay_s = 0.0
        """Time that each of these answers takes."""
        self.report_requests: list[Received] = []
        """The requests for them, in order."""
        if wording:
            overflow(wording, window=0, prompt=1)  # raises now if there is no such wording
        limits = ProviderLimits(
            window,
            max_output,
            key,
            wording,
            validates,
            strict,
            binds_thinking,
            alternates,
            overflows_in_stream,
        )
        counter = counter or FittedCounter()
        counter = counter if count_factor == 1 else ScaledCounter(counter, count_factor)
        biller = Biller(counter, cache_minimum, clock)
        self._provider = ScriptedProvider(Script([*answers], otherwise), limits, biller)
        self._provider.compaction = compaction
        self._failure: Exception | None = None
        self._runner: web.AppRunner | None = None
        self._thread: Thread | None = None
        self._stop: Callable[[], object] | None = None

    @property
    def requests(self) -> list[Received]:
        """All requests, in order."""
        return self._provider.requests

    @property
    def answered(self) -> list[Answer]:
        """The answers to requests for a reply, including refusals by the rules; a reply is a `Say`."""
        return self._provider.answered

    @property
    def answers(self) -> list[Scripted]:
        """The remaining answers; append to it at any time."""
        return self._provider.script.answers

    @property
    def compaction(self) -> Scripted | None:
        """The answer to requests for a compaction; may be changed at any time."""
        return self._provider.compaction

    @compaction.setter
    def compaction(self, scripted: Scripted | None) -> None:
        self._provider.compaction = scripted

    def script(self, *answers: Scripted, otherwise: Scripted | None = None) -> None:
        """Replace the script by these answers, and `otherwise` after them."""
        self._provider.script = Script([*answers], otherwise)

    async def __aenter__(self) -> Self:
        runner = web.AppRunner(
            self._routes(), access_log=None, handler_cancellation=True, shutdown_timeout=_PATIENCE_S
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port, *_ = runner.addresses[0]
        self._runner, self.url = runner, f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        if error is None and self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        ready: Future[None] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        ready.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        assert self._stop is not None
        self._stop()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    async def _serve(self, ready: Future[None]) -> None:
        """Run until told to stop, in a thread of its own; a failure to start is raised in the thread that
        waits.
        """
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = partial(loop.call_soon_threadsafe, stop.set)
        try:
            await self.__aenter__()
        except Exception as error:  # noqa: BLE001
            ready.set_exception(error)
            return
        ready.set_result(None)
        await stop.wait()
        assert self._runner is not None
        await self._runner.cleanup()

    def _routes(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._note_failure])
        app.add_routes(
            [
                web.post("/v1/chat/completions", partial(self._reply, CHAT)),
                web.post("/v1/responses", partial(self._reply, RESPONSES)),
                web.post("/v1/responses/compact", partial(self._reply, RESPONSES)),
                web.post("/v1/messages", partial(self._reply, ANTHROPIC)),
                web.post("/v1/messages/count_tokens", partial(self._count, ANTHROPIC)),
                web.post("/v1/responses/input_tokens", partial(self._count, RESPONSES)),
                web.post("/v1/embeddings", self._embed),
                web.get("/v1/models", self._report),
                *(web.get(path, self._report) for path in ("/props", "/api/v0/models", "/api/ps")),
                web.post("/api/show", self._report),
                web.get("/v1/models/{name}", self._list_models),
            ]
        )
        return app

    @web.middleware
    async def _note_failure(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep an exception of a script's function; it is raised again when the server is left."""
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001
            self._failure = self._failure or error
            words = {"message": f"The script failed: {type(error).__name__}.", "type": "script_failed"}
            return _json({"error": words}, GIVEN_UP)

    async def _reply(self, dialect: Dialect, http: web.Request) -> web.StreamResponse:
        provider = self._provider
        asked, wrong = provider.receive(dialect, http.path, http.headers, await http.read())
        if wrong is not None:
            answer: Answer = wrong
        elif is_wanted(asked.received):
            answer = await provider.compact(asked)
        else:
            answer = await provider.answer(asked)
        provider.answered.append(answer)
        return await OpenRequest(http, asked.received, partial(provider.speak, asked)).send(answer)

    async def _count(self, dialect: Dialect, http: web.Request) -> web.StreamResponse:
        provider = self._provider
        asked, wrong = provider.receive(dialect, http.path, http.headers, await http.read())
        wrong = wrong or provider.check(asked)
        if wrong is not None:
            return await OpenRequest(http, asked.received, partial(provider.speak, asked)).send(wrong)
        return _json(token_count(dialect, provider.count(asked)))

    async def _embed(self, http: web.Request) -> web.StreamResponse:
        """Vectors of texts; if the next answer of the script is a fault, it is used here."""
        provider, body = self._provider, await http.read()
        headers = {name.lower(): value for name, value in http.headers.items()}
        received = Received(len(provider.requests) + 1, http.path, CHAT, headers, body)
        provider.requests.append(received)
        found = embed_texts(body)
        fault: Answer | None = Refuse(400) if found is None else None
        if provider.limits.key and received.key != provider.limits.key:
            fault = Refuse(401)
        elif provider.script.answers and isinstance(provider.script.answers[0], FAULTS):
            fault = await provider.script.next(received)
        if fault is None:
            return _json(found)
        return await OpenRequest(http, received, _no_reply).send(fault)

    async def _report(self, http: web.Request) -> web.Response:
        """A report of windows, or the list of models."""
        headers, number = (
            {name.lower(): value for name, value in http.headers.items()},
            len(self.report_requests),
        )
        self.report_requests.append(Received(number + 1, http.path, CHAT, headers, await http.read()))
        await asyncio.sleep(self.report_delay_s)
        is_refused = self._provider.limits.key and key_of(http.headers) != self._provider.limits.key
        if http.path in self.reports and not is_refused:
            return _json(self.reports[http.path])
        if http.path != "/v1/models":
            raise web.HTTPNotFound
        return await self._list_models(http)

    async def _list_models(self, http: web.Request) -> web.Response:
        limits, is_anthropic = self._provider.limits, "anthropic-version" in http.headers
        if limits.key and key_of(http.headers) != limits.key:
            protocol = PROTOCOLS["anthropic" if is_anthropic else "chat"]
            return _json(protocol.error(Refuse(401), 0), 401)
        name = http.match_info.get("name")
        if name is not None:
            return _json(model_entry(name, limits, is_anthropic=is_anthropic))
        return _json(list_models(self.model, limits, is_anthropic=is_anthropic))


def _no_reply(_: Say) -> NumberedReply:
    raise TypeError("a request for vectors has no reply")


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
