"""What is not compacted passes by, byte for byte."""

from __future__ import annotations

import msgspec
import pytest

from refold.testing import Body, say
from tests.gateway.conftest import served, target_for

ODD = b'{ "model":"gpt-5" ,"x_unknown":{"deep":[1,2.50,null]},\n "messages":[{"role":"user","content":"caf\\u00e9 \xc3\xa9","x":1}],"n":1 }'
PATHS = {
    "/v1/chat/completions": ODD,
    "/v1/responses": ODD.replace(b'"messages"', b'"input"'),
    "/v1/messages": ODD.replace(b'"n":1', b'"max_tokens":9,"cache_control":{"type":"ephemeral"}'),
}


@pytest.mark.feature("N7", "X5")
@pytest.mark.parametrize("path", PATHS)
async def test_a_request_that_needs_nothing_leaves_as_it_came(gate, path):
    status, headers, _ = await gate.post(f"{path}?beta=true&x=%2F", PATHS[path], x_custom="Ä")

    received = gate.upstream.requests[0]
    assert (status, received.body, headers["x-refold-action"]) == (200, PATHS[path], "passed")
    assert received.headers["x-custom"] == "Ä"
    assert not [name for name in received.headers if name.startswith("x-refold")]


async def test_what_cannot_be_read_goes_on_untouched(gate):
    body = b'{"model":"gpt-5","messages":[{"role":"wizard","content":7}]}'
    gate.upstream.script(say("Whatever."))

    status, headers, _ = await gate.post("/v1/chat/completions", body)

    assert (gate.upstream.requests[0].body, headers["x-refold-action"]) == (body, "unparsed")
    assert status == 400  # the provider's own verdict


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"nonsense"])
async def test_what_is_no_json_is_the_providers_to_refuse(gate, body):
    status, _, answer = await gate.post("/v1/chat/completions", body)

    assert 400 <= status < 500
    assert b"error" in answer


async def test_other_paths_pass_by(gate):
    body = msgspec.json.encode({"model": "m", "input": ["a", "b"]})
    status, headers, answer = await gate.post("/v1/embeddings", body)

    assert (status, headers["x-refold-action"]) == (200, "passed")
    assert len(msgspec.json.decode(answer)["data"]) == 2
    assert gate.upstream.requests[0].body == body


async def test_switched_off_for_a_request_nothing_is_looked_at(gate):
    status, headers, _ = await gate.post("/v1/chat/completions", ODD, x_refold="off")

    assert (status, headers["x-refold-action"]) == (200, "off")
    assert await gate.store.conversations("local") == []


async def test_a_wish_that_cannot_be_met_is_the_clients_to_mend(gate):
    for wish in (
        {"x_refold_window": "many"},
        {"x_refold_preset": "best"},
        {"x_refold_upstream": "http://evil"},
    ):
        status, _, answer = await gate.post("/v1/chat/completions", ODD, **wish)
        assert status == 400
        assert msgspec.json.decode(answer)["error"]["message"]
    assert gate.upstream.requests == []


async def test_the_clients_key_goes_to_the_upstream_or_the_operators_own_in_its_place(upstream):
    async with served(upstream, targets=[target_for(upstream)]) as gate:
        await gate.post("/v1/chat/completions", ODD, authorization="Bearer client-own")
    own = target_for(upstream, passes_key=False, headers={"authorization": "Bearer operators"})
    async with served(upstream, targets=[own]) as gate:
        await gate.post("/v1/chat/completions", ODD, authorization="Bearer client-own", x_api_key="also-own")

    assert upstream.requests[0].headers["authorization"] == "Bearer client-own"
    assert upstream.requests[1].headers["authorization"] == "Bearer operators"
    assert "x-api-key" not in upstream.requests[1].headers


@pytest.mark.feature("X20")
async def test_an_answer_of_another_kind_passes_by(gate):
    gate.upstream.script(Body(200, b"\x00\x01not json", content_type="application/octet-stream"))

    status, _, answer = await gate.post("/v1/chat/completions", ODD)

    assert (status, answer) == (200, b"\x00\x01not json")


@pytest.mark.parametrize("path", ["/v1", "/v2/chat/completions", "/elsewhere"])
async def test_outside_of_v1_only_declared_paths_are_there(path, gate):
    status, _, told = await gate.post(path, b"{}")

    assert status == 404
    assert b"there is nothing at this path" in told
    assert gate.upstream.requests == []
