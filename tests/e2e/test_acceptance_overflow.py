"""What is too long: a summariser's own request, and a conversation's inside of a stream; see `test_acceptance_summaries.py`."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

from refold.model.errors import ContextOverflow, RecoverySpent
from refold.model.message import user
from refold.testing import SILENT, Refuse, Say, ScriptedUpstream, overflow, overloaded, say
from refold.upstreams import Ask, open_upstream
from tests.formats import KEYS
from tests.formats import turn as turn_in
from tests.testing.summaries import (
    BRIEF,
    GOOD,
    MERGED,
    OPAL,
    Quarter,
    merging,
    playing,
    provider,
    quarter,
    text_of,
    turn,
)

UNNUMBERED = ["openai responses", "anthropic no numbers", "bedrock", "ollama no numbers", "minimax in a 200"]


@pytest.mark.feature("O12")
@pytest.mark.parametrize("wording", ["openai", "anthropic", "vllm", "llama.cpp", "openrouter in a 200"])
async def test_e55_a_summariser_that_reads_less_than_was_thought_gets_less_at_a_time(wording):
    """Case E55: it said how much it reads, so one request is lost and no more."""
    async with (
        ScriptedUpstream(otherwise=merging, window=3_000, wording=wording, counter=Quarter()) as server,
        playing(server, window=30_000, recipe=BRIEF) as played,
    ):
        await played.work(range(40))
        told = await played.compact()

    assert MERGED in told
    assert [at for at, answer in enumerate(server.answered) if not isinstance(answer, Say)] == [0]


@pytest.mark.feature("O12")
@pytest.mark.parametrize("wording", UNNUMBERED)
async def test_e55_where_it_does_not_say_how_much_it_reads_the_parts_are_halved(wording):
    """Case E55."""
    async with (
        ScriptedUpstream(otherwise=merging, window=3_000, wording=wording, counter=Quarter()) as server,
        playing(server, window=30_000, reads=8_000, recipe=BRIEF) as played,
    ):
        await played.work(range(40))
        told = await played.compact()

    refused = [at for at, answer in enumerate(server.answered) if not isinstance(answer, Say)]
    sizes = [len(server.requests[at].body) for at in refused]
    assert MERGED in told
    assert sizes == sorted(set(sizes), reverse=True)


@pytest.mark.feature("O12")
async def test_e55_what_was_refused_is_not_sent_again():
    """Case E55: a window of 32,000 that is believed in, and 5,000 tokens to read."""
    async with (
        ScriptedUpstream(otherwise=merging, window=3_000, wording="bedrock", counter=Quarter()) as server,
        playing(server, window=30_000, recipe=BRIEF) as played,
    ):
        await played.work(range(40))
        await played.compact()

    asked = [received.body for received in server.requests]
    assert len(asked) == len(set(asked))


@pytest.mark.feature("O12")
async def test_e55_a_refusal_without_a_word_counts_where_the_window_is_nearly_full():
    """Case E55."""
    async with (
        ScriptedUpstream(otherwise=merging, window=4_000, wording="empty", counter=Quarter()) as server,
        playing(server, window=30_000, reads=6_500, recipe=BRIEF) as played,
    ):
        await played.work(range(40))
        assert MERGED in await played.compact()
    assert server.requests


@pytest.mark.feature("N3")
@pytest.mark.parametrize("wording", SILENT)
async def test_e55_a_summariser_that_overflows_without_saying_so_is_not_believed(wording):
    """Case E55: the next of the chain is asked."""
    silent = overflow(wording, window=3_000, prompt=9_000)
    async with (
        ScriptedUpstream(otherwise=silent) as full,
        ScriptedUpstream(GOOD) as well,
        playing(full, well) as played,
    ):
        await played.work(range(10))
        assert GOOD in await played.compact()
    assert full.requests


@pytest.mark.feature("O12")
async def test_e55_a_summariser_that_always_overflows_ends_and_the_history_stays():
    """Case E55."""
    too_long = overflow("anthropic", window=10, prompt=9_000)
    async with ScriptedUpstream(otherwise=too_long) as server, playing(server, window=30_000) as played:
        await played.work(range(40))
        told = await played.compact()
        first = await played.talk.recall("#m0")

    assert len(server.requests) <= 4
    assert [summary.kind for summary in played.summaries] == ["extractive"]
    assert "Step 39" in told
    assert first == turn(0)[0]


IN_STREAM = Refuse(400, "prompt is too long: 9000 tokens > 2500 maximum", in_stream=True)


def still_too_long(received) -> Refuse:
    """Two thirds of whatever comes would fit; said inside of a stream."""
    size = len(received.body) // 4
    words = f"prompt is too long: {size} tokens > {size * 2 // 3} maximum"
    return Refuse(400, words, in_stream=True)


@pytest.mark.feature("O12")
@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
async def test_e56_an_error_inside_of_a_stream_is_an_overflow_with_its_numbers(wire):
    """Case E56: asked by `refold.upstreams`; a stream that has begun is not asked for again."""
    async with (
        ScriptedUpstream(otherwise=IN_STREAM) as server,
        open_upstream(provider(server, wire), environ={}) as upstream,
    ):
        with pytest.raises(ContextOverflow) as caught:
            _ = [item async for item in upstream.stream(Ask((user("hi"),)))]

    found = caught.value.overflow
    assert (found.kind, found.limit, found.prompt) == ("input_too_long", 2_500, 9_000)
    assert len(server.requests) == 1


async def stream_chat(server, fields) -> object:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        try:
            _ = [
                chunk
                async for chunk in await client.chat.completions.create(model="m", stream=True, **fields)
            ]
        except openai.APIError as error:
            return error


async def stream_responses(server, fields) -> object:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        events = [event async for event in await client.responses.create(model="m", stream=True, **fields)]
    return events[-1].model_dump() if events[-1].type == "response.failed" else None


async def stream_anthropic(server, fields) -> object:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client:
        try:
            async with client.messages.stream(model="m", max_tokens=9, **fields) as stream:
                await stream.get_final_message()
        except anthropic.APIError as error:
            return error


CLIENTS = {"chat": stream_chat, "responses": stream_responses, "anthropic": stream_anthropic}


@pytest.mark.feature("O12")
@pytest.mark.parametrize("wire", CLIENTS)
async def test_e56_a_conversation_recovers_from_an_error_inside_of_a_stream(wire):
    """Case E56: as the official clients report it; twice, each time with less, and then it goes on."""
    async with (
        ScriptedUpstream(still_too_long, still_too_long, otherwise="Fine.") as server,
        ScriptedUpstream(otherwise=overloaded) as writer,
        playing(writer, window=16_000, format=wire) as played,
    ):
        for number in range(30):
            await played.talk.add(*turn_in(number, wire))
        await played.talk.add({"role": "user", "content": "And now?"})
        fields = await played.talk.context()
        for _ in range(2):
            fields = await played.talk.recover(await CLIENTS[wire](server, fields))
        assert await CLIENTS[wire](server, fields) is None

    sizes = [len(received.body) for received in server.requests]
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(received.text == "And now?" for received in server.requests)
    assert len(fields[KEYS[wire]]) < 120


@pytest.mark.feature("O12")
async def test_e56_a_third_error_is_told_and_nothing_is_lost():
    """Case E56: bounded, though the provider says it in a stream."""
    async with ScriptedUpstream(otherwise=still_too_long) as server, playing(server, window=16_000) as played:
        await played.work(range(20))
        await played.talk.add("And now?")
        fields = await played.talk.context()
        for _ in range(2):
            fields = await played.talk.recover(await stream_chat(server, fields))
        with pytest.raises(RecoverySpent, match="still too long") as caught:
            await played.talk.recover(await stream_chat(server, fields))
        assert await played.talk.recall("#m0") == turn(0)[0]
    assert caught.value.hint


@pytest.mark.feature("O12")
async def test_e56_an_error_of_our_own_upstreams_is_recovered_from_by_its_numbers():
    """Case E56: one refusal is enough to know the limit."""
    async with ScriptedUpstream(otherwise=IN_STREAM) as server, playing(server, window=16_000) as played:
        await played.work(range(60))
        await played.talk.context()
        async with open_upstream(provider(server), environ={}) as upstream:
            with pytest.raises(ContextOverflow) as caught:
                _ = [item async for item in upstream.stream(Ask((user("hi"),)))]
        await played.talk.recover(caught.value)
    assert played.talk.measurement.content.tokens <= 2_500


@pytest.mark.feature("O12")
async def test_after_an_overflow_a_fifth_of_the_window_stays_word_for_word():
    async with playing(policy=OPAL, window=10_000) as played:
        await played.work(range(40))
        await played.talk.add("And now?")
        before = (await played.talk.context())["messages"]
        after = (await played.talk.recover({"error": {"code": "context_length_exceeded"}}))["messages"]

    kept = [message for message in after if message in before]
    assert kept == before[-len(kept) :]
    assert 1_000 < sum(quarter(json.dumps(message)) for message in kept) <= 2_000


@pytest.mark.feature("C11", "O12")
async def test_no_model_is_asked_while_a_request_waits_to_be_recovered():
    async with ScriptedUpstream(otherwise=say()) as server, playing(server, window=16_000) as played:
        await played.work(range(20))
        await played.talk.context()
        fields = await played.talk.recover({"error": {"code": "context_length_exceeded"}})

    assert server.requests == []
    assert text_of(fields)
