"""The server that the gateway runs in, as far as it is not uvicorn's own: what it takes, and how it ends.

One idea: what cannot be told any more by whoever comes after is refused where it is still there to be seen.
`GET http://elsewhere/v1/models` is how one speaks to a forward proxy, and the gateway is none; uvicorn would cut the address off
and serve the path. A head that has no end, or takes for ever, never reaches the gateway at all. And what comes after a body
(a trailer) is no header, though uvicorn would take it for one.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers: eight times what providers take."""
HEAD_S = 30.0
"""Until they are there: as long as a body may take to begin."""


class OriginForm(HttpToolsProtocol):
    """For `uvicorn.Config(http=OriginForm)`. What is refused gets a 400, as does everything that is not HTTP."""

    _head: int | None = 0
    """Bytes of the head so far; None once it is there."""
    _has_begun = False
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEAD_S, self._refuse, "The headers took too long.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_begun = False
        super().data_received(data)
        if self._head is not None and not self._has_begun:  # else the head began somewhere in these bytes
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self._refuse("The headers are too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._has_begun = 0, True
        self._waiting = self._waiting or self.loop.call_later(
            HEAD_S, self._refuse, "The headers took too long."
        )

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._wait_no_more()
        self._head = None
        if not self.url.startswith(b"/"):
            raise httptools.HttpParserInvalidURLError
        super().on_headers_complete()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _refuse(self, why: str) -> None:
        self._wait_no_more()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()  # an answer is on its way: nothing can be said in the middle of it
        elif not self.transport.is_closing():
            self.send_400_response(why)


class Server(uvicorn.Server):
    """Ends when it is told to, and that is all: uvicorn raises the signal again, before the store behind it is closed.

    `ending` is called first: streams that go on for as long as somebody listens would keep it waiting.
    """

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
