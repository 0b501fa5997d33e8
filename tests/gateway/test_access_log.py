"""The line that the gateway logs for every call, and the answers to calls that went to the wrong place."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from refold.cli.main import run
from refold.gateway.log import FACTS
from refold.stores.url import open_store
from tests.gateway.conftest import served

ASKED = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "a secret plan"}]}).encode()


@pytest.fixture
def lines(caplog):
    """The logged lines about calls: their text, and their facts."""
    caplog.set_level(logging.INFO, "refold.gateway")

    def found():
        records = (one for one in caplog.records if one.getMessage().split(" ")[0] in ("POST", "GET"))
        return [(one.getMessage(), dict(getattr(one, FACTS))) for one in records]

    return found


async def test_a_call_is_logged_with_what_it_was_and_what_was_done(upstream, lines):
    async with served(upstream) as gate:
        await gate.post("/v1/chat/completions", ASKED, x_refold_conversation="plans")

    [(text, facts)] = lines()
    assert text == "POST /v1/chat/completions"
    assert (facts["status"], facts["conversation"], facts["model"]) == (200, "plans", "gpt-4o")
    assert (facts["upstream"], facts["tokens"]) == ("scripted", "7->7")
    assert {"action", "receipt", "ms"} <= facts.keys()
    assert "secret" not in str(facts)


async def test_a_call_without_a_conversation_is_logged_with_its_model(upstream, lines):
    async with served(upstream) as gate:
        await gate.post("/v1/embeddings", b'{"model":"embedder","input":"a secret plan"}')

    [(_, facts)] = lines()
    assert (facts["action"], facts["model"]) == ("passed", "embedder")


@pytest.mark.feature("X18")
async def test_a_refused_call_is_logged_without_its_key(upstream, lines, tmp_path):
    url = f"sqlite:///{tmp_path}/chats.db"
    command = ["keys", "create", "laptop", "--owner", "anna", "--store", url]
    assert await asyncio.to_thread(run, command) == 0
    async with served(upstream, store=await open_store(url)) as gate:
        status, _, _ = await gate.post("/v1/chat/completions", ASKED, authorization="Bearer rf_no_such")
        path = "/v1/models?key=rf_0123456789abcdef0123456789abcdef"
        assert (await gate.post(path, b"{}"))[0] == 401

    assert status == 401
    assert [facts["status"] for _, facts in lines()] == [401, 401]
    assert "rf_" not in str(lines())


@pytest.mark.parametrize("value", ["disabled", "0", "false", "offf"])
async def test_a_switch_with_a_wrong_value_is_refused_with_the_right_ones(upstream, value):
    async with served(upstream) as gate:
        status, _, body = await gate.post("/v1/chat/completions", ASKED, x_refold=value)

    assert status == 400
    assert "X-Refold is neither on nor off" in body.decode()
    assert not upstream.requests


@pytest.mark.parametrize("value", ["off", "OFF ", "on", ""])
async def test_a_switch_is_on_or_off(upstream, value):
    async with served(upstream) as gate:
        status, told, _ = await gate.post("/v1/chat/completions", ASKED, x_refold=value)

    assert (status, told["x-refold-action"] == "off") == (200, value.strip().lower() == "off")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "end the base URL of this client with /v1"),
        ("/messages", "end the base URL of this client with /v1"),
        ("/v1/v1/messages", "leave /v1 out of the base URL of this client"),
        ("/v1/v1/chat/completions", "leave /v1 out of the base URL of this client"),
    ],
)
async def test_a_base_url_with_a_missing_or_doubled_version_gets_a_hint(upstream, path, hint):
    async with served(upstream) as gate:
        status, _, body = await gate.post(path, ASKED)

    assert (status, hint in body.decode()) == (404, True)
    assert not upstream.requests


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/v1/v1/messages", {"type", "error", "request_id"}),
        ("/v1/v1/messages/count_tokens", {"type", "error", "request_id"}),
        ("/v1/v1/chat/completions", {"error"}),
        ("/v1/v1/responses", {"error"}),
    ],
)
async def test_the_error_for_a_doubled_version_has_the_shape_of_its_client(upstream, path, keys):
    async with served(upstream) as gate:
        _, _, body = await gate.post(path, ASKED)

    assert set(json.loads(body)) == keys
