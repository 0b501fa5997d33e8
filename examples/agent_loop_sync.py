"""The agent of `agent_loop.py` without `await`: for scripts and notebooks.

python -m examples.agent_loop_sync gpt-4o-mini "Which module decides where a conversation is cut?"
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import openai
from openai.types.chat import ChatCompletion

from examples.agent_loop import RUN, TOOLS, call_tool
from refold.sync import Conversation


def run_agent(
    client: openai.OpenAI,
    model: str,
    goal: str,
    run: Mapping[str, Callable[..., str]] = RUN,
    **settings: object,
) -> str:
    talk = Conversation(model, tools=TOOLS, **settings)
    talk.add(goal)
    while True:
        reply = ask(client, model, talk)
        talk.record(reply.usage)
        talk.add(message := reply.choices[0].message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            result = call_tool(run, call.function.name, call.function.arguments)
            talk.add({"role": "tool", "tool_call_id": call.id, "content": result})


def ask(client: openai.OpenAI, model: str, talk: Conversation) -> ChatCompletion:
    fields = talk.context()
    while True:
        try:
            return client.chat.completions.create(model=model, **fields)
        except openai.BadRequestError as error:
            fields = talk.recover(error)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit('usage: python -m examples.agent_loop_sync MODEL "QUESTION"')
    print(run_agent(openai.OpenAI(), *sys.argv[1:]))
