"""The features of the preset `lis`, through the doors that users have."""

from __future__ import annotations

import json

import pytest

import refold
from refold.testing import ScriptedUpstream, sign
from refold.tokens import FittedCounter, counter_for
from refold.upstreams import Provider, open_upstream
from tests.formats import answer, anthropic_call, anthropic_result, question
from tests.gateway.conftest import served

LOOK = [{"name": "look", "input_schema": {"type": "object"}}]
THOUGHT = {"type": "thinking", "thinking": "I look.", "signature": sign("I look.")}


async def thought_about(messages, *, thinking="medium", **fields):
    """Send a request through a gateway that adds thinking; return the body that the provider got, and the
    response headers.
    """
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=100_000, compaction_thinking=thinking) as gate,
        gate.anthropic() as client,
    ):
        reply = await client.messages.with_raw_response.create(
            model="claude-opus-4-8", messages=messages, **{"max_tokens": 8_000, **fields}
        )
        return upstream.requests[-1].json, reply.headers


@pytest.mark.feature("L13")
async def test_thinking_without_room_is_left_out_and_a_header_says_so():
    sent, told = await thought_about([question("Why?")], max_tokens=2_000)

    assert "thinking" not in sent
    assert told["x-refold-thinking"] == "off; max_tokens 2000 leaves no room beside 4096"


@pytest.mark.feature("L13")
async def test_thinking_is_not_added_in_a_tool_loop_that_began_without_it():
    loop = [anthropic_call("look"), anthropic_result("look", "Nothing.")]
    sent, told = await thought_about([question("Why?"), *loop], tools=LOOK)
    assert "thinking" not in sent
    assert told["x-refold-thinking"] == "off; a tool loop goes on that began without it"

    sent, told = await thought_about([question("Why?"), *loop, *_second(loop), question("And?")], tools=LOOK)
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 4_096}
    assert "x-refold-thinking" not in told


@pytest.mark.feature("L13")
async def test_thinking_goes_on_in_a_tool_loop_that_began_with_it():
    call, result = anthropic_call("look"), anthropic_result("look", "Nothing.")
    loop = [{**call, "content": [THOUGHT, *call["content"]]}, result, *_second([call, result])]
    sent, told = await thought_about([question("Why?"), *loop], tools=LOOK)

    assert sent["thinking"]["budget_tokens"] == 4_096
    assert told["x-refold-added"] == "thinking"


def _second(loop):
    """Return the messages with other ids of their calls."""
    call, result = loop
    return [
        {**call, "content": [{**call["content"][0], "id": "call_2"}]},
        {**result, "content": [{**result["content"][0], "tool_use_id": "call_2"}]},
    ]


# The provider's own count before a very large request

COUNTED_AS = 1.25
"""Tokens of the provider per token of ours."""


def words(count):
    """A question of about `count` tokens."""
    return question(" ".join(f"ship{number % 97} sails" for number in range(count // 4)))


def history(size):
    """A conversation of about so many tokens of ours, in equal turns."""
    turns = [message for _ in range(10) for message in (words(size // 10), answer("Fine."))]
    return [*turns, question("And now?")]


def counting_provider(window=20_000):
    counter = FittedCounter(COUNTED_AS * counter_for("claude-opus-4-8").factor)
    return ScriptedUpstream(otherwise="Fine.", window=window, counter=counter)


def paths(upstream):
    return [one.path for one in upstream.requests]


@pytest.mark.feature("L6")
@pytest.mark.parametrize("size, is_counted", [(15_000, True), (8_000, False)])
async def test_a_very_large_request_is_counted_by_the_provider_first(size, is_counted):
    async with counting_provider() as upstream:
        provider = Provider(
            "box", "claude-opus-4-8", format="anthropic", base_url=f"{upstream.url}/v1", key_env=""
        )
        talk = refold.Conversation("claude-opus-4-8", format="anthropic", window=20_000, max_output=1_000)
        async with open_upstream(provider) as asked, talk:
            await talk.add(*history(size))
            await talk.ask(asked)

    counts = ["/v1/messages/count_tokens"] if is_counted else []
    assert paths(upstream) == [*counts, "/v1/messages"]  # none was refused


@pytest.mark.feature("L6")
@pytest.mark.parametrize("size, is_counted", [(15_000, True), (8_000, False)])
async def test_the_gateway_lets_the_provider_count_a_very_large_request(size, is_counted):
    async with (
        counting_provider() as upstream,
        served(upstream, window=20_000, summariser_enabled=False) as gate,
        gate.anthropic() as client,
    ):
        reply = await client.messages.with_raw_response.create(
            model="claude-opus-4-8", max_tokens=1_000, messages=history(size)
        )

    counts = ["/v1/messages/count_tokens"] if is_counted else []
    assert paths(upstream) == [*counts, "/v1/messages"]
    assert reply.headers["x-refold-action"] == ("summarise" if is_counted else "none")


@pytest.mark.feature("L6")
async def test_a_provider_that_cannot_count_is_sent_the_request_all_the_same():
    async with (
        counting_provider(window=None) as upstream,
        served(upstream, window=20_000, summariser_enabled=False) as gate,
    ):
        body = json.dumps({"model": "my-model", "messages": history(15_000), "max_tokens": 1_000}).encode()
        status, _, _ = await gate.post("/v1/chat/completions", body)

    assert (status, paths(upstream)) == (200, ["/v1/chat/completions"])
