"""`refold.wrap`: sessions of the SDKs' own clients, sync and async, streamed and not."""

from __future__ import annotations

import pytest

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

import refold
from tests.integrations.frameworks.session import (
    SYSTEM,
    TOOL,
    TURNS,
    WINDOW,
    check_session,
    question,
    read_note,
    served,
)

MODEL = "scripted"


def engine(**settings):
    return refold.sync.Engine("memory:", window=WINDOW, max_output=500, **settings)


def answer(client, name, arguments, messages, **where):
    import json

    if name == "recall":
        return client.refold.recall(arguments, messages, **where)
    return read_note(**(json.loads(arguments) if isinstance(arguments, str) else arguments))


def test_chat_completions():
    tools = [{"type": "function", "function": TOOL}, refold.recall_tool()]
    messages = [{"role": "system", "content": SYSTEM}]
    with (
        served() as server,
        engine() as kept,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        assert refold.wrap(client, kept) is client
        for turn in range(TURNS + 1):
            messages.append({"role": "user", "content": question(turn)})
            while True:
                reply = (
                    client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
                    .choices[0]
                    .message
                )
                messages.append(reply)
                if not reply.tool_calls:
                    break
                for call in reply.tool_calls:
                    text = answer(client, call.function.name, call.function.arguments, messages)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        check_session(server, "openai (chat)", openai.__version__)
        assert len(messages) == 1 + (TURNS + 1) * 5, "the caller's list is not changed"


async def test_chat_completions_async_and_streamed():
    tools = [{"type": "function", "function": TOOL}, refold.recall_tool()]
    messages = [{"role": "system", "content": SYSTEM}]
    with served() as server, engine() as kept:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            refold.wrap(client, kept, conversation="harbour")
            for turn in range(TURNS + 1):
                messages.append({"role": "user", "content": question(turn)})
                while True:
                    async with client.chat.completions.stream(
                        model=MODEL, messages=messages, tools=tools, stream_options={"include_usage": True}
                    ) as stream:
                        reply = (await stream.get_final_completion()).choices[0].message
                    spoken = {"role": "assistant", "content": reply.content}
                    if reply.tool_calls:
                        spoken["tool_calls"] = [
                            {
                                "id": one.id,
                                "type": "function",
                                "function": {"name": one.function.name, "arguments": one.function.arguments},
                            }
                            for one in reply.tool_calls
                        ]
                    messages.append(spoken)
                    if not reply.tool_calls:
                        break
                    for call in reply.tool_calls:
                        text = answer(client, call.function.name, call.function.arguments, messages)
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
            check_session(server, "openai (chat, async, streamed)", openai.__version__)
            assert len(kept.store.calls(kept.owner, "harbour", limit=1_000)) == 2 * (TURNS + 1)


def test_responses():
    tools = [{"type": "function", **TOOL, "strict": False}, refold.recall_tool("responses")]
    items = []
    with (
        served() as server,
        engine() as kept,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        refold.wrap(client, kept)
        for turn in range(TURNS + 1):
            items.append({"role": "user", "content": question(turn)})
            while True:
                stream = client.responses.create(
                    model=MODEL, instructions=SYSTEM, input=items, tools=tools, stream=True
                )
                output = next(
                    event for event in [*stream] if event.type == "response.completed"
                ).response.output
                items += output
                calls = [item for item in output if item.type == "function_call"]
                if not calls:
                    break
                for call in calls:
                    text = answer(client, call.name, call.arguments, items, format="responses")
                    items.append({"type": "function_call_output", "call_id": call.call_id, "output": text})
        check_session(server, "openai (responses, streamed)", openai.__version__)


def anthropic_tools():
    own = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    return [own, refold.recall_tool("anthropic")]


def results_of(client, content, messages):
    return [
        {
            "type": "tool_result",
            "tool_use_id": part.id,
            "content": answer(client, part.name, part.input, messages, format="anthropic"),
        }
        for part in content
        if part.type == "tool_use"
    ]


def test_messages():
    messages = []
    with (
        served() as server,
        engine() as kept,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        refold.wrap(client, kept)
        for turn in range(TURNS + 1):
            messages.append({"role": "user", "content": question(turn)})
            while True:
                with client.messages.stream(
                    model=MODEL, max_tokens=500, system=SYSTEM, messages=messages, tools=anthropic_tools()
                ) as stream:
                    reply = stream.get_final_message()
                messages.append({"role": "assistant", "content": reply.content})
                if not (results := results_of(client, reply.content, messages)):
                    break
                messages.append({"role": "user", "content": results})
        check_session(server, "anthropic (streamed)", anthropic.__version__)


async def test_messages_async():
    messages = []
    with served() as server, engine() as kept:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as client:
            refold.wrap(client, kept)
            for turn in range(TURNS + 1):
                messages.append({"role": "user", "content": question(turn)})
                while True:
                    reply = await client.messages.create(
                        model=MODEL,
                        max_tokens=500,
                        system=SYSTEM,
                        messages=messages,
                        tools=anthropic_tools(),
                        extra_headers={"X-Refold-Conversation": "harbour"},
                    )
                    messages.append({"role": "assistant", "content": reply.content})
                    if not (results := results_of(client, reply.content, messages)):
                        break
                    messages.append({"role": "user", "content": results})
            check_session(server, "anthropic (async)", anthropic.__version__)
            assert kept.conversation("harbour").size == len(messages) - 1, (
                "the last reply comes with the next call"
            )
