"""A provider and a client that hold the bytes themselves: what is written, in which pieces, and when the other side goes away.

One idea: what goes wrong on a wire goes wrong between two bytes. The provider here writes exactly what a test says and knows
when it was left; recordings of a streamed reply of each format are made once, and cut wherever a test likes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

import msgspec
from msgspec import Struct

from refold.model.tokens import Usage
from refold.testing import call, say
from refold.testing.replies import PROTOCOLS
from refold.testing.script import NumberedReply

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
TEXT = "Grüße: 日本 🎉 und mehr."
_RESET = struct.pack("ii", 1, 0)
_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Recording(Struct, frozen=True):
    """A streamed reply. From `whole` bytes on it has said that it is complete."""

    format: str
    bytes: bytes
    whole: int
    text: str

    @property
    def path(self) -> str:
        return PATHS[self.format]

    @property
    def request(self) -> bytes:
        """A request that is answered so."""
        key = "input" if self.format == "responses" else "messages"
        asked = [{"role": "user", "content": "How are you?"}]
        return msgspec.json.encode({"model": "gpt-5", "max_tokens": 50, "stream": True, key: asked})

    def says_whole(self, got: bytes) -> bool:
        """Would a reader of events take this for a complete reply?"""
        return self.bytes[self.whole_event : self.whole].strip() in got.replace(b"\r", b"") and got.endswith(
            b"\n\n"
        )

    @property
    def whole_event(self) -> int:
        return self.bytes.rfind(b"\n\n", 0, self.whole - 2) + 2


def record(name: str, text: str = TEXT, *, with_call: bool = True) -> Recording:
    """The reply that the scripted provider would stream: a text in several scripts, and a tool call."""
    parts = say(text, *([call("look", {"where": "東京"}, id="call_1")] if with_call else []))
    spoken = NumberedReply(
        1, "gpt-5", parts.parts, parts.finish, Usage(input=9, output=7), include_usage=True
    )
    pieces = [event.encode() for event in PROTOCOLS[name].events(spoken)]
    # Chat tells the usage and says [DONE] after the reply is complete.
    last = len(pieces) - (2 if name == "chat" else 0)
    return Recording(name, b"".join(pieces), len(b"".join(pieces[:last])), text)


class Line:
    """One request at the provider, and the connection that it came on."""

    def __init__(
        self, head: bytes, body: bytes, reader: asyncio.StreamReader, out: asyncio.StreamWriter
    ) -> None:
        self.head, self.body, self._reader, self._out = head, body, reader, out

    async def begin(self, head: bytes = _EVENTS) -> None:
        self._out.write(head)
        await self._out.drain()

    async def send(self, piece: bytes) -> None:
        """One piece of a stream."""
        if piece:
            self._out.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await self._out.drain()

    async def write(self, piece: bytes) -> None:
        """Bytes as they are."""
        self._out.write(piece)
        await self._out.drain()

    async def end(self, how: str) -> None:
        """Properly, by closing the connection, or by resetting it."""
        if how == "end":
            await self.write(b"0\r\n\r\n")
        elif how == "reset":
            self._out.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._out.transport.abort()
        else:
            self._out.close()

    async def left(self) -> None:
        """Wait until the other side has closed the connection."""
        with suppress(ConnectionError):
            while await self._reader.read(1 << 16):
                pass


Answer = Callable[[Line], Awaitable[None]]


class RawUpstream:
    """Answers every request by a function of its connection."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.url = answer, ""
        self.lines: list[Line] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    line = await _heard(reader, out)
                    self.lines.append(line)
                    await self.answer(line)
        finally:
            out.close()
            self._tasks.discard(task)


async def _heard(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> Line:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
    return Line(head, await reader.readexactly(int(fields.get(b"content-length", b"0"))), reader, out)


class Client(Struct):
    """A connection to the gateway, past every client that would mend something."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def post(self, path: str, body: bytes, **headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += ["anthropic-version: 2023-06-01"] if path == PATHS["anthropic"] else []
        lines += [f"content-length: {len(body)}", "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        await self.writer.drain()

    async def read_until(self, mark: bytes) -> bytes:
        return await self.reader.readuntil(mark)

    async def read_all(self) -> bytes:
        """Everything until the gateway closes."""
        got = bytearray()
        with suppress(ConnectionError):
            while piece := await self.reader.read(1 << 16):
                got += piece
        return bytes(got)

    def leave(self) -> None:
        """Without a word, as a machine that is switched off."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def split_answer(raw: bytes) -> tuple[bytes, bytes, bool]:
    """The head of an answer, its body without the framing, and whether the framing came to its end."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return head, rest, bool(sizes) and int(sizes[0].split(b":")[1]) == len(rest)
    body = bytearray()
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return head, bytes(body), True
        body += rest[:length]
        rest = rest[length + 2 :]
    return head, bytes(body), False
