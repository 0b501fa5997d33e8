"""An agent that looks around in this folder until it knows the answer, in a window that never overflows.

Works with every client that speaks OpenAI's Chat Completions, and with every model behind one:

    python -m examples.agent_loop gpt-4o-mini "Which module decides where a conversation is cut?"
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import openai
from openai.types.chat import ChatCompletion

import refold

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": description, "parameters": PATH}}
    for name, description in (("list_files", "The files in a folder."), ("read_file", "The text of a file."))
]
RUN: dict[str, Callable[..., str]] = {
    "list_files": lambda path: "\n".join(sorted(map(str, Path(path).iterdir()))),
    "read_file": lambda path: Path(path).read_text(encoding="utf-8"),
}


async def run_agent(
    client: openai.AsyncOpenAI,
    model: str,
    goal: str,
    run: Mapping[str, Callable[..., str]] = RUN,
    **settings: object,
) -> str:
    """The loop itself. The conversation may grow for ever: `ask` sends what fits."""
    async with refold.Conversation(model, tools=TOOLS, **settings) as talk:
        await talk.add(goal)
        while True:
            reply = await ask(client, model, talk)
            await talk.record(reply.usage)
            await talk.add(message := reply.choices[0].message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                result = call_tool(run, call.function.name, call.function.arguments)
                await talk.add({"role": "tool", "tool_call_id": call.id, "content": result})


async def ask(client: openai.AsyncOpenAI, model: str, talk: refold.Conversation) -> ChatCompletion:
    """One call. Should the provider's window be smaller than we thought, the next try is smaller too, twice at most."""
    fields = await talk.context()
    while True:
        try:
            return await client.chat.completions.create(model=model, **fields)
        except openai.BadRequestError as error:
            fields = await talk.recover(error)


def call_tool(run: Mapping[str, Callable[..., str]], name: str, arguments: str) -> str:
    """Whatever goes wrong is for the model to read."""
    try:
        return run[name](**json.loads(arguments))
    except Exception as error:  # noqa: BLE001
        return f"error: {error!r}"


async def main(model: str, goal: str) -> None:
    async with openai.AsyncOpenAI() as client:
        print(await run_agent(client, model, goal))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit('usage: python -m examples.agent_loop MODEL "QUESTION"')
    asyncio.run(main(*sys.argv[1:]))
