"""Conversations whose summaries are written by models behind a scripted upstream: what the acceptance cases are played with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from msgspec import structs

from refold import Conversation
from refold.core.policy import Policy
from refold.core.presets import PRESETS
from refold.core.prompts import DEFAULT, Recipe
from refold.model.message import DialectName, Message
from refold.model.summary import Summary
from refold.summarisers import MemoryCache, ModelSummariser, SummaryWriter
from refold.testing import Received, ScriptedUpstream
from refold.upstreams import Provider, Retries, open_upstream

GOOD = "## Goal\nChange the modules.\n## Progress\n### Done\nThe first modules were changed."
"""A summary that has no fault."""
ONLY = "The books were squared away gladly."
"""A summary in words that the conversation does not have: where they are, they come from the summary."""
PART, MERGED = "Some modules were changed.", "All modules were changed."
FRESH, UPDATE = (words.split(".")[0] for words in (DEFAULT.fresh, DEFAULT.update))
"""How the two questions begin."""
BRIEF = Recipe(max_tokens=400)
OPAL = structs.replace(PRESETS["opal"], manual=None)
"""A compaction that is asked for keeps a quarter of the window too: the 20,000 tokens of the preset want long conversations."""


class Played(NamedTuple):
    talk: Conversation
    summariser: ModelSummariser

    @property
    def summaries(self) -> list[Summary]:
        """Every summary that was used, oldest first."""
        return [receipt.summary for receipt in self.talk.receipts if receipt.summary]

    async def work(self, numbers: Iterable[int], **changes) -> None:
        """Turns with these numbers."""
        for number in numbers:
            await self.talk.add(*turn(number, **changes))

    async def compact(self) -> str:
        """Compact, and give everything that the next request says."""
        return text_of(await self.talk.compact())


def provider(server: ScriptedUpstream, wire: DialectName = "chat", **settings) -> Provider:
    """One try, so that the script says how often a model is asked."""
    return Provider(
        "scripted", "small", wire, f"{server.url}/v1", **{"retries": Retries(tries=1), **settings}
    )


@asynccontextmanager
async def playing(
    *chain: ScriptedUpstream | Provider,
    policy: Policy = PRESETS["refold"],
    window: int = 8_000,
    reads: int = 32_000,
    recipe: Recipe | None = None,
    cache: MemoryCache | None = None,
    environ: dict[str, str] | None = None,
    **settings,
) -> AsyncIterator[Played]:
    """A conversation; each model of the `chain` is believed to read so many tokens."""
    async with AsyncExitStack() as stack:
        writers = []
        for one in chain:
            asked = one if isinstance(one, Provider) else provider(one)
            upstream = await stack.enter_async_context(open_upstream(asked, environ=environ or {}))
            writers.append(SummaryWriter(upstream, reads, quarter))
        summariser = ModelSummariser(writers, recipe, cache)
        given = {"window": window, "max_output": 0, "policy": policy, **settings}
        talk = Conversation("gpt-4o", summariser=summariser, **given)
        yield Played(await stack.enter_async_context(talk), summariser)


def quarter(text: str) -> int:
    return -(-len(text) // 4)


class Quarter:
    """Counts for a server as the summariser does, so that its window means the same to both."""

    source = "counted"

    def text(self, text: str) -> int:
        return quarter(text)

    def message(self, message: Message) -> int:
        return quarter("".join(getattr(part, "text", "") for part in message.parts))


def merging(received: Received) -> str:
    """What a model says that reads a long source in parts."""
    return MERGED if "consecutive parts" in received.text else PART


def text_of(fields: dict) -> str:
    return "\n".join(str(message.get("content")) for message in fields["messages"])


def questions(server: ScriptedUpstream) -> list[str]:
    """What the user said last in every request that came."""
    return [received.text for received in server.requests]


def turn(
    number: int, said: str = "", *, tool: str = "write_file", path: str = "", output: str = ""
) -> list[dict]:
    """A question, a call, its result and an answer, in the words of Chat Completions."""
    path = path or f"src/module_{number}.py"
    name, function = f"c{number}", {"name": tool, "arguments": json.dumps({"path": path})}
    output = output or f"wrote {path}\n" + f"line {number}\n" * 60
    return [
        {"role": "user", "content": f"Step {number}: change {path}. {said}"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": name, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": name, "content": output},
        {"role": "assistant", "content": f"Changed {path} in step {number}."},
    ]
