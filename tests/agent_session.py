"""A coding agent's session that is played into a conversation: questions, tool calls, long results, and usage reports as a
provider with a prompt cache would send them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from refold.engine.conversation import Conversation

SYSTEM = (
    "You are a coding agent. Never push to main. Answer in short sentences." + " Follow the house style." * 30
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} of the repository, as often as you need it",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read_file", "search", "run_tests", "edit")
]
FILES = ("billing.py", "parcels.py", "couriers.py", "sites.py", "settings.py", "clock.py")
SUMMARY = "The billing job was moved to the new clock; parcels.py and couriers.py are done, sites.py is open."


class CachedPrompts:
    """The usage that a provider with a prompt cache reports: the part that the last prompt began with is read from it."""

    def __init__(self) -> None:
        self.before: list[str] = []

    def usage(self, fields: dict[str, Any], output: int) -> dict[str, Any]:
        messages = [json.dumps(one) for one in (fields.get("tools") or [], *fields["messages"])]
        known = 0
        for one, other in zip(messages, self.before, strict=False):
            if one != other:
                break
            known += len(one)
        self.before = messages
        prompt = sum(map(len, messages)) // 4
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": known // 4},
        }


def result(at: int) -> str:
    name = FILES[at % len(FILES)]
    return "\n".join(
        f"{name}:{line}: def step_{at}_{line}(clock, settings): return {line * at}"
        for line in range(6 + at * 7 % 23)
    )


def turn(at: int) -> Sequence[dict[str, Any]]:
    """The messages of one call: a question now and then, else the result of the tool that was asked for."""
    if at % 6 == 0:
        return (
            {
                "role": "user",
                "content": f"Please move {FILES[at % len(FILES)]} to the new clock (ticket {4_000 + at}).",
            },
        )
    return ({"role": "tool", "tool_call_id": f"call_{at - 1}", "content": result(at)},)


def reply(at: int) -> dict[str, Any]:
    if at % 6 == 5:
        return {
            "role": "assistant",
            "content": f"Done: {FILES[at % len(FILES)]} uses the new clock, and 41 tests pass.",
        }
    call = {
        "id": f"call_{at}",
        "type": "function",
        "function": {"name": "read_file", "arguments": json.dumps({"path": FILES[at % len(FILES)]})},
    }
    return {"role": "assistant", "content": f"I look at {FILES[at % len(FILES)]} next.", "tool_calls": [call]}


async def play(
    talk: Conversation, calls: int, *, first: int = 0, prompts: CachedPrompts | None = None
) -> CachedPrompts:
    """Make so many calls. Between two of them the history only grows, as long as nothing is compacted."""
    prompts = prompts or CachedPrompts()
    for at in range(first, first + calls):
        await talk.add(*turn(at))
        fields = await talk.context()
        usage = prompts.usage(fields, output=20 + at % 7)
        await talk.record(usage)
        await talk.add(reply(at))
    return prompts


def write_summary(request: Any) -> str:
    return SUMMARY
