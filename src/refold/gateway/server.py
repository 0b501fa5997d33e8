"""Starts the gateway: builds the application from the settings and serves it with uvicorn.

All problems are reported before the first request: a store that cannot be opened, an upstream without an
address, a public address without keys.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, Any

import httptools
import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from refold.config import ResolvedSettings
from refold.config.upstream import embedder_of
from refold.dashboard.app import Dashboard
from refold.dashboard.browser_access import BrowserSessions, page_secret
from refold.dashboard.workspace import StoreBackend
from refold.engine.engine import OWNER
from refold.engine.summary_jobs import LEASE_S
from refold.gateway.admin import Admin, EventStream, GatewayBackend
from refold.gateway.admission import return_large_blocks
from refold.gateway.app import Gateway
from refold.gateway.auth import Access, KeyRing, Rules, check_binding, send_answer
from refold.gateway.errors import answer
from refold.gateway.exchange import KEEP_S
from refold.gateway.log import facts
from refold.gateway.processes import END_S, Handover, LocalModel, ProcessGroup
from refold.gateway.request import check_path, shape_of
from refold.gateway.telemetry import PrometheusMetrics, Telemetry, is_recorded
from refold.gateway.upstreams import Target, Targets, open_targets, with_local
from refold.model.errors import (
    AccessError,
    ConfigError,
    MissingExtra,
    NotFound,
    RefoldError,
    Stopping,
    StoreError,
)
from refold.ports.store import Notifies
from refold.stores.url import kind_of, open_store, sqlite_file
from refold.text_work import abandon_text_work

if TYPE_CHECKING:
    from refold.stores.postgres.job_queue import JobQueue

# The web application
#
# Health checks, administration, and the providers' calls, all behind `Access`. Every path below `/v1/`
# belongs to the gateway, which passes on the calls that it does not answer itself. Other paths exist only if
# declared here.


def build(
    gateway: Gateway, admin: Admin, rules: Rules, more: Sequence[Route | Mount] = (), *, secret: str = ""
) -> ASGIApp:
    """The application, behind the access check."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        waiting, dropped = len(gateway.backlog), gateway.backlog.dropped
        state = {"status": "not kept", "waiting": waiting, **({"dropped": dropped} if dropped else {})}
        if waiting:
            return JSONResponse(state, status_code=503)
        try:
            fault = await asyncio.wait_for(gateway.store.fault(), 5.0)
        except (RefoldError, TimeoutError):
            fault = "the store cannot be reached"
        if fault:
            return JSONResponse({"status": fault}, status_code=503)
        # Dropped exchanges may never come back, and the gateway can serve others: it counts as ready.
        return JSONResponse(state if dropped else {"status": "ready"})

    ring, browsers = KeyRing(gateway.store), BrowserSessions(gateway.store, secret=secret)
    stream = EventStream(gateway.events, gateway.store)
    backend = GatewayBackend(gateway, ring, stream, admin.version)
    routes = [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", partial(_metrics, gateway)),
        *admin.routes(),
        *Dashboard(backend, browsers).routes(),
        *more,
    ]
    app = Starlette(routes=routes, exception_handlers={404: _missing, 405: _missing})
    return Access(_Shortcut(gateway, app), gateway.store, rules, ring=ring, browsers=browsers)


async def _metrics(gateway: Gateway, request: Request) -> Response:
    """The metrics of this process for Prometheus: for an admin where there are keys, and for everybody at their own port."""
    try:
        if not getattr(request.state, "admin", True):
            raise AccessError("the metrics are for an admin", hint=_METRICS_KEY)
        if gateway.metrics is None:
            raise MissingExtra("prometheus", "/metrics")
    except RefoldError as problem:
        error = answer(problem, "refold")
        return Response(error.body, error.status, dict(error.headers))
    text, content_type = gateway.metrics.text()
    return Response(text, headers={"content-type": content_type, "cache-control": "no-store"})


_METRICS_KEY = (
    "use an admin key (refold keys create --admin), or give the metrics a port: server.metrics_port"
)


class _Shortcut:
    """Sends calls below `/v1/` straight to the gateway: they are nearly all of the traffic and need no
    routing.
    """

    def __init__(self, calls: ASGIApp, others: ASGIApp) -> None:
        self._calls, self._others = calls, others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_call = scope["type"] == "http" and scope["path"].startswith("/v1/")
        return (self._calls if is_call else self._others)(scope, receive, send)


