"""Calls that a provider refuses, breaks off or does not answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import msgspec
import pytest

from refold.config import UpstreamSettings
from refold.gateway.upstreams import target_of
from refold.testing import Body, Broken, Refuse, Reset, ScriptedUpstream, Slow, say
from tests.gateway.conftest import served, target_for

LONG = [
    {"role": ("user", "assistant")[n % 2], "content": f"Sentence {n} of a long story about ships. " * 12}
    for n in range(61)
]


def body_of(messages=LONG, **more):
    return msgspec.json.encode({"model": "gpt-5", "max_tokens": 200, "messages": messages, **more})


@pytest.mark.feature("O12")
async def test_what_was_learnt_from_a_refusal_holds_for_the_next_call_and_the_next_conversation():
    async with (
        ScriptedUpstream(window=4_000, otherwise="Fine.") as upstream,
        served(upstream, summariser_enabled=False) as gate,
    ):
        await gate.post("/v1/chat/completions", body_of())
        more = [*LONG, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "And then?"}]
        await gate.post("/v1/chat/completions", body_of(more))
        other = [{"role": "user", "content": "Another one."}, {"role": "assistant", "content": "Yes."}, *LONG]
        _, told, _ = await gate.post("/v1/chat/completions", body_of(other))

        assert len(upstream.requests) == 4
        assert told["x-refold-action"] == "folded"


async def test_other_errors_pass_by_unchanged(upstream):
    async with served(upstream) as gate:
        upstream.script(Refuse(429, "Slow down.", retry_after_s=7), Refuse(401, "No such key."))
        first = await gate.post("/v1/chat/completions", body_of())
        second = await gate.post("/v1/chat/completions", body_of())

        assert (first[0], first[1]["retry-after"], second[0]) == (429, "7", 401)
        assert msgspec.json.decode(first[2])["error"]["message"] == "Slow down."


OVERFLOW = {
    "message": "This model's maximum context length is 4000 tokens. However, your messages resulted in 9000 tokens.",
    "type": "invalid_request_error",
    "code": "context_length_exceeded",
}


async def test_an_overflow_in_the_body_of_a_success_is_recovered_from(upstream):
    async with served(upstream, summariser_enabled=False) as gate:
        upstream.script(Body.of(200, {"error": OVERFLOW}), "Fine.")
        status, told, answer = await gate.post("/v1/chat/completions", body_of())

        assert (status, told["x-refold-action"]) == (200, "recovered")
        assert msgspec.json.decode(answer)["choices"][0]["message"]["content"] == "Fine."


async def test_another_error_in_the_body_of_a_success_passes_unchanged(upstream):
    error = {"error": {"message": "the model is being loaded", "code": 1}}
    async with served(upstream, summariser_enabled=False) as gate:
        upstream.script(Body.of(200, error))
        status, told, answer = await gate.post("/v1/chat/completions", body_of())

        assert (status, msgspec.json.decode(answer)) == (200, error)
        assert told["x-refold-action"] != "recovered"
        assert len(upstream.requests) == 1


@pytest.mark.feature("X20")
@pytest.mark.parametrize("then", ["end", "reset", "error"])
async def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_one(then, upstream):
    async with served(upstream) as gate:
        upstream.script(Broken("A sentence that will not be finished, ever, by anybody.", 4, then))
        chunks = await heard(gate)

        assert chunks
        assert not any(chunk.choices and chunk.choices[0].finish_reason for chunk in chunks)
        calls = await gate.store.calls("local", (await gate.store.conversations("local"))[0].id)
        kept = msgspec.json.decode(await gate.store.reply_to("local", calls[-1].id))
        assert kept["is_whole"] is False
        assert kept["text"]


async def heard(gate):
    """What a client of OpenAI's hears of a stream before it ends or fails."""
    chunks = []
    async with gate.openai() as client:
        stream = await client.chat.completions.create(model="gpt-5", messages=LONG[:1], stream=True)
        with suppress(Exception):  # which one says that it broke is the SDK's own business
            async for chunk in stream:
                chunks.append(chunk)  # noqa: PERF401  # what came before it fails counts
    return chunks


