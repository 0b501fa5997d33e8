"""Responses that go on from what the provider keeps."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI

from refold.model.message import ToolCall
from refold.testing import Refuse, Say, ScriptedUpstream
from tests.e2e.test_gateway_sdks import prose
from tests.gateway.conftest import served


async def test_a_chain_goes_on_at_the_provider_and_is_recorded_here(gate):
    async with gate.openai() as client:
        first = await client.responses.create(model="gpt-5", input="one")
        second = await client.responses.create(model="gpt-5", input="two", previous_response_id=first.id)
        await client.responses.create(
            model="gpt-5", input=[{"role": "user", "content": "three"}], previous_response_id=second.id
        )

    sent = [one.json for one in gate.upstream.requests]
    assert [one.get("previous_response_id") for one in sent] == [None, first.id, second.id]
    assert sent[1]["input"] == "two"
    (listed,) = await gate.store.conversations("local")
    assert (listed.messages, listed.branches) == (5, 1)


@pytest.mark.feature("X4", "N7")
async def test_a_chain_that_fills_the_window_goes_on_from_what_was_seen_here():
    async with (
        ScriptedUpstream(window=6_000) as upstream,
        served(upstream, window=6_000, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        previous = None
        for turn in range(40):
            upstream.script(prose(turn, 60))
            reply = await client.responses.create(
                model="gpt-5",
                input=f"Step {turn}: {prose(turn, 60)}",
                previous_response_id=previous,
                max_output_tokens=200,
            )
            previous = reply.id

        assert all(isinstance(answer, Say) for answer in upstream.answered)
        whole = [one.json for one in upstream.requests if "previous_response_id" not in one.json]
        assert len(whole) > 1
        (listed,) = await gate.store.conversations("local")
        assert (listed.messages, listed.branches) == (79, 1)


async def test_a_chain_that_began_elsewhere_passes_by(gate):
    body = b'{"model":"gpt-5","input":"two","previous_response_id":"resp_x"}'
    status, told, _ = await gate.post("/v1/responses", body)

    assert (status, told["x-refold-action"]) == (400, "passed")  # the provider does not know it either
    assert gate.upstream.requests[0].body == body
    assert await gate.store.conversations("local") == []


async def begin_elsewhere(upstream: ScriptedUpstream, text: str) -> str:
    """The id of a response that the provider gave without the gateway."""
    upstream.script("Understood.")
    async with AsyncOpenAI(base_url=f"{upstream.url}/v1", api_key="sk-test", max_retries=0) as direct:
        return (await direct.responses.create(model="gpt-5", input=text)).id


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chain_that_began_elsewhere_is_compacted_from_there_on(is_stream):
    async with (
        ScriptedUpstream(window=6_000) as upstream,
        served(upstream, window=6_000, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        root = previous = await begin_elsewhere(upstream, "The code word is XYLOPHONE. " + prose(7, 600))
        for turn in range(40):
            upstream.script(prose(turn, 60))
            asked = {"model": "gpt-5", "max_output_tokens": 200, "previous_response_id": previous}
            asked["input"] = f"Step {turn}: {prose(turn, 60)}"
            if is_stream:
                async with client.responses.stream(**asked) as stream:
                    previous = (await stream.get_final_response()).id
            else:
                previous = (await client.responses.create(**asked)).id

        assert all(isinstance(answer, Say) for answer in upstream.answered)
        compacted = [one.json for one in upstream.requests[2:] if one.json["previous_response_id"] == root]
        assert len(compacted) > 1
        assert all(len(one["input"]) > 1 for one in compacted)
        (listed,) = await gate.store.conversations("local")
        assert (listed.messages, listed.branches) == (79, 1)


async def test_a_refusal_of_a_chain_that_began_elsewhere_limits_no_other_conversation():
    """The provider counts what it alone has, too: of 6,000 tokens it has some 4,000."""
    said = (
        "This model's maximum context length is 6000 tokens. However, your messages resulted in 6100 tokens."
    )
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=6_000, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        previous = await begin_elsewhere(upstream, prose(7, 1_500))
        upstream.script(
            "Fine.", "Fine.", Refuse(400, said, code="context_length_exceeded"), otherwise="Fine."
        )
        for turn in range(3):
            reply = await client.responses.create(
                model="gpt-5", input=f"Step {turn}: {prose(turn, 80)}", previous_response_id=previous,
                max_output_tokens=200,
            )  # fmt: skip
            previous = reply.id
        history = []
        for turn in range(8):
            history.append({"role": "user", "content": f"Question {turn}: {prose(turn, 130)}"})
            body = json.dumps({"model": "gpt-5", "messages": history, "max_tokens": 200}).encode()
            status, told, _ = await gate.post("/v1/chat/completions", body)
            history.append({"role": "assistant", "content": "Fine."})
            assert (status, told["x-refold-action"]) == (200, "passed")

    whole, sent = map(int, told["x-refold-tokens"].split("->"))
    assert whole == sent > 2_000
    assert sum(isinstance(one, Refuse) for one in upstream.answered) == 1


async def test_a_chain_goes_on_under_its_name_after_what_was_stored_is_gone(gate):
    async with gate.openai() as client:
        first = await client.responses.create(model="gpt-5", input="one")
        (before,) = await gate.store.conversations("local")
        await gate.store.delete("local", before.id)
        second = await client.responses.create(model="gpt-5", input="two", previous_response_id=first.id)
        await client.responses.create(model="gpt-5", input="three", previous_response_id=second.id)

    (after,) = await gate.store.conversations("local")
    assert after.id == before.id
    assert (after.messages, after.branches) == (3, 1)  # "two", its answer, "three"


async def test_a_gap_before_the_results_of_calls_is_passed_by_until_the_user_speaks(gate):
    gate.upstream.script(Say(parts=(ToolCall("call_1", "look", "{}"),)), "found", "more")
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    async with AsyncOpenAI(base_url=f"{gate.upstream.url}/v1", api_key="sk-test", max_retries=0) as direct:
        root = await direct.responses.create(model="gpt-5", input="look it up", tools=tools)
    calls = [one.call_id for one in root.output if one.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": one, "output": "a result"} for one in calls]
    async with gate.openai() as client:
        second = await client.responses.create(
            model="gpt-5", input=results, previous_response_id=root.id, tools=tools
        )
        assert await gate.store.conversations("local") == []
        await client.responses.create(model="gpt-5", input="go on", previous_response_id=second.id)

    (listed,) = await gate.store.conversations("local")
    assert listed.messages == 1
