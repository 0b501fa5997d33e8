"""A conversation begun in one format goes on in another, and with a smaller model, and is still one conversation."""

from __future__ import annotations

import msgspec
import pytest

from refold.testing import Say, ScriptedUpstream, call, say
from tests.e2e.test_gateway_sdks import GOAL, WINDOW, never_refused, prose
from tests.gateway.conftest import served

CHAT_TURNS, MORE_TURNS = 40, 6


def as_anthropic(history):
    """The same history as a client of Anthropic's writes it down: results of one reply in one message."""
    out = []
    for message in history:
        if message["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": message["content"],
            }
            out.append({"role": "user", "content": [block]})
        elif message["role"] == "assistant":
            said = [{"type": "text", "text": message["content"]}] if message.get("content") else []
            calls = [
                {
                    "type": "tool_use",
                    "id": made["id"],
                    "name": made["function"]["name"],
                    "input": msgspec.json.decode(made["function"]["arguments"]),
                }
                for made in message.get("tool_calls", ())
            ]
            out.append({"role": "assistant", "content": [*said, *calls]})
        else:
            out.append(message)
    return out


async def chat_turns(client, upstream, turns):
    history = []
    for turn in range(turns):
        upstream.script(
            say(f"Looking {turn}.", call("read", {"path": f"f{turn}.py"}, id=f"call_{turn}")),
            say(prose(turn, 25)),
        )
        history.append({"role": "user", "content": GOAL if not turn else f"Step {turn}: {prose(turn, 20)}"})
        for _ in range(2):
            reply = await client.chat.completions.create(
                model="gpt-4o", messages=[], max_tokens=300, extra_body={"messages": history}
            )
            said = reply.choices[0].message
            history.append(said.model_dump(exclude_none=True))
            history += [
                {"role": "tool", "tool_call_id": made.id, "content": prose(turn, 90)}
                for made in said.tool_calls or ()
            ]
    return history


@pytest.mark.feature("N11")
async def test_begun_with_the_openai_sdk_and_finished_with_the_anthropic_sdk():
    async with (
        ScriptedUpstream(window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        async with gate.openai(default_headers={"x-refold-conversation": "port"}) as client:
            history = as_anthropic(await chat_turns(client, upstream, CHAT_TURNS))
        async with gate.anthropic(default_headers={"x-refold-conversation": "port"}) as client:
            for turn in range(MORE_TURNS):
                upstream.script(say(f"Going on {turn}."))
                history.append({"role": "user", "content": f"Further {turn}: {prose(turn, 20)}"})
                reply = await client.messages.create(
                    model="claude-opus-4-8", max_tokens=300, messages=history
                )
                history.append({"role": "assistant", "content": reply.content[0].text})

        never_refused(upstream)
        first = upstream.requests[-MORE_TURNS]
        assert GOAL in first.body.decode()
        assert len(first.messages) < len(history) / 2
        (listed,) = await gate.store.conversations("local")
        assert (listed.id, listed.branches) == ("port", 2)
        assert all(isinstance(answer, Say) for answer in upstream.answered)


@pytest.mark.feature("N11")
async def test_what_a_summary_said_in_one_format_is_said_in_the_other(upstream_with_summaries):
    upstream, gate = upstream_with_summaries
    async with gate.openai() as client:
        history = as_anthropic(await chat_turns(client, upstream, CHAT_TURNS))
    before = upstream.requests[-1].messages[0].text
    async with gate.anthropic() as client:
        upstream.script(say("Going on."))
        history.append({"role": "user", "content": "Further."})
        await client.messages.create(model="claude-opus-4-8", max_tokens=300, messages=history)

    after = upstream.requests[-1].messages[0].text
    lines = [line for line in before.splitlines() if line.startswith("- ")]
    assert lines
    assert sum(line in after for line in lines) > 0.8 * len(lines)


@pytest.fixture
async def upstream_with_summaries():
    async with (
        ScriptedUpstream(window=WINDOW) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        yield upstream, gate


@pytest.mark.feature("N11")
async def test_a_smaller_model_takes_over():
    async with ScriptedUpstream(window=3_000) as upstream, served(upstream, summariser_enabled=False) as gate:
        history = [
            {"role": ("user", "assistant")[n % 2], "content": GOAL if not n else f"{n}: {prose(n, 80)}"}
            for n in range(41)
        ]
        upstream.script(otherwise="Fine.")
        async with gate.openai() as client:
            asked = {"messages": history}
            large = await client.chat.completions.with_raw_response.create(
                model="gpt-4o",
                messages=[],
                max_tokens=100,
                extra_body=asked,
                extra_headers={"x-refold-window": "3000"},
            )
        assert large.headers["x-refold-action"] == "folded"
        never_refused(upstream)
        assert GOAL in upstream.requests[-1].body.decode()
