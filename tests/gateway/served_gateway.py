"""An application on a real port, and single requests past any client that would mend them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp, Message, Scope

from refold.gateway.server import OriginForm


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """The port of an application that is served as the gateway is."""
    config = uvicorn.Config(
        app, http=OriginForm, ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await server.startup(sockets=[listening])
        try:
            yield listening.getsockname()[1]
        finally:
            await _end(server)


async def _end(server: uvicorn.Server) -> None:
    """Do what `Server.shutdown` does, without its sleep of a tenth of a second."""
    for listener in server.servers:
        listener.close()
    state = server.server_state
    while state.connections or state.tasks:
        # In every round: a connection that was accepted while the listener closed appears late.
        for connection in [*state.connections]:
            connection.shutdown()
        await asyncio.sleep(0.001)
    for listener in server.servers:
        await listener.wait_closed()


async def send_raw(port: int, *lines: str) -> bytes:
    """What is answered to a request that is written by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
    answered = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answered


def scope_of(
    path: str = "/v1/models",
    headers: Iterable[tuple[str, str]] = (("host", "localhost"),),
    *,
    client: str | None = "127.0.0.1",
    query: str = "",
) -> Scope:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": (client, 50_000) if client else None,
        "server": ("127.0.0.1", 7336),
        "scheme": "http",
        "root_path": "",
        "state": {},
    }


async def ask(app: ASGIApp, scope: Scope) -> Told:
    """What an application answers, without a server between."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Told(start["status"], headers, b"".join(message.get("body", b"") for message in rest))
