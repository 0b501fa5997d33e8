"""A provider for tests: a real server on this machine that answers what its script says.

One idea: a test should meet what production meets, so there is a port, HTTP and a stream; but nothing leaves the machine,
nothing is logged, and what was asked can be looked at afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
from refold.testing import models, vectors
from refold.testing.faults import Answer, Body, Refuse, Reset, Slow
from refold.testing.overflows import overflow
from refold.testing.prompt import Biller
from refold.testing.provider import Provider
from refold.testing.received import Received, key_of
from refold.testing.reply import Say, Spoken
from refold.testing.rules import Limits
from refold.testing.script import GIVEN_UP, Script, Scripted
from refold.testing.sending import SPELLINGS, Exchange
from refold.tokens import FittedCounter

_MAX_BODY_BYTES = 64 * 1024 * 1024
"""More than any provider takes, so that refusing a large body is up to the rules."""

FAULTS = (Refuse, Body, Slow, Reset)
_PATIENCE_S = 0.05
"""How long leaving waits for answers that are still being sent; aiohttp takes zero for ever."""


class ScriptedUpstream:
    """Speaks OpenAI Chat Completions, OpenAI Responses and Anthropic Messages at `url`, and gives vectors of texts.

    `async with` runs it in the current event loop, `with` in a thread of its own. `answers` come in their order, then
    `otherwise` for every further request; the other arguments are those of `rules.Limits` and of the count.
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
        binds_thinking: bool = False,
        overflows_in_stream: bool = False,
        counter: TokenCounter | None = None,
        cache_minimum: int = 1_024,
        clock: Callable[[], float] = time.monotonic,
        model: str = "scripted",
    ) -> None:
        self.url = ""
        """Where the server listens while it runs, without a path."""
        self.model = model
        """The name under which `/v1/models` lists the model; requests may name any."""
        if wording:
            overflow(wording, window=0, prompt=1)  # a name nobody has is a mistake to be told now
        limits = Limits(window, max_output, key, wording, validates, binds_thinking, overflows_in_stream)
        biller = Biller(counter or FittedCounter(), cache_minimum, clock)
        self._provider = Provider(Script([*answers], otherwise), limits, biller)
        self._failure: Exception | None = None
        self._runner: web.AppRunner | None = None
        self._thread: Thread | None = None
        self._stop: Callable[[], object] | None = None

    @property
    def requests(self) -> list[Received]:
        """Everything that was asked, in order."""
        return self._provider.requests

    @property
    def answered(self) -> list[Answer]:
        """What requests for a reply were answered, refusals of the rules included; a reply is a `Say`."""
        return self._provider.answered

    @property
    def answers(self) -> list[Scripted]:
        """What is still to be answered; append to it at any time."""
        return self._provider.script.answers

    def script(self, *answers: Scripted, otherwise: Scripted | None = None) -> None:
        """Answer this from now on, and `otherwise` after that."""
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
        """Run until told to stop, in a thread of its own; what goes wrong is raised in the thread that waits."""
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
                web.post("/v1/messages", partial(self._reply, ANTHROPIC)),
                web.post("/v1/messages/count_tokens", partial(self._count, ANTHROPIC)),
                web.post("/v1/responses/input_tokens", partial(self._count, RESPONSES)),
                web.post("/v1/embeddings", self._embed),
                web.get("/v1/models", self._list_models),
                web.get("/v1/models/{name}", self._list_models),
            ]
        )
        return app

    @web.middleware
    async def _note_failure(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What a function of the script raises is raised again where the server is left."""
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
        answer = wrong if wrong is not None else await provider.answer(asked)
        provider.answered.append(answer)
        return await Exchange(http, asked.received, partial(provider.speak, asked)).send(answer)

    async def _count(self, dialect: Dialect, http: web.Request) -> web.StreamResponse:
        provider = self._provider
        asked, wrong = provider.receive(dialect, http.path, http.headers, await http.read())
        wrong = wrong or provider.check(asked)
        if wrong is not None:
            return await Exchange(http, asked.received, partial(provider.speak, asked)).send(wrong)
        return _json(models.count_of(dialect, provider.count(asked)))

    async def _embed(self, http: web.Request) -> web.StreamResponse:
        """Vectors of texts; where a fault comes next in the script, it comes here."""
        provider, body = self._provider, await http.read()
        headers = {name.lower(): value for name, value in http.headers.items()}
        received = Received(len(provider.requests) + 1, http.path, CHAT, headers, body)
        provider.requests.append(received)
        found = vectors.answer(body)
        fault: Answer | None = Refuse(400) if found is None else None
        if provider.limits.key and received.key != provider.limits.key:
            fault = Refuse(401)
        elif provider.script.answers and isinstance(provider.script.answers[0], FAULTS):
            fault = await provider.script.next(received)
        if fault is None:
            return _json(found)
        return await Exchange(http, received, _speechless).send(fault)

    async def _list_models(self, http: web.Request) -> web.Response:
        limits, is_anthropic = self._provider.limits, "anthropic-version" in http.headers
        if limits.key and key_of(http.headers) != limits.key:
            spelling = SPELLINGS["anthropic" if is_anthropic else "chat"]
            return _json(spelling.error(Refuse(401), 0), 401)
        name = http.match_info.get("name")
        if name is not None:
            return _json(models.model(name, limits, is_anthropic=is_anthropic))
        return _json(models.listing(self.model, limits, is_anthropic=is_anthropic))


def _speechless(_: Say) -> Spoken:
    raise TypeError("Nothing can be said where vectors were asked for.")


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
