"""A provider whose answers come in exactly the pieces that a test wants: sockets would put them together again.

The gateway is called without a server between, as its server would call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Self

from starlette.types import Message

from refold.config import resolve
from refold.gateway.app import Gateway
from refold.gateway.exchange import Relay
from refold.gateway.upstreams import Target, Targets
from refold.stores.memory import MemoryStore
from tests.gateway.served_gateway import scope_of

NOWHERE = Target("nowhere", "http://127.0.0.1:9", ("chat", "responses", "anthropic"), is_private=True)

STREAMS = {
    "chat": (
        ': hello\n\ndata: {"choices":[{"delta":{"content":"ß🎉 "}}]}\n\n'
        'data: {"choices":[{"delta":{"content":"日本"},"finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\n\n'
    ),
    "responses": (
        'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"ß🎉"}\n\n'
        'data: {"type":"response.completed",\r\ndata:"response":{"id":"r","output":[{"type":"message","role":"assistant",'
        '"content":[{"type":"output_text","text":"ß🎉"}]}]}}\r\r'
    ),
    "anthropic": (
        '\ufeffdata: {"type":"message_start","message":{"id":"m"}}\n\n'
        'event: content_block_delta\ndata:{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ß🎉"}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    ),
}
"""Short streams with everything that a reader of events can get wrong: characters of several bytes, three ways to end a line,
comments, a byte order mark, data on two lines, no space after the colon."""


class _Response:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.status, self.content_type, self.headers = 200, "text/event-stream", {}
        self.raw_headers, self.content, self._pieces = (
            ((b"content-type", b"text/event-stream"),),
            self,
            [*pieces],
        )

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def close(self) -> None:
        self._pieces.clear()


class Pieces:
    """Stands for the network: whatever is sent, the next pieces are the answer."""

    def __init__(self) -> None:
        self.next: Sequence[bytes] = ()
        self.sent = b""

    async def send(
        self, _target: object, _method: str, _address: str, _headers: object, body: bytes
    ) -> _Response:
        self.sent = body
        return _Response(self.next)


class Got(NamedTuple):
    """What a client got: the bytes, whether they came to an end, and what was kept of them."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_ended: bool
    kept: bytes | None

    @property
    def same(self) -> tuple[bytes, bool, bytes | None]:
        """What does not differ from call to call."""
        return self.body, self.is_ended, self.kept


class Loose:
    """A gateway without a server, and what its provider answers next."""

    def __init__(self) -> None:
        self.store, self.network = MemoryStore(), Pieces()
        self.gateway = Gateway(self.store, resolve([]), Targets([NOWHERE]))
        self.gateway._relay = Relay(self.network)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gateway.close()

    async def ask(self, path: str, body: bytes, pieces: Sequence[bytes]) -> Got:
        self.network.next = pieces
        scope, sent, asked = scope_of(path), list[Message](), [body]
        scope |= {"method": "POST", "state": {"owner": "local"}}

        async def receive() -> Message:
            if not asked:
                await asyncio.Event().wait()  # the client stays
            return {"type": "http.request", "body": asked.pop(), "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.gateway(scope, receive, send)
        start, *rest = sent
        told = {name.decode(): value.decode() for name, value in start["headers"]}
        kept = await self.store.reply_to("local", told.get("x-refold-receipt", ""))
        got = b"".join(message["body"] for message in rest)
        return Got(start["status"], told, got, not rest[-1].get("more_body"), kept)