async def _missing(request: Request, _: Exception) -> Response:
    path = request.url.path
    try:
        check_path(path)
        found = NotFound("there is nothing at this path", hint="see /refold/status")
    except NotFound as problem:
        found, path = problem, f"/v1{path}"
    speaks_anthropic = "anthropic-version" in request.headers
    error = answer(found, shape_of(path, speaks_anthropic=speaks_anthropic))
    return Response(error.body, error.status, dict(error.headers))


UNREAD_BYTES = 256 * 1024
"""Send buffer of a connection. The system would buffer 4 MB for a client that does not read, and the gateway
holds a copy of all that is sent. Enough for a megabyte per second around the world.
"""
PAGE_STOP_S = 10.0
"""Time for answers in progress after the page without a gateway is told to stop: nothing there takes longer."""
CUT_OFF_S = 3.0
"""Time for requests that are cut off to store what they have: longer than the end of an answer waits for the store."""
ACCEPTED_S = 0.5
"""Time for connections that were accepted just before the port was closed to send their request."""
POLL_S = 0.1
"""How often a shutdown looks for a second signal, as uvicorn does."""
WHILE_STOPPING = frozenset({"/healthz", "/metrics"})
"""Paths that answer until the end: the process is alive, and its last figures count."""


SWITCH_S = 0.001
"""Thread switch interval. A thread that works on a long text must make room for the event loop, which waits
for it several times per request: with Python's default of 5 ms a small request beside a large one takes half
as long again.
"""
GC_THRESHOLDS = 20_000, 10, 10
"""Allocations between garbage collections. A conversation is read into a large number of small values without
cycles: with Python's default of 700 for the first of them, visiting the values takes a twentieth of the time of a large
request. Requests and branches are freed without the collector, so a full collection is rare.
"""
AFTER_LEASES_S = LEASE_S + 5.0
"""By then every lease has ended that was held when the gateway started: what a killed process was working on is
finished without waiting for an hour."""
HOUR_S = 3_600.0
"""Interval of deleting expired content and of taking over unfinished work."""

_log = logging.getLogger("refold.gateway")


class OpenGateway(Struct, frozen=True):
    """A gateway that is ready to be served."""

    app: ASGIApp
    gateway: Gateway


