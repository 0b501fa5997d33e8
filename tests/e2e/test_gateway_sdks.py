"""Two hundred turns with tools in a window of 8k, by the official SDKs through the gateway: the provider never says no.

The scripted provider enforces the real rules of each format and counts tokens; whatever it would refuse fails the test. The
history goes in as `extra_body`: before it sends them, the OpenAI SDK takes longer over hundreds of items than all else together.
"""

from __future__ import annotations

import msgspec
import pytest

from refold.testing import Say, ScriptedUpstream, call, say
from refold.tokens import counter_for
from tests.gateway.conftest import served

TURNS, WINDOW = 200, 8_000
SHORT = [60, pytest.param(TURNS, marks=pytest.mark.slow)]
LONGER = [100, pytest.param(TURNS, marks=pytest.mark.slow)]
"""All formats go the whole way in the long run; in the short one, half of it in the format that most clients speak. A client
sends all of its history each time, so half of the turns take a quarter of the time.
"""
WORDS = [
    "harbour",
    "lantern",
    "anchor",
    "signal",
    "cargo",
    "ballast",
    "rudder",
    "compass",
    "tide",
    "mooring",
    "beacon",
    "hull",
]
GOAL = "Port the invoice service to version 7 and never touch billing/ledger.py."


def prose(seed: int, words: int) -> str:
    return " ".join(f"{WORDS[(seed * 7 + n) % len(WORDS)]}{(seed * n) % 89}" for n in range(words))


def answers(turn: int) -> tuple[Say, Say]:
    return say(f"I will look. {prose(turn, 8)}", call("read", {"path": f"src/f{turn}.py"})), say(
        prose(turn, 25)
    )


def question(turn: int) -> str:
    return GOAL if not turn else f"Step {turn}: {prose(turn, 20)}"


def never_refused(upstream: ScriptedUpstream) -> None:
    assert all(isinstance(answer, Say) for answer in upstream.answered)


def is_kept(upstream: ScriptedUpstream) -> bool:
    return GOAL in msgspec.json.encode(upstream.requests[-1].json).decode()


@pytest.mark.feature("N7", "X4", "X20")
@pytest.mark.parametrize("turns", LONGER)
async def test_the_openai_sdk_streaming_chat_completions(turns):
    async with (  # without a report of usage: the counts agree, so nothing has to be learnt from a refusal
        ScriptedUpstream(window=WINDOW, counter=counter_for("gpt-4o")) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        history = []
        async with gate.openai() as client:
            for turn in range(turns):
                upstream.script(*answers(turn))
                history.append({"role": "user", "content": question(turn)})
                for _ in range(2):
                    asked = {"messages": [{"role": "system", "content": "You port code."}, *history]}
                    stream = client.chat.completions.stream(
                        model="gpt-4o", messages=[], max_tokens=300, extra_body=asked
                    )
                    async with stream as events:
                        said = (await events.get_final_completion()).choices[0].message
                    history.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
                    history += [
                        {"role": "tool", "tool_call_id": made.id, "content": prose(turn, 90)}
                        for made in said.tool_calls or ()
                    ]
        never_refused(upstream)
        assert is_kept(upstream)
        assert len(history) == 4 * turns
        (listed,) = await gate.store.conversations("local")
        assert (listed.messages, listed.branches) == (4 * turns - 1, 1)
        assert listed.compactions > turns // 20


@pytest.mark.feature("N7", "X4")
@pytest.mark.parametrize("turns", SHORT)
async def test_the_openai_sdk_with_responses(turns):
    async with (
        ScriptedUpstream(window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        history = []
        async with gate.openai() as client:
            for turn in range(turns):
                upstream.script(*answers(turn))
                history.append({"role": "user", "content": question(turn)})
                for _ in range(2):
                    reply = await client.responses.create(
                        model="gpt-4o", instructions="You port code.", max_output_tokens=300, store=False,
                        extra_body={"input": history},
                    )  # fmt: skip
                    history += [item.model_dump(exclude_none=True) for item in reply.output]
                    history += [
                        {"type": "function_call_output", "call_id": item.call_id, "output": prose(turn, 90)}
                        for item in reply.output
                        if item.type == "function_call"
                    ]
        never_refused(upstream)
        assert is_kept(upstream)
        assert (await gate.store.conversations("local"))[0].branches == 1


@pytest.mark.feature("N7", "X4", "X20")
@pytest.mark.parametrize("turns", SHORT)
async def test_the_anthropic_sdk_streaming(turns):
    async with (
        ScriptedUpstream(window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        history = []
        async with gate.anthropic() as client:
            for turn in range(turns):
                upstream.script(*answers(turn))
                history.append({"role": "user", "content": question(turn)})
                for _ in range(2):
                    asked = {
                        "model": "claude-opus-4-8",
                        "system": "You port code.",
                        "messages": history,
                        "max_tokens": 300,
                    }
                    async with client.messages.stream(**asked) as stream:
                        reply = await stream.get_final_message()
                    history.append(
                        {
                            "role": "assistant",
                            "content": [b.model_dump(exclude_none=True) for b in reply.content],
                        }
                    )
                    results = [
                        {"type": "tool_result", "tool_use_id": block.id, "content": prose(turn, 90)}
                        for block in reply.content
                        if block.type == "tool_use"
                    ]
                    history += [{"role": "user", "content": results}] if results else []
        never_refused(upstream)
        assert is_kept(upstream)
        assert (await gate.store.conversations("local"))[0].branches == 1
