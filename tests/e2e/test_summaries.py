"""Who writes summaries, what they read and what that costs, over HTTP; and what happens when something is too long."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest
from msgspec import structs
from openai import APIError, AsyncOpenAI, BadRequestError

from refold import Conversation
from refold.core.presets import PRESETS
from refold.core.prompts import Recipe
from refold.engine.settings import ConversationSettings, open_summariser, with_block
from refold.model.dialect import DIALECTS
from refold.model.errors import RecoverySpent
from refold.model.message import assistant, user
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.testing import Refuse, ScriptedUpstream, overflow
from refold.upstreams import Provider, Retries, open_upstream
from tests.e2e.test_model_summaries import sent
from tests.e2e.test_model_summaries import turn as chat_turn
from tests.formats import turn
from tests.summarisers.scripted_upstream import task

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
SAID = "Some files were read and their values told."
LIBRECHAT = structs.replace(PRESETS["librechat"], soft=0.5)


def provider(server: ScriptedUpstream, wire: str = "chat", model: str = "m-1", **settings) -> Provider:
    return Provider("mine", model, wire, f"{server.url}/v1", retries=Retries(tries=1), **settings)


async def post(server: ScriptedUpstream, wire: str, fields: dict) -> None:
    body = {"model": "m-1", **({"max_tokens": 64} if wire == "anthropic" else {}), **fields}
    headers = {"anthropic-version": "2023-06-01", "content-type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(server.url + PATHS[wire], data=msgspec.json.encode(body)) as reply,
    ):
        assert reply.status == 200, await reply.text()


def tools(wire: str) -> list[dict]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    about = {"name": "read_file", "description": "Reads a file. " * 30}
    if wire == "chat":
        return [{"type": "function", "function": {**about, "parameters": schema}}]
    return [
        {**about, "input_schema": schema}
        if wire == "anthropic"
        else {"type": "function", **about, "parameters": schema}
    ]


@pytest.mark.feature("C10")
@pytest.mark.parametrize("wire", DIALECTS)
async def test_a_summariser_that_reads_the_messages_themselves_finds_them_in_the_provider_s_cache(wire):
    async with ScriptedUpstream(otherwise=SAID, cache_minimum=128) as server:
        settings = ConversationSettings(model="m-1", window=4_000, policy=LIBRECHAT)
        async with (
            open_summariser(settings, provider(server, wire), environ={}) as summariser,
            Conversation(
                "m-1", format=wire, window=4_000, max_output=0, policy=LIBRECHAT, summariser=summariser,
                system="You read files. " * 60, tools=tools(wire),
            ) as talk,
        ):  # fmt: skip
            number = 0
            while not summariser.spent.prompt:
                *begun, reply = turn(number, wire)
                await talk.add(*begun)
                await post(server, wire, await talk.context())
                await talk.add(reply)
                await talk.ready()
                number += 1
    usage, asked = summariser.spent, server.requests[-1]
    assert "Stop here for a moment. I want you to" in asked.text
    assert talk.receipts == ()
    assert asked.request.tools[0].name == "read_file"
    assert "You read files." in asked.system
    told = [message.text for message in asked.messages if message.role == "user"]
    assert told[0] == "What is in file 0?"
    assert usage.cache_read > 0.6 * usage.prompt


@pytest.mark.feature("C10", "C4")
async def test_what_was_masked_is_read_whole_all_the_same():
    long = "a line of the file\n" * 60
    async with ScriptedUpstream(otherwise=SAID) as server:
        settings = ConversationSettings(model="m-1", policy=LIBRECHAT)
        async with (
            open_summariser(settings, provider(server), environ={}) as summariser,
            Conversation("m-1", window=4_000, max_output=0, policy=LIBRECHAT, summariser=summariser) as talk,
        ):
            for number in range(40):
                asked, called, result, reply = turn(number)
                await talk.add(asked, called, {**result, "content": long})
                fields = await talk.context()
                await talk.add(reply)
                if talk.receipts:
                    break
            assert long not in fields["messages"][2]["content"]
            await talk.compact(focus="everything")
    results = [message.results[0].text for message in server.requests[-1].messages if message.results]
    assert results[0] == long


@pytest.mark.feature("L10")
async def test_the_conversation_s_own_model_writes_unless_another_is_named():
    async with (
        ScriptedUpstream(otherwise=SAID, key="own") as own,
        ScriptedUpstream(otherwise=SAID, key="other") as other,
    ):
        mine = provider(own, key_env="OWN")
        environ = {"OWN": "own", "OTHER": "other"}
        elsewhere = structs.replace(provider(other, "anthropic", "small", key_env="OTHER"), name="theirs")
        for summarisers in ((), (elsewhere,)):
            settings = ConversationSettings(model="m-1", window=8_000, summarisers=summarisers)
            async with (
                open_summariser(settings, mine, environ=environ) as summariser,
                Conversation("m-1", window=8_000, summariser=summariser) as talk,
            ):
                await talk.add(*(message for number in range(6) for message in turn(number)), "And now?")
                assert SAID in sent(await talk.compact())
    assert [(one.model, one.key, one.path) for one in own.requests] == [("m-1", "own", PATHS["chat"])]
    assert [(one.model, one.key, one.path) for one in other.requests] == [
        ("small", "other", PATHS["anthropic"])
    ]


@pytest.mark.feature("C16", "C12", "X6")
async def test_a_block_of_the_seed_s_configuration_says_who_how_and_how_long():
    block = {
        "model": "small",
        "parameters": {"temperature": 0.1, "maxSummaryTokens": 300, "top_p": 0.5},
        "prompt": "Sum up what we did.",
        "trigger": {"type": "token_ratio", "value": 0.6},
        "reserveRatio": 0.1,
    }
    async with ScriptedUpstream(otherwise=SAID) as server:
        settings = with_block(block, ConversationSettings(model="m-1", window=8_000))
        async with (
            open_summariser(settings, provider(server), environ={}) as summariser,
            Conversation("m-1", window=8_000, policy=settings.policy, summariser=summariser) as talk,
        ):
            await talk.add(*(message for number in range(6) for message in turn(number)), "And now?")
            assert SAID in sent(await talk.compact())
    asked = server.requests[0].json
    assert (asked["model"], asked["temperature"], asked["top_p"], asked["max_tokens"]) == (
        "small",
        0.1,
        0.5,
        300,
    )
    assert "Sum up what we did." in server.requests[0].text


@pytest.mark.feature("O12")
class TestOverflow:
    @pytest.mark.parametrize("wording", ["openai", "vllm", "llama.cpp", "openrouter"])
    async def test_a_summariser_whose_window_is_smaller_than_it_says_gets_less_at_a_time(self, wording):
        async with ScriptedUpstream(otherwise="Read a part of it.", window=3_000, wording=wording) as server:
            async with open_upstream(provider(server), environ={}) as upstream:
                chain = [SummaryWriter(upstream, 128_000, lambda text: len(text) // 4)]
                summariser = ModelSummariser(chain, Recipe(max_tokens=300))
                summary = await summariser.write(task(turns=60))
            refused = [
                answer
                for answer in server.answered
                if isinstance(answer, Refuse) or not hasattr(answer, "parts")
            ]
            asked = len(server.requests)
        assert summary.text == "Read a part of it."
        assert 1 <= len(refused) <= 6
        assert summary.usage.prompt > 0
        assert asked < 20

    @pytest.mark.parametrize("in_stream", [False, True])
    async def test_the_first_recovery_asks_no_model_and_the_next_summary_is_a_model_s_again(self, in_stream):
        """The provider takes far less than it is said to; the conversation is below every threshold."""
        too_long = Refuse(
            400,
            "prompt is too long: 9000 tokens > 4000 maximum",
            "invalid_request_error",
            in_stream=in_stream,
        )
        async with ScriptedUpstream(otherwise="Fine.") as server, ScriptedUpstream(otherwise=SAID) as writing:
            policy = structs.replace(PRESETS["opal"], soft=0.7)
            settings = ConversationSettings(model="gpt-4o", window=20_000, policy=policy)
            async with (
                open_summariser(settings, provider(writing, model="small"), environ={}) as summariser,
                Conversation(
                    "gpt-4o", window=20_000, max_output=0, policy=policy, summariser=summariser
                ) as talk,
                AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
            ):
                await talk.add(
                    *(message for number in range(28) for message in chat_turn(number)), "And now?"
                )
                whole = await talk.context()
                assert talk.receipts == ()
                server.script(too_long, otherwise="Fine.")
                with pytest.raises(APIError) as error:
                    await self.ask(client, whole)
                smaller = await talk.recover(error.value)
                assert writing.requests == []
                assert talk.receipts[-1].decision == "summarise"
                kept = smaller["messages"][1:]
                assert whole["messages"][-len(kept) :] == kept
                assert 0 < talk.measurement.content.tokens <= 4_000
                await self.ask(client, smaller)
                await talk.add({"role": "assistant", "content": "Fine."})
                number = 30
                while not writing.requests:
                    await talk.add(*chat_turn(number))
                    await talk.ready()
                    number += 1
                await talk.add("And then?")
                assert SAID in sent(await talk.compact())

    async def ask(self, client: AsyncOpenAI, fields: dict) -> None:
        stream = await client.chat.completions.create(model="gpt-4o", stream=True, **fields)
        async for _ in stream:
            pass

    async def test_a_fifth_of_the_window_stays_word_for_word_however_little_was_full(self):
        async with ScriptedUpstream(Refuse(400, "Input is too long for requested model.")) as server:
            client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
            async with client:
                talk = Conversation("gpt-4o", window=20_000, max_output=0, preset="opal")
                said = [message for number in range(40) for message in chat_turn(number)]
                await talk.add(*said, "And now?")
                assert talk.measurement.content.tokens < 0.6 * 20_000
                with pytest.raises(BadRequestError) as error:
                    await client.chat.completions.create(model="gpt-4o", **await talk.context())
                kept = (await talk.recover(error.value))["messages"][1:]
        assert kept[:-1] == said[-len(kept[:-1]) :]
        left = talk.measurement
        assert 3_600 < left.messages.tokens - left.summary.tokens <= 4_000

    async def test_recoveries_are_bounded_and_each_sends_less(self):
        async with ScriptedUpstream(otherwise=overflow("vllm", window=100, prompt=200)) as server:
            client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
            async with client:
                talk = Conversation("gpt-4o", window=20_000, max_output=0)
                await talk.add(
                    *(message for number in range(28) for message in chat_turn(number)), "And now?"
                )
                fields, sizes = await talk.context(), []
                with pytest.raises(RecoverySpent):  # noqa: PT012
                    for _ in range(9):
                        with pytest.raises(BadRequestError) as error:
                            await client.chat.completions.create(model="gpt-4o", **fields)
                        sizes.append(talk.measurement.content.tokens)
                        fields = await talk.recover(error.value)
        assert len(server.requests) <= 3
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) == len(sizes)


async def test_a_conversation_in_another_format_than_its_summariser_s_is_read_raw_too():
    """Formats differ in who speaks first and in how a call looks: what cannot be written is translated."""
    async with ScriptedUpstream(otherwise=SAID) as server:
        theirs = provider(server, "anthropic")
        async with open_upstream(theirs, environ={}) as upstream:
            summariser = ModelSummariser(
                [SummaryWriter(upstream, 32_000, lambda text: len(text) // 4)], Recipe(reading="raw")
            )
            said = (assistant("Hello."), user("Well?"), *(one.message for one in task().passages))
            assert (await summariser.write(task(sent=said))).text == SAID
    assert server.requests[0].json["cache_control"] == {"type": "ephemeral"}
