"""A chat with a scripted provider, and short ways to read its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from refold.chat.chat import Chat, ChatEvent, CommandReply, Done, ToolEnded
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.model.message import DialectName, Message
from refold.ports.records import read_stored
from refold.ports.store import Store
from refold.testing import Received, Say, ScriptedUpstream, say
from refold.upstreams import Provider, Retries
from refold.wire.sse import TextDelta

FORMATS: tuple[DialectName, ...] = ("chat", "responses", "anthropic")


def provider(server: ScriptedUpstream, wire: DialectName = "chat") -> Provider:
    return Provider("scripted", "m-1", wire, f"{server.url}/v1", retries=Retries(tries=1))


class Gate:
    """An answer that is given when the test opens it: the reply is in progress until then."""

    def __init__(self, answer: str | Say) -> None:
        self._answer = say(answer) if isinstance(answer, str) else answer
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, received: Received) -> Say:
        self.reached.set()
        await self.opened.wait()
        return self._answer


@asynccontextmanager
async def chatting(
    server: ScriptedUpstream,
    store: Store | str = "memory:",
    *,
    name: str = "talk",
    wire: DialectName = "chat",
    conversation: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Chat]:
    """A chat of its own engine, as a program has it."""
    engine = Engine(store, **{"model": "m-1", "window": 32_000, **(conversation or {})})
    if isinstance(store, str):
        await engine.start()
    try:
        talk = await engine.conversation(name, format=wire)
        async with Chat(talk, provider(server, wire), **settings) as chat:
            yield chat
    finally:
        await engine.rest()
        if isinstance(store, str):
            await engine.close()


async def sent(chat: Chat, content: object) -> list[ChatEvent]:
    async with asyncio.timeout(20):
        return [event async for event in chat.send(content)]


def text_of(events: list[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def done(events: list[ChatEvent]) -> Done:
    (found,) = [event for event in events if isinstance(event, Done)]
    return found


def reply_of(events: list[ChatEvent]) -> str:
    (found,) = [event for event in events if isinstance(event, CommandReply)]
    return found.text


def results(events: list[ChatEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, ToolEnded)]


async def messages(talk: Conversation) -> list[Message]:
    """The stored messages of a conversation."""
    await talk.load()
    head = talk.journal.head
    found = [read_stored(one, head) for one in await talk.journal.store.messages(head)]
    return [one for one in found if one is not None]


async def said(talk: Conversation) -> list[tuple[str, str]]:
    """Role and text of the stored messages; a call is its name, a result its text."""
    found = []
    for one in await messages(talk):
        words = one.text or ", ".join(call.name for call in one.calls)
        found.append((one.role, words or ", ".join(result.text for result in one.results)))
    return found
