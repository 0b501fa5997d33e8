"""Asking a scripted provider, without ever waiting."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct, structs

from refold.model.message import DialectName, user
from refold.ports.models import Ask, StreamingUpstream
from refold.testing import ScriptedUpstream
from refold.upstreams import Provider, open_upstream
from refold.upstreams.provider import Pace
from refold.wire.reply import Reply
from refold.wire.sse import Delta

FORMATS: tuple[DialectName, ...] = ("chat", "responses", "anthropic")
QUESTION = Ask((user("What is new?"),), system="Be brief.", max_output=64)


class Waits(Struct):
    """A clock on which only waiting takes time, and the waits."""

    waited: list[float] = []
    drawn: float = 0.5
    now: float = 1000.0
    is_real: bool = False
    """Other things take time too."""

    def pace(self) -> Pace:
        return Pace(
            time.monotonic if self.is_real else lambda: self.now, time.time, self._sleep, lambda: self.drawn
        )

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


@asynccontextmanager
async def asking(
    server: ScriptedUpstream, wire: DialectName = "chat", *, waits: Waits | None = None, **settings
) -> AsyncIterator[StreamingUpstream]:
    provider = Provider("scripted", "m-1", wire, f"{server.url}/v1")
    provider = structs.replace(provider, **settings)
    async with open_upstream(provider, environ={"KEY": "sk-1"}, pace=(waits or Waits()).pace()) as upstream:
        yield upstream


async def streamed(upstream: StreamingUpstream, ask: Ask = QUESTION) -> tuple[list[Delta], Reply]:
    *deltas, reply = [item async for item in upstream.stream(ask)]
    assert isinstance(reply, Reply)
    return deltas, reply  # type: ignore[return-value]


def bare(reply: Reply) -> Reply:
    """A reply as a value, without the name it was given and the bytes that said it."""
    return structs.replace(reply, id="", messages=tuple(message.bare() for message in reply.messages))
