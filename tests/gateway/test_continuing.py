"""Responses that go on from what the provider keeps."""

from __future__ import annotations

import pytest

from refold.testing import Say, ScriptedUpstream
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
