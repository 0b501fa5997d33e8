"""Codex and others that have their provider compact: the item goes back as it was made, and words go to anybody else."""

from __future__ import annotations

import json

import pytest

from refold import Engine
from refold.model.errors import StoreError
from refold.model.message import SUMMARY, UNREADABLE
from refold.model.tokens import Usage
from refold.stores.memory import MemoryStore
from refold.testing import Body, Refuse, Say, ScriptedUpstream, say
from tests.engine.test_provider_compactions import BLOCK, ITEM, TEXT, called, user, words
from tests.gateway.conftest import served, target_for

NAMED = {"session_id": "0190a7c2-7b0e-4d62-9d55-0a7c5c0b9a11"}
PATHS = {"responses": "/v1/responses", "anthropic": "/v1/messages"}
RAW = json.dumps(ITEM).encode()
OUTPUT = 300
COMPACTED = {
    "id": "resp_9",
    "object": "response",
    "status": "completed",
    "model": "gpt-5-codex",
    "output": [ITEM],
    "usage": {"input_tokens": 900, "output_tokens": 90, "total_tokens": 990},
}


async def ask(gate, name: str, history: list[dict], model: str = "gpt-5-codex"):
    body = {"model": model, "input" if name == "responses" else "messages": history}
    body |= {"max_tokens": 300} if name == "anthropic" else {"store": False}
    status, headers, told = await gate.post(PATHS[name], json.dumps(body).encode(), **NAMED)
    assert status == 200, told
    return headers


def opening(name: str) -> list[dict]:
    if name == "responses":
        return [user("Fix the build."), ITEM, user("go on")]
    return [user("Fix the build."), *called(0, name, BLOCK)]


async def work_on(gate, name: str, history: list[dict], first: int, last: int) -> None:
    """Requests of a client that resends its history, with one more call each time."""
    for number in range(first, last):
        history += called(number, name)
        await ask(gate, name, history)


@pytest.mark.parametrize("name", ["responses", "anthropic"])
async def test_after_folds_and_a_restart_it_is_there_once_first_and_byte_for_byte(name):
    raw = RAW if name == "responses" else json.dumps(BLOCK).encode()
    async with ScriptedUpstream(otherwise="Fine.", window=8_000) as upstream:
        history = opening(name)
        async with served(upstream, window=8_000, summariser_enabled=False) as gate:
            await work_on(gate, name, history, 1, 25)
            store = gate.store
        async with served(upstream, store=store, window=8_000, summariser_enabled=False) as gate:
            await work_on(gate, name, history, 25, 40)
    assert {received.body.count(raw) for received in upstream.requests} == {1}
    last = upstream.requests[-1]
    assert len(last.messages) < len(history)
    assert last.seen == last.messages[name == "anthropic" :]
    assert "[End of the earlier messages]" in "".join(message.text for message in last.seen)


@pytest.mark.parametrize(("name", "said"), [("anthropic", TEXT.strip()), ("responses", UNREADABLE)])
async def test_another_model_gets_words_and_its_own_gets_it_back(name, said):
    raw = RAW if name == "responses" else json.dumps(BLOCK).encode()
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        history = opening(name)
        await ask(gate, name, history)
        headers = await ask(gate, name, history, "gpt-5-mini")
        assert headers["x-refold-action"] == "reduced"
        await work_on(gate, name, history, 1, 25)
        await ask(gate, name, history, "gpt-5-mini")
        history += called(25, name)
        await ask(gate, name, history, "gpt-5-mini")
        history += called(26, name)
        await ask(gate, name, history)
    own = [received for received in upstream.requests if received.model == "gpt-5-codex"]
    other = [received for received in upstream.requests if received.model == "gpt-5-mini"]
    assert {received.body.count(raw) for received in own} == {1}
    assert {received.body.count(b'"compaction"') for received in other} == {0}
    assert any(said in message.text for message in other[0].messages)
    for received in other[1:]:  # what stood before it is folded by now
        told = next(message.text for message in received.messages if message.text.startswith(SUMMARY))
        assert (TEXT.strip() if name == "anthropic" else "Fix the build.") in told
    assert own[-1].seen == own[-1].messages[name == "anthropic" :]


