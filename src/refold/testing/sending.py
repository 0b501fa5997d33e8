"""How an answer becomes bytes on a connection, faults included.

One idea: everything up to here is a value. This is the only place where something is sent, waited for, cut off or reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from aiohttp import web

from refold.model.message import DialectName
from refold.testing import anthropic, chat, responses
from refold.testing.events import GARBAGE, Event, Json
from refold.testing.faults import EVENTS, JSON, Answer, Body, Broken, Refuse, Reset, Slow
from refold.testing.received import Received
from refold.testing.reply import Say, Spoken, as_say

_ABORT = struct.pack("ii", 1, 0)
"""Do not linger: closing sends a reset instead of a farewell."""
_MIDWAY = Refuse(529, "Overloaded", "overloaded_error")
"""What ends a stream that fails on its way: the error that most often does."""


class Spelling(Protocol):
    """What a protocol knows: a reply and an error, whole and as events."""

    OPENING: int

    def body(self, spoken: Spoken) -> Json: ...

    def events(self, spoken: Spoken) -> list[Event]: ...

    def error(self, refuse: Refuse, number: int) -> Json: ...

    def error_event(self, spoken: Spoken, refuse: Refuse, at: int) -> Event: ...


SPELLINGS: dict[DialectName, Spelling] = {"chat": chat, "responses": responses, "anthropic": anthropic}


class Exchange:
    """One request on its connection, waiting for its answer."""

    def __init__(self, http: web.Request, received: Received, speak: Callable[[Say], Spoken]) -> None:
        self.http, self.received, self.speak = http, received, speak
        self.spelling = SPELLINGS[received.dialect.name]
        self.between_s = 0.0

    async def send(self, answer: Answer | str) -> web.StreamResponse:
        if isinstance(answer, Slow):
            self.between_s = answer.between_s
            await asyncio.sleep(answer.before_s)
            answer = answer.answer
        if isinstance(answer, Reset):
            return self._hang_up(web.Response())
        if isinstance(answer, Body):
            return await self._exactly(answer)
        if isinstance(answer, Refuse):
            return await self._refuse(answer)
        if isinstance(answer, Broken):
            return await self._break(answer)
        spoken = self.speak(as_say(answer))
        if self.received.stream:
            return await self._stream(self.spelling.events(spoken))
        return self._json(200, self.spelling.body(spoken))

    async def _exactly(self, body: Body) -> web.StreamResponse:
        if not (body.in_stream and self.received.stream):
            return self._whole(body.status, body.content, body.content_type, body.headers)
        name = "" if self.received.dialect.name == "chat" else "error"
        return await self._stream([*self._opening(self.speak(Say())), Event(body.content.decode(), name)])

    async def _refuse(self, refuse: Refuse) -> web.StreamResponse:
        if refuse.in_stream and self.received.stream:
            spoken = self.speak(Say())
            error = self.spelling.error_event(spoken, refuse, self.spelling.OPENING)
            return await self._stream([*self._opening(spoken), error])
        headers = {} if refuse.retry_after_s is None else {"Retry-After": f"{refuse.retry_after_s:g}"}
        return self._json(refuse.status, self.spelling.error(refuse, self.received.number), headers)

    def _opening(self, spoken: Spoken) -> list[Event]:
        """A stream before its first word."""
        return self.spelling.events(spoken)[: self.spelling.OPENING]

    async def _break(self, broken: Broken) -> web.StreamResponse:
        spoken = self.speak(as_say(broken.answer))
        if not self.received.stream:
            return await self._break_whole(broken, msgspec.json.encode(self.spelling.body(spoken)))
        response = await self._begin(self.spelling.events(spoken)[: broken.after])
        if broken.then == "garbage":
            await response.write(GARBAGE.encode())
        elif broken.then == "error":
            await response.write(self.spelling.error_event(spoken, _MIDWAY, broken.after).encode())
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

    async def _stream(self, events: Iterable[Event]) -> web.StreamResponse:
        response = await self._begin(events)
        await response.write_eof()
        return response

    async def _begin(self, events: Iterable[Event]) -> web.StreamResponse:
        headers = {"Content-Type": EVENTS, "Cache-Control": "no-cache", **self._ids()}
        response = web.StreamResponse(headers=headers)
        await response.prepare(self.http)
        for event in events:
            await response.write(event.encode())
            if self.between_s:
                await asyncio.sleep(self.between_s)
        return response

    def _json(self, status: int, value: Json, headers: dict[str, str] | None = None) -> web.Response:
        return self._whole(status, msgspec.json.encode(value), JSON, headers or {})

    def _whole(self, status: int, content: bytes, kind: str, headers: dict[str, str]) -> web.Response:
        return web.Response(
            status=status, body=content, headers={"Content-Type": kind, **self._ids(), **headers}
        )

    def _ids(self) -> dict[str, str]:
        name = f"req_{self.received.number}"
        return {"request-id": name, "x-request-id": name}

    def _hang_up(self, response: web.StreamResponse) -> web.StreamResponse:
        """Reset the connection; what is returned goes nowhere."""
        transport = self.http.transport
        if transport is not None:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            transport.abort()
        return response
