"""A damaged store behind the gateway: requests are answered, and no client is told that its request was malformed."""

from __future__ import annotations

import json
import logging

import pytest

from refold.stores.sqlite.store import SqliteStore
from tests.damage import BAD_BODIES, damage
from tests.gateway.conftest import served

ASKED = [{"role": "user", "content": "Hello."}]
AGAIN = [*ASKED, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And now?"}]


def body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "gpt-5", "messages": messages}).encode()


@pytest.mark.parametrize("damaged", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_request_for_a_damaged_conversation_is_answered_and_not_called_malformed(
    upstream, tmp_path, caplog, damaged
):
    path = tmp_path / "chats.db"
    store = await SqliteStore.open(path)
    async with served(upstream, store=store) as gate:
        status, _, _ = await gate.post("/v1/chat/completions", body(ASKED), x_refold_conversation="tides")
        assert status == 200
    await store.close()
    damage(path, "tides", 0, damaged)
    store = await SqliteStore.open(path)
    with caplog.at_level(logging.WARNING):
        async with served(upstream, store=store, id_prefix="again") as gate:
            status, told, reply = await gate.post(
                "/v1/chat/completions", body(AGAIN), x_refold_conversation="tides"
            )

            assert status == 200
            assert json.loads(reply)["choices"][0]["message"]["content"] == "Fine."
            assert told["x-refold-action"] == "not-kept"
            assert json.loads(upstream.requests[-1].body)["messages"] == AGAIN
            other, told, _ = await gate.post(
                "/v1/chat/completions", body(ASKED), x_refold_conversation="else"
            )
            assert other == 200
            assert told["x-refold-action"] not in ("not-kept", "unparsed", "failed")
    await store.close()
    assert "the conversation 'tides' is damaged: message 0 cannot be read" in caplog.text


async def test_a_chain_over_a_damaged_message_is_answered_and_not_called_malformed(
    upstream, tmp_path, caplog
):
    path = tmp_path / "chats.db"
    store = await SqliteStore.open(path)
    async with served(upstream, store=store) as gate, gate.openai() as client:
        first = await client.responses.create(model="gpt-5", input="one")
    await store.close()
    (name,) = [one.id for one in await listed(path)]
    damage(path, name, 0, b'{"role": "us')
    store = await SqliteStore.open(path)
    with caplog.at_level(logging.WARNING):
        async with served(upstream, store=store, id_prefix="again") as gate:
            asked = json.dumps({"model": "gpt-5", "input": "two", "previous_response_id": first.id}).encode()
            status, told, _ = await gate.post("/v1/responses", asked)

            assert status == 200
            assert told["x-refold-action"] == "not-kept"
            assert upstream.requests[-1].json["previous_response_id"] == first.id
    await store.close()
    assert "is damaged: message 0 cannot be read" in caplog.text


async def listed(path):
    store = await SqliteStore.open(path)
    found = await store.conversations("local")
    await store.close()
    return found