async def test_what_a_sealed_one_stands_for_is_told_from_the_branch_that_it_was_made_on():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=32_000, summariser_enabled=False) as gate,
    ):
        before = [user("Fix the build. The code word is ZEBRA-41."), *called(1, "responses")]
        before[-1]["output"] = "The port of the harbour is 48213."
        await ask(gate, "responses", before)
        upstream.script(Body.of(200, COMPACTED), otherwise="Fine.")
        await ask(gate, "responses", [*before, {"type": "compaction_trigger"}])
        history = [user("Fix the build."), ITEM, user("go on")]
        await ask(gate, "responses", history)
        await ask(gate, "responses", history, "gpt-5-mini")
        first = upstream.requests[-1]
        await ask(gate, "responses", [*history, *called(2, "responses")], "gpt-5-mini")
    assert "ZEBRA-41" in first.messages[1].text
    assert "48213" in first.messages[1].text
    assert upstream.requests[-1].messages[1].text == first.messages[1].text
    assert RAW in upstream.requests[-3].body


async def test_a_sealed_one_made_on_top_of_another_tells_what_both_stand_for():
    second = {**ITEM, "id": "cmp_2", "encrypted_content": ITEM["encrypted_content"][::-1]}
    trigger = {"type": "compaction_trigger"}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=32_000, summariser_enabled=False) as gate,
    ):
        first_leg = [user("Fix the build."), *called(1, "responses")]
        first_leg[-1]["output"] = "The port of the harbour is 48213."
        await ask(gate, "responses", first_leg)
        upstream.script(Body.of(200, COMPACTED), otherwise="Fine.")
        await ask(gate, "responses", [*first_leg, trigger])
        second_leg = [ITEM, user("Go on. The code word is OKAPI-7."), *called(2, "responses")]
        await ask(gate, "responses", second_leg)
        upstream.script(Body.of(200, {**COMPACTED, "output": [second]}), otherwise="Fine.")
        await ask(gate, "responses", [*second_leg, trigger])
        third_leg = [second, user("Go on again.")]
        await ask(gate, "responses", third_leg)
        await ask(gate, "responses", third_leg, "gpt-5-mini")
    told = "".join(message.text for message in upstream.requests[-1].messages)
    assert "48213" in told
    assert "OKAPI-7" in told


@pytest.mark.parametrize("first", [[], [user("Fix the build.")]])
async def test_what_a_sealed_one_takes_at_the_provider_limits_no_other_conversation(first):
    """Nobody but the provider knows how much it takes: here 5,000 of 8,000 tokens. Where it stands first, its
    reports tell that; where something stands before it, a refusal does.
    """

    def answer(received) -> Say | Refuse:
        tokens = (len(received.body) - len(RAW)) // 5 + 5_000
        if RAW not in received.body:
            return say("Fine.")
        if tokens + OUTPUT > 8_000:
            told = (
                f"maximum context length is 8000 tokens. However, your messages resulted in {tokens} tokens."
            )
            return Refuse(400, f"This model's {told}", code="context_length_exceeded")
        return say("Fine.", usage=Usage(tokens, output=5))

    async with (
        ScriptedUpstream(otherwise=answer) as upstream,
        served(upstream, window=8_000, summariser_enabled=False, compaction_max_output=OUTPUT) as gate,
    ):
        await work_on(gate, "responses", [*first, ITEM, user("go on")], 1, 12)
        other = [
            user("Something else."),
            *(item for number in range(12) for item in called(number, "responses")),
        ]
        told = await ask(gate, "responses", other)

    assert any(isinstance(one, Refuse) for one in upstream.answered) == bool(first)
    assert told["x-refold-action"] == "passed"


