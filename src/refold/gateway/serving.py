"""Starting the gateway: from settings to a port that answers.

One idea: everything that can be wrong is said before the first request: a store that cannot be opened, an upstream without an
address, a door that would be open to strangers. What it does, and for whom, is printed once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version

from msgspec import Struct
from starlette.types import ASGIApp

from refold.config import Resolved
from refold.embeddings import installed
from refold.gateway.access import Rules, check_binding
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.routes import build
from refold.gateway.targets import Target, Targets, open_targets, with_local
from refold.gateway.ticket import KEEP_S
from refold.model.errors import ConfigError, MissingExtra, StoreError
from refold.store.place import open_store
from refold.text_work import abandon_text_work

UNREAD_BYTES = 256 * 1024
"""Of an answer that the system keeps for a client that does not read: it would keep 4 MB, and all that it takes is read along and
held here too. Enough for a megabyte a second to the other side of the world."""
GRACE_S = 10
"""How long answers that are on their way may take once the gateway is told to stop."""


SWITCH_S = 0.001
"""After how long a thread that works on a long text makes room for the event loop, which waits for it several times in a request: with
Python's own 5 ms a small request beside a large one takes half as long again."""
HOUR_S = 3_600.0
"""How often what is past its time is deleted, and what was left behind is seen to."""

_log = logging.getLogger("refold.gateway")


class Opened(Struct, frozen=True):
    """A gateway that is ready to be served."""

    app: ASGIApp
    gateway: Gateway


@asynccontextmanager
async def open_gateway(
    resolved: Resolved, *, local: Target | None = None, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Opened]:
    """The application over the store and the upstreams that the settings name, until the block ends.

    Raises:
        ConfigError: a setting cannot work.
        StoreError: the store cannot be opened.
    """
    server, targets = resolved.settings.server, _targets(resolved, local, environ)
    store = await open_store(resolved.settings.store.url, patience_s=KEEP_S, warn=partial(_log.warning, "%s"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        rules = Rules(bound=server.host, names=server.names)
        check_binding(rules, has_keys=await store.has_keys())
        gateway = Gateway(store, resolved, targets, embedder=installed())
        stack.push_async_callback(gateway.close)
        await gateway.sweep()
        house = asyncio.create_task(_keep_house(gateway))
        stack.callback(house.cancel)
        yield Opened(build(gateway, Admin(gateway, version("refold")), rules), gateway)


async def _keep_house(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(HOUR_S)
        try:
            await gateway.sweep()
        except StoreError as error:
            _log.warning("housekeeping has to wait: %s", type(error).__name__)


def _targets(resolved: Resolved, local: Target | None, environ: Mapping[str, str]) -> Targets:
    targets = open_targets(resolved.settings.upstreams, environ)
    return with_local(targets, local) if local else targets


async def serve(
    resolved: Resolved, tell: Callable[[str, Gateway], None], *, local: Target | None = None
) -> None:
    """Serve until told to stop; `tell` is called with the address once it answers."""
    try:
        import uvicorn

        from refold.gateway.protocol import OriginForm, Server
    except ImportError:
        raise MissingExtra("server", "the gateway") from None
    server = resolved.settings.server
    async with open_gateway(resolved, local=local) as opened:
        config = uvicorn.Config(
            opened.app,
            http=OriginForm,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,  # whoever a request comes from is whoever sends it
            timeout_graceful_shutdown=GRACE_S,
            backlog=2_048,
        )
        running = Server(config, opened.gateway.events.close)
        with _listening(server.host, server.port) as listening:
            host, port = listening.getsockname()[:2]  # it answers from now on
            tell(f"http://{f'[{host}]' if ':' in host else host}:{port}", opened.gateway)
            try:
                await running.serve(sockets=[listening])
            finally:
                # Whoever still waits for a thread had GRACE_S for it; nothing was stored of what it is at work on.
                abandon_text_work()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2_048, reuse_port=False)
        # Those that are accepted inherit it. asyncio would set it, but not for a socket that was made this way, and a short answer
        # would wait 40 ms for the one before to be acknowledged.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
    except OSError as error:
        raise ConfigError(
            f"the gateway cannot listen on {host}:{port} ({_words(error)})",
            hint="another program may have it: choose another with --port, or 0 for any",
        ) from None
    return listening


def _words(error: OSError) -> str:
    """Without the address, which Python says again."""
    return os.strerror(error.errno) if error.errno else type(error).__name__


def run(resolved: Resolved, tell: Callable[[str, Gateway], None], *, local: Target | None = None) -> None:
    """Serve in a loop of its own, the fastest there is."""
    sys.setswitchinterval(SWITCH_S)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(resolved, tell, local=local))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(resolved, tell, local=local))
