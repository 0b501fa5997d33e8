"""The agent of `agent_loop.py` with one more tool: it opens what has left its context, by its handle or by words.

    python -m examples.recall_loop gpt-4o-mini "Read every module in src/refold/core, then tell me the first line of the first."

A small window makes it forget early, so that there is something to bring back.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping

import openai

import refold
from examples.agent_loop import RUN, TOOLS, ask, call_tool
from refold import answer_recall, recall_tool


async def run_agent(
    client: openai.AsyncOpenAI,
    model: str,
    goal: str,
    run: Mapping[str, Callable[..., str]] = RUN,
    **settings: object,
) -> str:
    """The same loop; what is new are `recall_tool` and `answer_recall`."""
    async with refold.Conversation(model, tools=[*TOOLS, recall_tool("chat")], **settings) as talk:
        await talk.add(goal)
        while True:
            reply = await ask(client, model, talk)
            await talk.record(reply.usage)
            await talk.add(message := reply.choices[0].message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                name, arguments = call.function.name, call.function.arguments
                if name == "recall":
                    result = await answer_recall(talk, arguments)
                else:
                    result = call_tool(run, name, arguments)
                await talk.add({"role": "tool", "tool_call_id": call.id, "content": result})


async def main(model: str, goal: str) -> None:
    async with openai.AsyncOpenAI() as client:
        print(await run_agent(client, model, goal, window=16_000))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit('usage: python -m examples.recall_loop MODEL "QUESTION"')
    asyncio.run(main(*sys.argv[1:]))