async def test_a_client_that_goes_away_ends_the_call_upstream_and_what_came_is_kept(upstream):
    async with served(upstream) as gate:
        upstream.script(Slow(say("One two three four five six seven eight nine ten."), between_s=0.05))
        async with aiohttp.ClientSession() as session:
            response = await session.post(
                f"{gate.url}/v1/chat/completions", data=body_of(LONG[:1], stream=True)
            )
            await response.content.readany()
            response.close()
        name = (await gate.store.conversations("local"))[0].id
        while not (calls := await gate.store.calls("local", name)):  # noqa: ASYNC110
            await asyncio.sleep(0)  # until the gateway has noticed

        kept = msgspec.json.decode(await gate.store.reply_to("local", calls[-1].id))
        assert kept["is_whole"] is False


async def test_another_upstream_is_asked_where_one_is_named(upstream):
    async with ScriptedUpstream(otherwise="I am the other one.") as other:
        first = target_for(upstream, fallback=("other",))
        second = target_for(other, name="other", models=("nothing",))
        async with served(upstream, targets=[first, second]) as gate:
            upstream.script(Refuse(503), Reset(), "Back again.")
            told = [await gate.post("/v1/chat/completions", body_of(LONG[:1])) for _ in range(3)]

            assert [one[1]["x-refold-upstream"] for one in told] == ["other", "other", "scripted"]
            assert all(one[0] == 200 for one in told)


async def test_an_upstream_that_is_not_there_is_said_to_be_so_in_the_clients_words(upstream):
    gone = target_for(upstream, url="http://127.0.0.1:9")
    async with served(upstream, targets=[gone]) as gate:
        status, _, answer = await gate.post("/v1/chat/completions", body_of(LONG[:1]))
        assert status == 502
        assert "cannot be reached" in msgspec.json.decode(answer)["error"]["message"]
        status, _, answer = await gate.post("/v1/messages", body_of(LONG[:1]))
        assert msgspec.json.decode(answer)["error"]["type"] == "api_error"


async def test_a_redirect_is_not_followed(upstream):
    async with served(upstream) as gate:
        upstream.script(Body(307, b"", headers={"location": "http://127.0.0.1:9/elsewhere"}))
        status, headers, _ = await gate.post("/v1/chat/completions", body_of(LONG[:1]))

        assert (status, headers["location"]) == (307, "http://127.0.0.1:9/elsewhere")
        assert len(upstream.requests) == 1


async def test_a_key_that_is_not_to_be_had_is_not_the_clients_fault(upstream):
    target = target_of("box", UpstreamSettings(url=upstream.url, key_command="false", private=True), {})
    async with served(upstream, targets=[target]) as gate:
        status, _, answer = await gate.post("/v1/chat/completions", body_of(LONG[:1]))

        assert status == 502
        assert "the key of box" in msgspec.json.decode(answer)["error"]["message"]
        assert upstream.requests == []


async def test_a_setting_above_the_window_that_the_provider_states_is_told_once(caplog):
    said = [{"role": ("user", "assistant")[at % 2], "content": f"Sentence {at}. " * 40} for at in range(31)]
    async with (
        ScriptedUpstream(otherwise="Fine.", window=3_000) as small,
        served(small, compaction_window=6_000, summariser_enabled=False) as gate,
    ):
        for size in (27, 29, 31):
            body = msgspec.json.encode({"model": "tiny-1", "messages": said[:size], "max_tokens": 200})
            status, _, _ = await gate.post("/v1/chat/completions", body)
            assert status == 200

    told = [line for line in caplog.messages if "states a window" in line]
    assert len(told) == 1
    assert "tiny-1 states a window of 3,000 tokens, and your setting of 6,000 is used" in told[0]
