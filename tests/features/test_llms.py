"""The features of the preset `llms`, through the doors that users have."""

from __future__ import annotations

import json

import aiohttp
import pytest

from refold.model.tokens import Usage
from refold.testing import ScriptedUpstream, say
from tests.gateway.conftest import served


@pytest.mark.feature("X2", "O16")
async def test_the_usage_ratio_is_that_of_the_provider_s_last_prompt():
    """The provider counts many more tokens than we do; the list and the page of the conversation show its number."""
    reply = say("Fine.", usage=Usage(input=6_000, output=5))
    async with (
        ScriptedUpstream(otherwise=reply, window=None) as upstream,
        served(upstream, window=12_000, summariser_enabled=False) as gate,
        aiohttp.ClientSession() as session,
    ):
        asked = [{"role": "user", "content": "The gulls flew out to sea. " * 500}]
        body = json.dumps({"model": "gpt-4o", "messages": asked}).encode()
        for _ in range(2):
            await gate.post("/v1/chat/completions", body, x_refold_conversation="one")
        for page in ("conversations", "conversations/one"):
            found = await (await session.get(f"{gate.url}/refold/{page}")).json()
            found = found[0] if isinstance(found, list) else found
            assert (found["tokens"], found["limit"]) == (6_000, 10_380)
        assert found["ratio"] == pytest.approx(6_000 / 10_380)
        assert (found["billed"]["input"], found["billed"]["output"]) == (12_000, 10)