async def test_an_upstream_that_is_asked_in_the_place_of_another_gets_words():
    async with (
        ScriptedUpstream("Fine.", otherwise=Refuse(503)) as first,
        ScriptedUpstream(otherwise="Yes.") as second,
    ):
        targets = [
            target_for(first, name="first", window=32_000, fallback=("second",)),
            target_for(second, name="second", window=32_000),
        ]
        async with served(first, targets=targets, summariser_enabled=False) as gate:
            await ask(gate, "responses", opening("responses"))
            told = await ask(gate, "responses", [*opening("responses"), *called(1, "responses")])
            assert (told["x-refold-upstream"], told["x-refold-action"]) == ("second", "reduced")
            engine = Engine(gate.store, embedder=None, format="responses", window=32_000)
            talk = await engine.conversation(told["x-refold-conversation"], model="gpt-5-codex")
            calls = {call.id: call for call in await gate.store.calls(engine.owner, talk.id)}
            sent = await talk.window_of(calls[told["x-refold-receipt"]])
    assert [received.body.count(RAW) for received in first.requests] == [1, 1]
    (received,) = second.requests
    assert sent["input"] == received.json["input"]
    assert RAW not in received.body
    assert received.messages[1].text == UNREADABLE


async def test_the_scripted_provider_does_not_read_what_stands_before_it():
    history = [user("Fix the build."), *called(1, "responses"), user(words(2) * 20), ITEM, user("go on")]
    async with (
        ScriptedUpstream(otherwise="Fine.", window=4_000) as upstream,
        served(upstream, window=400_000, summariser_enabled=False) as gate,
    ):
        await ask(gate, "responses", history)
    (received,) = upstream.requests
    assert [message.role for message in received.seen] == ["assistant", "user"]
    assert len(received.messages) == len(history)


def events(*payloads: dict) -> bytes:
    return b"".join(
        f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode() for payload in payloads
    )


def streamed(name: str, made: dict) -> Body:
    """A reply that is nothing but a compaction, in pieces."""
    if name == "responses":
        whole = {**COMPACTED, "output": [made]}
        item = {"output_index": 0, "item": made}
        return Body.of(
            200,
            events(
                {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
                {"type": "response.output_item.added", **item},
                {"type": "response.output_item.done", **item},
                {"type": "response.completed", "response": whole},
            ),
        )
    delta = {"type": "compaction_delta", **{key: made[key] for key in made if key != "type"}}
    head = {"id": "msg_9", "type": "message", "role": "assistant", "model": "gpt-5-codex", "content": []}
    usage = {"input_tokens": 900, "output_tokens": 90}
    return Body.of(
        200,
        events(
            {"type": "message_start", "message": {**head, "usage": usage}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "compaction", "content": None},
            },
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "compaction"}, "usage": {"output_tokens": 90}},
            {"type": "message_stop"},
        ),
    )


SEALED_BLOCK = {"type": "compaction", "content": None, "encrypted_content": "ErQC" + "x9-_" * 200}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize(
    ("name", "made", "resent"),
    [
        ("responses", ITEM, {key: ITEM[key] for key in ("type", "encrypted_content")}),
        ("responses", {**ITEM, "type": "compaction_summary"}, ITEM),
        ("anthropic", SEALED_BLOCK, SEALED_BLOCK),
        ("anthropic", {**BLOCK, "encrypted_content": "ErQC" * 50}, BLOCK),
    ],
    ids=["an item without its id", "an item by its new name", "a sealed block", "a readable block"],
)
async def test_a_streamed_one_is_known_however_it_comes_back(name, made, resent, is_restarted):
    """Clients leave out ids, and give the item the newer of its two names."""
    before = [user("Fix the build. The code word is ZEBRA-41."), *called(1, name), user("go on")]
    entry = resent if name == "responses" else {"role": "assistant", "content": [resent]}
    history = [user("Fix the build."), entry, user("go on")]
    key = "input" if name == "responses" else "messages"
    more = {"max_tokens": 300} if name == "anthropic" else {"store": False}
    asked = {"model": "gpt-5-codex", "stream": True, **more, key: before}
    async with ScriptedUpstream(streamed(name, made), otherwise="Fine.") as upstream:
        async with served(upstream, window=32_000, summariser_enabled=False) as gate:
            status, _, told = await gate.post(PATHS[name], json.dumps(asked).encode(), **NAMED)
            assert (status, b"compaction" in told) == (200, True)
            store = gate.store
            if not is_restarted:
                await ask(gate, name, history)
                await ask(gate, name, history, "gpt-5-mini")
        if is_restarted:
            again = {"store": store, "window": 32_000, "id_prefix": "again"}
            async with served(upstream, **again, summariser_enabled=False) as gate:
                await ask(gate, name, history, "gpt-5-mini")
                await ask(gate, name, history)
    own = [one for one in upstream.requests[1:] if one.model == "gpt-5-codex"]
    other = [one for one in upstream.requests[1:] if one.model == "gpt-5-mini"]
    assert [one.body.count(json.dumps(resent).encode()) for one in own] == [1]
    assert [one.body.count(b'"compaction"') for one in other] == [0]
    said = TEXT.strip() if resent is BLOCK else "ZEBRA-41"
    assert [said in one.messages[1].text for one in other] == [True]