@asynccontextmanager
async def open_gateway(
    resolved: ResolvedSettings,
    *,
    local: Target | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[OpenGateway]:
    """The application with the store and the upstreams of the settings, until the block ends.

    Raises:
        ConfigError: a setting cannot work.
        StoreError: the store cannot be opened.
    """
    server = resolved.settings.server
    rules = Rules(bound=server.host, names=server.names)
    async with _open_work(resolved, local, environ) as gateway:
        check_binding(rules, has_keys=await gateway.store.has_keys())
        gateway.window_reports.begin(gateway.targets)
        async with AsyncExitStack() as stack:
            if gateway.jobs is None:  # else a worker does it
                await gateway.sweep()
                sweeping = asyncio.create_task(_sweep_regularly(gateway))
                stack.callback(sweeping.cancel)
            admin, secret = Admin(gateway, version("refold")), await page_secret(gateway.store, gateway.now())
            yield OpenGateway(build(gateway, admin, rules, secret=secret), gateway)


@asynccontextmanager
async def _open_work(
    resolved: ResolvedSettings, local: Target | None, environ: Mapping[str, str], *, runs_jobs: bool = False
) -> AsyncIterator[Gateway]:
    """The gateway without its web application: the store, the upstreams, the queue of jobs and the notices of the store. A
    process that runs jobs itself defers none.
    """
    server, targets = resolved.settings.server, _targets(resolved, local, environ)
    url, cluster = resolved.settings.store.url, resolved.settings.cluster
    sqlite_file(url)  # refuses a word that may be a key in the wrong place
    if cluster.jobs or runs_jobs:
        check_jobs(url)
    store = await open_store(url, patience_s=KEEP_S, warn=partial(_log.warning, "%s"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        jobs = (
            await stack.enter_async_context(_open_jobs(resolved)) if cluster.jobs and not runs_jobs else None
        )
        gateway = Gateway(
            store,
            resolved,
            targets,
            embedder=embedder_of(resolved.settings, environ),
            metrics=installed_metrics(server.metrics_port),
            telemetry=installed_telemetry(),
            jobs=jobs,
        )
        stack.push_async_callback(gateway.close)
        if isinstance(store, Notifies):
            following = asyncio.create_task(gateway.follow(store))
            stack.callback(following.cancel)
        yield gateway


def check_jobs(url: str) -> None:
    """
    Raises:
        ConfigError: the store has no queue of jobs.
        MissingExtra: the package of the queue is not installed.
    """
    if kind_of(url) != "postgresql":
        raise ConfigError(
            "workers need a store in PostgreSQL",
            hint="set store.url to postgresql://..., or leave cluster.jobs off: one process does all its work itself",
        )
    import refold.stores.postgres.job_queue  # noqa: F401  # raises MissingExtra


@asynccontextmanager
async def _open_jobs(resolved: ResolvedSettings) -> AsyncIterator[JobQueue]:
    from refold.stores.postgres.job_queue import JobQueue

    queue = JobQueue(resolved.settings.store.url, lease_s=resolved.settings.cluster.lease_s)
    await queue.open()
    try:
        yield queue
    finally:
        await queue.close()


async def work(resolved: ResolvedSettings, tell: Callable[[], None]) -> None:
    """Run the jobs of the cluster until told to stop; `tell` is called when the worker takes jobs.

    Raises:
        ConfigError: the store has no queue of jobs, or a setting cannot work.
        StoreError: the store cannot be opened.
    """
    server = resolved.settings.server
    async with (
        _open_work(resolved, None, os.environ, runs_jobs=True) as gateway,
        _open_jobs(resolved) as queue,
        metrics_server(gateway, server.host, server.metrics_port),
    ):
        from refold.gateway.worker import Worker

        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, stopping.set)
        try:
            await Worker(gateway, queue, resolved.settings.cluster).run(stopping, tell)
        finally:
            abandon_text_work()


def installed_metrics(port: int | None) -> PrometheusMetrics | None:
    """The metrics, if `prometheus_client` is installed.

    Raises:
        MissingExtra: it is not, and they should have a port of their own.
    """
    try:
        return PrometheusMetrics()
    except MissingExtra:
        if port is not None:
            raise
        return None


def installed_telemetry() -> Telemetry | None:
    """The writer of spans, if `opentelemetry-api` is installed and an SDK is configured for spans or metrics."""
    try:
        return Telemetry(version=version("refold")) if is_recorded() else None
    except MissingExtra:
        return None


@asynccontextmanager
async def metrics_server(gateway: Gateway, host: str, port: int | None) -> AsyncIterator[str]:
    """Serve `/metrics` at a port of its own until the block ends, and give its address; without a port, do nothing."""
    if port is None:
        yield ""
        return
    app = Starlette(routes=[Route("/metrics", partial(_metrics, gateway))])
    config = uvicorn.Config(
        app, ws="none", lifespan="off", access_log=False, log_config=None, server_header=False
    )
    with listen(host, port, "server.metrics_port") as listening:
        server = _BesideServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        address = _address(listening)
        _log.info("metrics at %s/metrics", address)
        try:
            yield address
        finally:
            server.should_exit = True
            await asyncio.wait({serving})


async def _sweep_regularly(gateway: Gateway) -> None:
    """Sweep when the leases have ended that a crashed process held at the start, and then every hour."""
    pause_s = AFTER_LEASES_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = HOUR_S
        try:
            await gateway.sweep()
        except StoreError as error:
            _log.warning("expired content could not be deleted now: %s", type(error).__name__)


def _targets(resolved: ResolvedSettings, local: Target | None, environ: Mapping[str, str]) -> Targets:
    targets = open_targets(resolved.settings.upstreams, environ)
    return with_local(targets, local) if local else targets


def _configure(requests: RequestsInProgress) -> uvicorn.Config:
    """The settings of uvicorn for a gateway, and for the page alone."""
    return uvicorn.Config(
        requests,
        http=OriginForm,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # the client is the peer of the connection
        timeout_graceful_shutdown=1,  # for connections: `RequestsInProgress` has ended the requests before
    )


async def serve(
    resolved: ResolvedSettings,
    tell: Callable[[str, Gateway], None],
    *,
    local: Target | None = None,
    handed: Handover | None = None,
) -> None:
    """Serve until told to stop; `tell` is called with the address as soon as the gateway answers. A process of several has
    its socket `handed` over.
    """
    server = resolved.settings.server
    async with open_gateway(resolved, local=local) as opened:
        requests = RequestsInProgress(opened.app)
        config = _configure(requests)
        with socket.socket(fileno=handed.socket) if handed else listen(server.host, server.port) as listening:
            gateway = opened.gateway
            running = GatewayServer(
                config,
                requests,
                ready=partial(tell, _address(listening), gateway),
                ending=gateway.events.close,
                drain_s=server.drain_s,
                stop_s=server.stop_s,
                is_shared=handed is not None,
            )
            metrics_port = server.metrics_port
            if handed is not None:
                asyncio.get_running_loop().add_reader(handed.parent, running.end_with_parent, handed.parent)
                metrics_port = metrics_port + handed.index if metrics_port else metrics_port
            try:
                async with metrics_server(gateway, server.host, metrics_port):
                    await running.serve(sockets=[listening])
            finally:
                # Threads still at work had `stop_s` to finish; nothing of their work was stored.
                abandon_text_work()


async def serve_page(
    resolved: ResolvedSettings, tell: Callable[[str], None], *, url: str, owner: str = OWNER, port: int = 0
) -> None:
    """Serve the page for a store without a gateway, for this machine alone, until told to stop."""
    store = await open_store(url, patience_s=KEEP_S, warn=partial(_log.warning, "%s"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        ring, browsers = KeyRing(store), BrowserSessions(store)
        backend = StoreBackend(store, resolved, ring, version("refold"), owner=owner)
        stack.push_async_callback(backend.close)
        app = Starlette(
            routes=list(Dashboard(backend, browsers).routes()),
            exception_handlers={404: _missing, 405: _missing},
        )
        access = Access(app, store, Rules(bound=LOOPBACK), ring=ring, browsers=browsers)
        requests = RequestsInProgress(access)
        config = _configure(requests)
        with listen(LOOPBACK, port) as listening:
            running = GatewayServer(
                config,
                requests,
                ready=partial(tell, _address(listening)),
                ending=backend.end_streams,
                stop_s=PAGE_STOP_S,
            )
            try:
                await running.serve(sockets=[listening])
            finally:
                abandon_text_work()


LOOPBACK = "127.0.0.1"


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """
    Raises:
        ConfigError: the address is in use, or not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2_048, reuse_port=False)
        # Accepted connections inherit it. asyncio sets it too, but not for a socket that was created this way;
        # without it a short answer would wait 40 ms for the acknowledgement of the previous one.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
    except OSError as error:
        raise ConfigError(
            f"the gateway cannot listen on {host}:{port} ({_os_error_text(error)})",
            hint=f"another program may have it: choose another with {option}, or 0 for any",
        ) from None
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _os_error_text(error: OSError) -> str:
    """The error without the address, which Python repeats."""
    return os.strerror(error.errno) if error.errno else type(error).__name__


def run(
    resolved: ResolvedSettings,
    tell: Callable[[str, Gateway], None],
    *,
    local: Target | None = None,
    handed: Handover | None = None,
) -> None:
    """Serve in a new event loop."""
    _run(serve(resolved, tell, local=local, handed=handed))


def run_processes(resolved: ResolvedSettings, local: LocalModel | None) -> int:
    """Serve with several processes; the result is the exit code."""
    server = resolved.settings.server
    with listen(server.host, server.port) as listening:
        group = ProcessGroup(
            listening, server.workers, end_s=server.drain_s + server.stop_s + END_S, local=local
        )
        return asyncio.run(group.run())


def run_worker(resolved: ResolvedSettings, tell: Callable[[], None]) -> None:
    """Run jobs in a new event loop."""
    _run(work(resolved, tell))


def _run(main: Coroutine[None, None, None]) -> None:
    """Run a process of the gateway: with uvloop if it is installed."""
    sys.setswitchinterval(SWITCH_S)
    return_large_blocks()
    gc.freeze()  # modules live as long as the process: the collector need not visit them
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


# The HTTP server: limits for the request head, and the shutdown

MAX_HEAD_BYTES = 64 * 1024
"""Size of the request line and headers: eight times the providers' limit."""
HEAD_S = 30.0
"""Time for the request line and headers: as long as for the start of a body."""


class JoinedHead:
    """A transport that holds the head of an answer back until its body begins, so that both leave in one packet. A head
    whose body is not there yet leaves with the next step of the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._head = transport, loop, b""
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1."):
            self._head = data
            self._loop.call_soon(self._write_head)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._write_head()
        self._transport.close()

    def _write_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self.is_closing():
            self._transport.write(head)


class OriginForm(HttpToolsProtocol):
    """A protocol for `uvicorn.Config(http=OriginForm)` with limits for the head. Refused requests get a 400,
    like everything that is not HTTP.
    """

    _head: int | None = 0
    """Bytes of the head so far; None when it is complete."""
    _has_begun = False
    _head_timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedHead(transport, self.loop))  # type: ignore[arg-type]
        self._head_timeout = self.loop.call_later(HEAD_S, self._refuse, "the headers took too long to arrive")

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the gateway answers with a 426, and uvicorn's advice to install a library would not change that."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_begun = False
        super().data_received(data)
        if self._head is not None and not self._has_begun:  # otherwise the head began within these bytes
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self._refuse("the headers are too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._has_begun = 0, True
        self._head_timeout = self._head_timeout or self.loop.call_later(
            HEAD_S, self._refuse, "the headers took too long to arrive"
        )

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel_head_timeout()
        self._head = None
        if not self.url.startswith(b"/"):
            raise httptools.HttpParserInvalidURLError
        # A head that came in one piece, perhaps with its body, was not counted as it came.
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > MAX_HEAD_BYTES:
            raise httptools.HttpParserError
        super().on_headers_complete()

    def _cancel_head_timeout(self) -> None:
        if self._head_timeout is not None:
            self._head_timeout.cancel()
            self._head_timeout = None

    def _refuse(self, why: str) -> None:
        self._cancel_head_timeout()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()  # an answer is in progress: no error can be sent inside it
        elif not self.transport.is_closing():
            self.send_400_response(why)


class _BesideServer(uvicorn.Server):
    """Serves beside the gateway, which handles the signals."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class RequestsInProgress:
    """An application that knows its requests in progress, and can stop taking new ones.

    While it drains, `/readyz` answers 503 and requests are still answered, each as the last of its connection. Once it
    refuses, new requests get a 503 in the client's format.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._tasks = app, set[asyncio.Task[None]]()
        self.is_draining = self.is_refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path in WHILE_STOPPING:
            await self._app(scope, receive, send)
            return
        if self.is_draining and path == "/readyz":
            await JSONResponse({"status": "draining"}, 503, {"connection": "close"})(scope, receive, send)
            return
        if self.is_refusing:
            speaks_anthropic = any(name == b"anthropic-version" for name, _ in scope["headers"])
            shape = shape_of(path, speaks_anthropic=speaks_anthropic)
            await send_answer(send, answer(Stopping(), shape))
            return

        def send_as_last(message: Message) -> Awaitable[None]:
            if self.is_draining and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            return send(message)

        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._app(scope, receive, send_as_last)
        finally:
            self._tasks.discard(task)

    async def end(self, within_s: float, is_forced: Callable[[], bool]) -> None:
        """Wait for the requests in progress, `within_s` at most, and then cut them off: each stores what it has."""
        until = time.monotonic() + within_s
        while self._tasks and not is_forced() and time.monotonic() < until:
            await asyncio.wait(self._tasks, timeout=POLL_S)
        if cut_off := set(self._tasks):
            _log.warning("requests in progress were cut off", extra=facts(requests=len(cut_off)))
            for task in cut_off:
                task.cancel()
            await asyncio.wait(cut_off, timeout=CUT_OFF_S)


class GatewayServer(uvicorn.Server):
    """Stops without raising the signal again: uvicorn would raise it before the store is closed.

    `ready` is called when connections are accepted and signals are handled: who reads the address may stop it at once.
    After the signal new requests are answered for `drain_s` more. Then they are refused, `ending` is called to end event
    streams, and the requests in progress have `stop_s` to end. The port stays open until then, so that `/readyz` answers. If
    other processes share the port (`is_shared`), they take the new connections, and this one refuses nothing.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        requests: RequestsInProgress,
        *,
        ready: Callable[[], None] = lambda: None,
        ending: Callable[[], None] = lambda: None,
        drain_s: float = 0.0,
        stop_s: float,
        is_shared: bool = False,
    ) -> None:
        super().__init__(config)
        self._requests, self._ready, self._ending = requests, ready, ending
        self._drain_s, self._stop_s, self._is_shared = drain_s, stop_s, is_shared

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        until = time.monotonic() + self._drain_s
        while (left_s := until - time.monotonic()) > 0 and not self.force_exit:  # noqa: ASYNC110  # a signal handler wakes no loop
            await asyncio.sleep(min(left_s, POLL_S))
        if self._is_shared:
            for one in self.servers:
                one.close()
            await asyncio.sleep(ACCEPTED_S)
        else:
            self._requests.is_refusing = True
        self._ending()
        await self._requests.end(self._stop_s, lambda: self.force_exit)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self._requests.is_draining = True

    def end_with_parent(self, pipe: int) -> None:
        """Stop when the pipe of the parent ends: the others stop too, and nobody takes the new connections."""
        asyncio.get_running_loop().remove_reader(pipe)
        self._is_shared = False
        self.handle_exit(signal.SIGTERM, None)
