"""The list of models: one upstream's as it came, those of several together."""

from __future__ import annotations

import aiohttp
import msgspec

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
