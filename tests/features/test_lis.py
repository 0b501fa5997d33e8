"""The features of the preset `lis`, through the doors that users have."""

from __future__ import annotations

import pytest

from refold.testing import ScriptedUpstream, sign
from tests.formats import anthropic_call, anthropic_result, question
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