@pytest.mark.parametrize("name", ["responses", "anthropic"])
async def test_an_unusual_spelling_leaves_as_it_came(name):
    item = b'{"encrypted_content" : "g\\u0041\\/A==","created_by":null,  "x":[1.0,1e2], "type":"compaction"}'
    if name == "anthropic":
        item = b'{"content":"caf\\u00e9 \\/ 48213", "type" : "compaction","x":[1.0,1e2]}'
    first = item if name == "responses" else b'{"role":"assistant","content":[%b]}' % item
    history = [user("go on")]
    async with (
        ScriptedUpstream(otherwise="Fine.", window=8_000) as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        for number in range(1, 30):
            history += called(number, name)
            rest = json.dumps(history).encode()[1:]
            field = b'"input"' if name == "responses" else b'"max_tokens":300,"messages"'
            body = b'{"model":"m",%b:[%b,%b,%b}' % (field, json.dumps(user("Hi.")).encode(), first, rest)
            status, _, told = await gate.post(PATHS[name], body, **NAMED)
            assert status == 200, told
    assert {received.body.count(item) for received in upstream.requests} == {1}
    assert len(upstream.requests[-1].messages) < len(history)


async def test_after_folds_by_its_own_model_another_one_is_told_what_stood_before():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        history = [user("Fix the build."), *called(90, "responses"), ITEM, user("go on")]
        history[2]["output"] = "The port of the harbour is 48213."
        await work_on(gate, "responses", history, 1, 25)
        own = upstream.requests[-1]
        await ask(gate, "responses", history, "gpt-5-mini")
        other = upstream.requests[-1]
    assert own.body.count(RAW) == 1
    assert b"48213" not in own.body
    assert b"48213" in other.body
    assert RAW not in other.body


@pytest.mark.parametrize("model", ["gpt-5-codex", "gpt-5-mini"])
async def test_an_earlier_request_that_is_asked_again_needs_no_branch_of_its_own(model):
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=32_000, summariser_enabled=False) as gate,
    ):
        history = opening("responses")
        await ask(gate, "responses", history)
        await work_on(gate, "responses", history, 1, 4)
        last = await ask(gate, "responses", history, model)
        again = await ask(gate, "responses", history[:5], model)
    assert again["x-refold-branch"] == last["x-refold-branch"]
    assert upstream.requests[-1].body.count(RAW) == (model == "gpt-5-codex")


@pytest.mark.parametrize("name", ["responses", "anthropic"])
async def test_one_that_is_larger_than_the_window_leaves_with_the_clients_own_bytes(name):
    large = {**ITEM, "encrypted_content": "Qx7-" * 20_000} if name == "responses" else {**BLOCK}
    if name == "anthropic":
        large["content"] = TEXT * 100
    entry = large if name == "responses" else {"role": "assistant", "content": [large]}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=8_000, summariser_enabled=False) as gate,
    ):
        await ask(gate, name, [user("Fix the build."), entry, user("go on")])
    (received,) = upstream.requests
    assert received.body.count(json.dumps(large).encode()) == 1
    assert len(received.messages) == 3


class Forgetful(MemoryStore):
    """A store that takes messages, and nothing that was learnt."""

    async def learn(self, *_: object) -> None:
        raise StoreError("it is locked")


async def test_a_store_that_does_not_take_who_made_one_holds_nobody_up():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=Forgetful(), window=32_000, summariser_enabled=False) as gate,
    ):
        history = opening("anthropic")
        told = [await ask(gate, "anthropic", history), await ask(gate, "anthropic", history, "gpt-5-mini")]
    assert [one["x-refold-action"] for one in told] == ["passed", "reduced"]
    assert [received.body.count(b'"compaction"') for received in upstream.requests] == [1, 0]
