"""The list of models: one upstream's as it came, those of several together."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest

from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served, target_for


async def listed(gate, **headers):
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{gate.url}/v1/models", headers=sent) as response,
    ):
        return response.status, msgspec.json.decode(await response.read())


async def test_one_upstreams_list_passes_by(gate):
    status, found = await listed(gate)
    assert (status, [one["id"] for one in found["data"]]) == (200, ["scripted"])


async def test_the_lists_of_several_come_together_and_who_does_not_answer_is_left_out(upstream):
    async with ScriptedUpstream(model="another") as other:
        targets = [
            target_for(upstream),
            target_for(other, name="other"),
            target_for(other, name="gone", url="http://127.0.0.1:9"),
        ]
        async with served(upstream, targets=targets) as gate:
            status, found = await listed(gate)
            assert (status, found["object"]) == (200, "list")
            assert [one["id"] for one in found["data"]] == ["scripted", "another"]
            _, found = await listed(gate, anthropic_version="2023-06-01")
            assert (found["first_id"], found["last_id"], found["has_more"]) == ("scripted", "another", False)


async def test_where_nobody_answers_that_is_said(upstream):
    gone = [target_for(upstream, name=name, url="http://127.0.0.1:9") for name in ("one", "two")]
    async with served(upstream, targets=gone) as gate:
        status, found = await listed(gate)
        assert status == 502
        assert "no upstream lists its models" in found["error"]["message"]


BROKEN = b'{"model":"local","messages":[{"role":"user","content":"my diary'
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [BROKEN, b"\xef\xbb\xbf" + BROKEN, b" \n" + BROKEN])
@pytest.mark.parametrize("switch", ["on", "off"])
async def test_broken_json_is_sent_to_nobody_if_its_model_decides_who_gets_it(upstream, path, body, switch):
    async with ScriptedUpstream(otherwise="From here.") as local:
        targets = [target_for(upstream), target_for(local, name="local", models=("local",))]
        async with served(upstream, targets=targets) as gate:
            status, _, answer = await gate.post(path, body, x_refold=switch)

            assert (status, upstream.requests, local.requests) == (400, [], [])
            error = msgspec.json.decode(answer)["error"]
            assert "the body is not valid JSON: " in error["message"]
            assert error["type"] == "invalid_request_error"

            await gate.post("/v1/chat/completions", body, x_refold_upstream="local")
            assert (len(local.requests), upstream.requests) == (1, [])


async def test_a_large_call_without_a_conversation_goes_to_the_upstream_of_its_model(upstream):
    large = msgspec.json.encode({"input": ["a page of my diary " * 70_000], "model": "local"})
    async with ScriptedUpstream(otherwise="From here.") as local:
        targets = [target_for(upstream), target_for(local, name="local", models=("local",))]
        async with served(upstream, targets=targets) as gate:
            status, _, _ = await gate.post("/v1/embeddings", large)

            assert (status, len(local.requests), upstream.requests) == (200, 1, [])


async def test_a_form_passes_by(upstream):
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\xff{\r\n--x--\r\n'
    async with ScriptedUpstream(otherwise="From here.") as local:
        targets = [target_for(upstream), target_for(local, name="local", models=("local",))]
        async with served(upstream, targets=targets) as gate:
            sent = {"content_type": "multipart/form-data; boundary=x"}
            status, told, _ = await gate.post("/v1/audio/transcriptions", form, **sent)

            assert (told["x-refold-action"], told["x-refold-upstream"]) == ("passed", "scripted")
            assert status == 404  # the scripted provider hears nothing
