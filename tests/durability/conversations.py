"""Conversations for these tests, and authors of summaries that wait until they are told to go on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from refold.engine import actions
from refold.engine.conversation import Conversation
from refold.engine.engine import Engine
from refold.model.errors import InvalidWindow
from refold.model.summary import Summary
from refold.ports.models import SummaryTask
from refold.ports.records import Head, Session
from refold.ports.store import Store
from tests.durability.notes import OWNER

WINDOW = {"window": 4_000, "max_output": 200}


def engine(store: Store, **settings) -> Engine:
    return Engine(store, **{"owner": OWNER, **WINDOW, **settings})


def turn(number: int, size: int = 300) -> list[dict]:
    """An exchange with one tool call."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"<q{number}> question, please look at src/f{number}.py"},
        {"role": "assistant", "content": f"<l{number}> I look", "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": f"c{number}",
            "content": f"<r{number}> " + "a line of code\n" * (size // 15),
        },
        {"role": "assistant", "content": f"<a{number}> answer"},
    ]


def names(messages: list[dict]) -> list[str]:
    """The names that messages begin with."""
    return [str(one["content"]).partition(" ")[0] for one in messages]


class Author:
    """Writes a summary when it is told to; says how often it was asked."""

    def __init__(self, *, waits: bool = False) -> None:
        self.asked, self.is_asked, self.may_answer = 0, asyncio.Event(), asyncio.Event()
        if not waits:
            self.may_answer.set()

    async def write(self, task: SummaryTask) -> Summary:
        self.asked += 1
        self.is_asked.set()
        await self.may_answer.wait()
        text = f"What was said from {task.first} to {task.last}."
        return Summary(text, task.first, task.last, 0, "model", task.scope)


async def compacted(talk: Conversation) -> None:
    """Compact now, also where no call can follow yet because the assistant had the last word."""
    with suppress(InvalidWindow):
        await talk.compact()


async def summarised(talk: Conversation, author: Author) -> Summary | None:
    """The summary that a compaction would ask for now, written for nobody who waits; nothing is compacted."""
    request = actions.wanted_now(talk.state)
    assert request
    return await talk._jobs._write(request, author, "", talk.state)


async def live_sessions(store: Store, head: Head) -> list[Session]:
    found = await store.sessions(OWNER, head.conversation)
    return [one for one in found if one.state == "live" and one.branch == head.branch]
