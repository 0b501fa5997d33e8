"""A damaged store behind the gateway: requests are answered, and no client is told that its request was malformed."""

from __future__ import annotations

import json
import logging

import pytest

import refold
from refold.stores.sqlite.store import SqliteStore
from tests.damage import BAD_BODIES, BAD_PROMPTS, damage, damage_prompt, stored_prompts
from tests.gateway.conftest import served

ASKED = [{"role": "user", "content": "Hello."}]
AGAIN = [*ASKED, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And now?"}]

NAMED = {"x_refold_conversation": "tides"}


def body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "gpt-5", "messages": messages}).encode()


async def restarted_with_damage(upstream, path, seq, *messages, body_bytes=BAD_BODIES["no JSON"]):
    """Send the requests of a conversation through one gateway, and damage a message after its end."""
    store = await SqliteStore.open(path)
    async with served(upstream, store=store) as gate:
        for one in messages:
            status, told, _ = await gate.post("/v1/chat/completions", body(one), **NAMED)
            assert (status, told["x-refold-action"]) == (200, "passed")
    await store.close()
    damage(path, "tides", seq, body_bytes)
    return told["x-refold-branch"]


@pytest.mark.parametrize("damaged", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_damaged_conversation_goes_on_in_a_new_branch(upstream, tmp_path, caplog, damaged):
    path = tmp_path / "chats.db"
    before = await restarted_with_damage(upstream, path, 0, ASKED, body_bytes=damaged)
    later = [*AGAIN, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And then?"}]
    store = await SqliteStore.open(path)
    with caplog.at_level(logging.WARNING):
        async with served(upstream, store=store, id_prefix="again") as gate:
            status, told, reply = await gate.post("/v1/chat/completions", body(AGAIN), **NAMED)
            _, next_told, _ = await gate.post("/v1/chat/completions", body(later), **NAMED)

    assert status == 200
    assert json.loads(reply)["choices"][0]["message"]["content"] == "Fine."
    assert told["x-refold-action"] == next_told["x-refold-action"] == "passed"
    assert told["x-refold-branch"] == next_told["x-refold-branch"] != before
    assert told["x-refold-conversation"] == next_told["x-refold-conversation"] == "tides"
    assert "x-refold-not-kept" not in next_told
    assert caplog.text.count("the conversation 'tides' is damaged (message 0 cannot be read)") == 1
    engine = refold.Engine(store)
    assert len(await store.messages(await store.head("local", "tides", next_told["x-refold-branch"]))) == 5
    assert "message 0 cannot be read" in [one.what for one in await engine.examine("tides")]
    await store.close()


async def test_a_damaged_conversation_is_compacted(upstream, tmp_path):
    """The provider would refuse the whole history: the new branch gets a window like any other."""
    path = tmp_path / "chats.db"
    long = [*ASKED]
    for number in range(30):
        long.append({"role": "assistant", "content": f"Note {number}: " + "fog and tide " * 40})
        long.append({"role": "user", "content": f"And on day {number}?"})
    await restarted_with_damage(upstream, path, 7, long[:-2])
    store = await SqliteStore.open(path)
    async with served(upstream, store=store, id_prefix="again") as gate:
        status, told, _ = await gate.post("/v1/chat/completions", body(long), x_refold_window="4000", **NAMED)

    assert status == 200
    assert told["x-refold-action"] in ("reduced", "folded")
    assert len(upstream.requests[-1].body) < 0.7 * len(body(long))
    await store.close()


@pytest.mark.parametrize("asked", [0, 1], ids=["the first request", "the last request"])
async def test_a_repeated_request_finds_the_new_branch_after_each_restart(upstream, tmp_path, asked):
    path = tmp_path / "chats.db"
    before = await restarted_with_damage(upstream, path, 0, ASKED, AGAIN)
    branches = set()
    for time in range(3):
        store = await SqliteStore.open(path)
        async with served(upstream, store=store, id_prefix=f"again{time}") as gate:
            for _ in range(2):
                _, told, _ = await gate.post("/v1/chat/completions", body((ASKED, AGAIN)[asked]), **NAMED)
                assert told["x-refold-action"] == "passed"
                branches.add(told["x-refold-branch"])
        await store.close()

    assert len(branches) == 1
    assert before not in branches


async def test_an_edited_history_over_a_damaged_message_goes_on_too(upstream, tmp_path):
    """The request would fork the damaged branch after the damaged message."""
    path = tmp_path / "chats.db"
    await restarted_with_damage(upstream, path, 0, ASKED, AGAIN)
    edited = [*AGAIN[:2], {"role": "user", "content": "And tomorrow?"}]
    store = await SqliteStore.open(path)
    async with served(upstream, store=store, id_prefix="again") as gate:
        _, told, _ = await gate.post("/v1/chat/completions", body(edited), **NAMED)
        _, again, _ = await gate.post("/v1/chat/completions", body(edited), **NAMED)

        assert told["x-refold-action"] == again["x-refold-action"] == "passed"
        assert told["x-refold-branch"] == again["x-refold-branch"]
        assert told["x-refold-conversation"] == "tides"
    await store.close()


async def test_a_conversation_without_a_name_keeps_the_one_that_it_got(upstream, tmp_path):
    path = tmp_path / "chats.db"
    store = await SqliteStore.open(path)
    async with served(upstream, store=store) as gate:
        _, told, _ = await gate.post("/v1/chat/completions", body(ASKED))
        _, other, _ = await gate.post("/v1/chat/completions", body(AGAIN))
        assert told["x-refold-conversation"] == other["x-refold-conversation"]
    await store.close()
    damage(path, told["x-refold-conversation"], 1)
    later = [*AGAIN, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And then?"}]
    store = await SqliteStore.open(path)
    async with served(upstream, store=store, id_prefix="again") as gate:
        _, again, _ = await gate.post("/v1/chat/completions", body(later))

        assert again["x-refold-action"] == "passed"
        assert again["x-refold-conversation"] == told["x-refold-conversation"]
        assert again["x-refold-branch"] != other["x-refold-branch"]
    await store.close()


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


@pytest.mark.parametrize("value", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
@pytest.mark.parametrize("is_given", [True, False], ids=["with the prompt", "without a prompt"])
async def test_a_damaged_system_prompt_stops_no_request_and_is_mended_by_the_next(
    upstream, tmp_path, caplog, value, is_given
):
    path = tmp_path / "chats.db"
    prompt = [{"role": "system", "content": "Be kind."}]
    store = await SqliteStore.open(path)
    async with served(upstream, store=store) as gate:
        _, before, _ = await gate.post("/v1/chat/completions", body([*prompt, *ASKED]), **NAMED)
    await store.close()
    kept = stored_prompts(path)
    damage_prompt(path, "tides", value)
    store = await SqliteStore.open(path)
    sent = [*prompt, *AGAIN] if is_given else AGAIN
    async with served(upstream, store=store, id_prefix="again") as gate:
        status, told, _ = await gate.post("/v1/chat/completions", body(sent), **NAMED)
        assert (status, told["x-refold-action"]) == (200, "passed")
        assert told["x-refold-branch"] == before["x-refold-branch"]
        assert json.loads(upstream.requests[-1].body)["messages"] == sent
    head = await store.head("local", "tides", told["x-refold-branch"])
    assert len(await store.messages(head)) == 3
    await store.close()

    assert caplog.text.count("the conversation 'tides' is damaged: ") == 1
    assert (stored_prompts(path) == kept) == is_given
