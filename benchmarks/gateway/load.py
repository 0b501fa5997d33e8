"""Sends requests: one after the other over a plain socket, or many at once over as many connections.

One after the other measures latency, with hardly any time of the client's own. Many at once measures
throughput.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple, Self

from benchmarks.gateway.stub import SAID

END = b"0\r\n\r\n"
WORD = SAID[:6].encode()


class Took(NamedTuple):
    """Milliseconds until the first byte of the body, until the first content, and until the last byte."""

    first: float
    word: float
    whole: float


class Bad(Exception):
    """An invalid answer: nothing can be measured with it."""


class Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> Took:
        receive, reading = self._socket.recv, Reading()
        start, first, word = time.perf_counter(), 0.0, 0.0
        self._socket.sendall(request)
        while not reading.is_whole:
            data = receive(262_144)
            if not data:
                raise Bad("the connection was closed")
            reading.feed(data)
            if not first and reading.has_body:
                first = time.perf_counter()
            if not word and WORD in data:
                word = time.perf_counter()
        end = time.perf_counter()
        return Took(*((at - start) * 1_000 for at in (first, word or end, end)))


class Reading:
    """The received part of an answer. Only its end is parsed."""

    def __init__(self, *, is_any: bool = False) -> None:
        self._data, self._is_any = b"", is_any
        """True if any status counts as an answer."""
        self._body_at, self._length = -1, -1
        self.is_whole = False

    @property
    def has_body(self) -> bool:
        return 0 <= self._body_at < len(self._data)

    def feed(self, data: bytes) -> None:
        self._data += data
        if self._body_at < 0:
            self._read_head()
        if self._body_at < 0:
            return
        if self._length >= 0:
            self.is_whole = len(self._data) - self._body_at >= self._length
        else:
            self.is_whole = self._data.endswith(END)

    def _read_head(self) -> None:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        self._body_at, head = end + 4, self._data[:end].lower()
        if not (self._is_any or head.startswith(b"http/1.1 200")):
            raise Bad(self._data[:300].decode("latin-1"))
        at = head.find(b"content-length:")
        if at >= 0:
            self._length = int(head[at + 15 :].split(b"\r\n", 1)[0])


class Connection(asyncio.Protocol):
    """One of many connections: sends the next request as soon as it has its answer."""

    def __init__(self, requests: Iterator[bytes], crowd: "Crowd") -> None:
        self._requests, self._crowd, self._reading = requests, crowd, Reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        try:
            self._reading.feed(data)
        except Bad as error:
            self._crowd.fail(error)
            return
        if self._reading.is_whole:
            self._reading = Reading()
            self._crowd.answered += 1
            self._next()

    def connection_lost(self, _: Exception | None) -> None:
        self._crowd.leave()

    def _next(self) -> None:
        if self._crowd.take():
            self._transport.write(next(self._requests))
        else:
            self._transport.close()


class Crowd:
    """As many requests as are wanted, or as fit into a time."""

    def __init__(self, wanted: int, seconds: float, connections: int) -> None:
        self._left, self._until = wanted, time.perf_counter() + seconds
        self._open = connections
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered = 0

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0 and time.perf_counter() < self._until

    def fail(self, error: Bad) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def leave(self) -> None:
        self._open -= 1
        if not self._open and not self._done.done():
            self._done.set_result(None)

    async def finish(self) -> None:
        await self._done


def crowd(port: int, feeds: list[Iterator[bytes]], wanted: int, seconds: float = 60.0) -> float:
    """Requests per second, with as many connections as there are feeds."""

    async def work() -> float:
        made = Crowd(wanted, seconds, len(feeds))
        start, loop = time.perf_counter(), asyncio.get_running_loop()
        for feed in feeds:
            await loop.create_connection(lambda feed=feed: Connection(feed, made), "127.0.0.1", port)
        await made.finish()
        return made.answered / (time.perf_counter() - start)

    try:
        import uvloop
    except ImportError:
        return asyncio.run(work())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
