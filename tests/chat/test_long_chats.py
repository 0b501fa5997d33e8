"""A long chat with tools in a small window: no refusal, no orphan, every usage recorded."""

from __future__ import annotations

import pytest

import refold
from refold.chat.chat import CallUsage
from refold.model.tokens import Usage
from refold.testing import Received, Say, ScriptedUpstream, call, say
from tests.chat.chats import FORMATS, chatting, done, messages, sent


@refold.tool
def read(number: str) -> str:
    """Read a page of the log."""
    return f"page {number}\n" + "\n".join(
        f"{line:03}: the gauge reads {line * 37 % 1000} mm" for line in range(60)
    )


def answer(received: Received) -> Say:
    last = received.messages[-1]
    if last.role == "user" and "Read page" in last.text:
        number = last.text.rsplit(" ", 1)[1]
        return say(call("read", {"number": number}), call("read", {"number": f"{number}b"}))
    return say(f"The page says what it says, {len(received.messages)} messages in.")


async def talk_long(store, wire: str, turns: int) -> None:
    settings = {"window": 8_000, "max_output": 500}
    async with (
        ScriptedUpstream(otherwise=answer, window=8_000, strict=True) as server,
        chatting(server, store, wire=wire, tools=[read], conversation=settings) as chat,
    ):
        reported = Usage()
        for turn in range(turns):
            events = await sent(chat, f"Read page {turn}")
            assert done(events).status == "answered", done(events).problem
            reported = sum((one.usage for one in events if isinstance(one, CallUsage)), reported)
        found = await messages(chat.conversation)
        calls = [one.id for message in found for one in message.calls]
        assert len(calls) == 2 * turns
        assert calls == [one.call_id for message in found for one in message.results]
        head = chat.conversation.journal.head
        stored = await store.calls(head.owner, head.conversation, limit=10_000)
        counts = ("/count_tokens", "/input_tokens")  # very large requests are counted by the provider first
        asked = [one for one in server.requests if not one.path.endswith(counts)]
        assert len(stored) == len(asked) == 2 * turns, "no request was refused, and each was recorded"
        assert sum((one.usage for one in stored), Usage()) == reported
        status = await chat.conversation.status()
        assert status.compactions or chat.conversation.receipts, "it was too much for the window"


@pytest.mark.parametrize("wire", FORMATS)
async def test_twelve_turns_in_a_small_window(store, wire):
    await talk_long(store, wire, 12)


@pytest.mark.slow
@pytest.mark.parametrize("wire", FORMATS)
async def test_two_hundred_turns_in_a_small_window(store, wire):
    await talk_long(store, wire, 200)
