"""What a summariser reads, and with whose key, case by case, over real HTTP; see `test_acceptance_summaries.py`."""

from __future__ import annotations

import json
import re

import anthropic
import openai
import pytest
from msgspec import structs

from refold import Conversation
from refold.core.presets import PRESETS
from refold.core.prompts import Recipe
from refold.engine.settings import ConversationSettings, open_summariser
from refold.model.message import user
from refold.testing import Body, Say, ScriptedUpstream
from refold.upstreams import Ask, Provider, open_upstream
from tests.formats import turn as turn_in
from tests.testing.summaries import (
    BRIEF,
    FRESH,
    GOOD,
    MERGED,
    PART,
    Quarter,
    merging,
    playing,
    provider,
    quarter,
    questions,
    text_of,
    turn,
)

TOOLS = [
    {
        "type": "function",
        "function": {"name": "write_file", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.mark.feature("X10")
@pytest.mark.parametrize("strategy", ["abstractive", "hierarchical"])
async def test_c34_a_long_source_is_read_in_parts_and_merged(strategy):
    """Case C34: no request is larger than the summariser's window, no call is parted from its result, nothing is left out."""
    recipe = structs.replace(BRIEF, strategy=strategy)
    async with (
        ScriptedUpstream(otherwise=merging, window=3_000, counter=Quarter()) as server,
        playing(server, window=30_000, reads=3_000, recipe=recipe) as played,
    ):
        await played.work(range(60))
        told = await played.compact()

    assert MERGED in told
    assert all(isinstance(answer, Say) for answer in server.answered)
    *parts, merge = questions(server)
    assert len(parts) > 3
    assert merge.count(PART) == len(parts)
    covered = [re.findall(r"\[\w+(?: calls \w+)? #m(\d+)\]", part) for part in parts]
    numbers = [int(number) for part in covered for number in part]
    assert numbers == list(range(played.summaries[0].last))
    for part in parts:
        assert re.findall(r"calls write_file #m(\d+)", part) == [
            str(int(number) - 1) for number in re.findall(r"\[Result #m(\d+)", part)
        ]


@pytest.mark.feature("X10", "L10")
async def test_c35_the_summariser_s_window_may_be_smaller_than_the_conversation_s():
    """Case C35: also where a single result is larger than all that it reads."""
    async with (
        ScriptedUpstream(otherwise=merging, window=3_000, counter=Quarter()) as server,
        playing(server, window=40_000, reads=3_000, recipe=BRIEF) as played,
    ):
        await played.work([0], output="value = 1\n" * 2_000)
        await played.work(range(1, 30))
        assert MERGED in await played.compact()
        original = await played.talk.recall("#m2")

    assert all(isinstance(answer, Say) for answer in server.answered)
    assert max(quarter(question) for question in questions(server)) < 3_000
    assert "#m2" in questions(server)[0]
    assert original["content"] == "value = 1\n" * 2_000


PICTURE = "QUJDREVGR0hJ" * 300
MEDIA = {
    "chat": {
        "role": "user",
        "content": [
            {"type": "text", "text": "See here."},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
            {
                "type": "file",
                "file": {"filename": "plan.pdf", "file_data": f"data:application/pdf;base64,{PICTURE}"},
            },
        ],
    },
    "responses": {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "See here."},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
            {
                "type": "input_file",
                "filename": "plan.pdf",
                "file_data": f"data:application/pdf;base64,{PICTURE}",
            },
        ],
    },
    "anthropic": {
        "role": "user",
        "content": [
            {"type": "text", "text": "See here."},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
            {
                "type": "document",
                "title": "plan.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PICTURE},
            },
        ],
    },
}


@pytest.mark.parametrize("wire", MEDIA)
async def test_c36_media_are_named_and_not_sent_to_the_summariser(wire):
    """Case C36."""
    async with (
        ScriptedUpstream(otherwise=GOOD) as server,
        playing(provider(server, wire), format=wire) as played,
    ):
        await played.talk.add(MEDIA[wire])
        for number in range(12):
            await played.talk.add(*turn_in(number, wire))
        await played.talk.add({"role": "user", "content": "And now?"})
        await played.talk.compact()

    (received,) = server.requests
    assert b"QUJDREVG" not in received.body
    assert "] See here.\n" in received.text
    assert "] (image)\n" in received.text
    assert "] (file plan.pdf)\n" in received.text


FAMILY = "👩‍👩‍👧‍👦🇩🇪🎉e\u0301"
LONE = {
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Half \ud83d of it."},
            "finish_reason": "stop",
        }
    ]
}


async def test_c37_characters_of_several_code_points_come_through_whole_or_not_at_all():
    """Case C37: also where a message is cut because it is too long."""
    async with (
        ScriptedUpstream(otherwise=f"Changed with {FAMILY}.", window=3_000, counter=Quarter()) as server,
        playing(server, window=120_000, reads=3_000, recipe=BRIEF) as played,
    ):
        await played.work(range(3), output=FAMILY * 900)
        await played.work(range(3, 40))
        told = await played.compact()

    assert f"Changed with {FAMILY}." in told
    assert len(server.requests) > 2
    assert sum(FAMILY in received.body.decode() for received in server.requests) > 2
    assert "\ufffd" not in "".join(questions(server))


async def test_c37_half_a_character_in_a_reply_does_no_harm():
    """Case C37: JSON can hold half of a pair; what it makes of the reply must not reach a request."""
    async with (
        ScriptedUpstream(otherwise=Body(200, json.dumps(LONE).encode())) as server,
        playing(server) as played,
    ):
        await played.work(range(10))
        fields = await played.talk.compact()
        await played.talk.add("And now?")

    assert server.requests
    assert json.dumps(fields, ensure_ascii=False).encode()
    assert len(played.summaries) == 1


@pytest.mark.feature("C4", "C12")
async def test_the_summariser_reads_what_was_masked_in_the_window():
    """The preset's own words are those of a user who tells the assistant what to do."""
    outputs = ["".join(f"value_{number}_{line} = {line}\n" for line in range(200)) for number in range(4)]
    async with (
        ScriptedUpstream(otherwise="Values were looked at.") as server,
        playing(server, policy=PRESETS["librechat"], window=9_000) as played,
    ):
        for number, output in enumerate(outputs):
            *asked, answer = turn(number, tool="read_file", output=output)
            await played.talk.add(*asked)
            shown = text_of(await played.talk.context())
            await played.talk.add(answer)
        assert [receipt.decision for receipt in played.talk.receipts] == ["reduce"]
        assert outputs[0] not in shown
        await played.talk.compact()

    read = [result.text for message in server.requests[0].messages for result in message.results]
    assert outputs[0] in "\n".join((*read, questions(server)[0]))
    assert "I want you to write me a checkpoint of all our work" in questions(server)[0]


@pytest.mark.feature("C10")
@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
async def test_the_provider_s_cache_knows_what_the_summariser_reads(wire):
    """Raw messages, and after them the instruction: what the conversation has sent before is read from the cache."""
    create = {"chat": ask_chat, "responses": ask_responses, "anthropic": ask_anthropic}[wire]
    async with ScriptedUpstream(otherwise="Files were read.", cache_minimum=256) as server:
        recipe = Recipe(reading="raw")
        async with playing(
            provider(server, wire), recipe=recipe, format=wire, system="Be kind. " * 200
        ) as played:
            for number in range(12):
                asked, *rest = turn_in(number, wire)
                await played.talk.add(asked)
                await create(server, await played.talk.context())
                await played.talk.add(*rest)
            await played.talk.add({"role": "user", "content": "And now?"})
            await create(server, await played.talk.context())
            await played.talk.compact()

    *_, talked, summing = server.requests
    *read, last = summing.messages
    usage = played.summaries[0].usage
    assert [message.bare() for message in read] == [
        message.bare() for message in talked.messages[: len(read)]
    ]
    assert (last.role, summing.system) == ("user", talked.system)
    assert FRESH in last.text
    assert usage.cache_read > 0.75 * usage.prompt


async def ask_chat(server, fields) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        await client.chat.completions.create(model="small", **fields)


async def ask_responses(server, fields) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        await client.responses.create(model="small", **fields)


async def ask_anthropic(server, fields) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client:
        await client.messages.create(model="small", max_tokens=9, **fields)


@pytest.mark.feature("C10")
async def test_the_tools_of_the_conversation_are_bound_where_raw_messages_are_read():
    async with (
        ScriptedUpstream(otherwise=GOOD) as server,
        playing(server, recipe=Recipe(reading="raw"), tools=TOOLS) as played,
    ):
        await played.work(range(10))
        await played.talk.context()
        await played.talk.compact()

    assert [tool.name for tool in server.requests[0].request.tools] == ["write_file"]


@pytest.mark.feature("L10", "X6")
async def test_the_summariser_has_a_provider_a_model_and_a_key_of_its_own():
    async with (
        ScriptedUpstream(otherwise="Fine.", key="talk-key") as talking,
        ScriptedUpstream(otherwise=GOOD, key="sum-key") as summing,
    ):
        other = provider(summing, "anthropic", key_env="SUMMARY_KEY")
        async with playing(other, environ={"SUMMARY_KEY": "sum-key"}) as played:
            await played.work(range(10))
            fields = await played.talk.context()
            async with openai.AsyncOpenAI(base_url=f"{talking.url}/v1", api_key="talk-key") as client:
                await client.chat.completions.create(model="gpt-4o", **fields)
            assert GOOD in await played.compact()

    (asked,) = summing.requests
    assert (asked.model, asked.key, asked.path) == ("small", "sum-key", "/v1/messages")
    assert asked.json["temperature"] == 0.3
    assert 0 < asked.json["max_tokens"] <= 2_048
    assert [received.model for received in talking.requests] == ["gpt-4o"]


OTHER = Provider("theirs", "small", "anthropic", key_env="OTHER")
WHO = {
    "nobody is named": ((), ("own", "gpt-4o", "own-key", "/v1/chat/completions")),
    "a model": ((Provider("", "small"),), ("own", "small", "own-key", "/v1/chat/completions")),
    "a provider": (
        (structs.replace(OTHER, model=""),),
        ("other", "gpt-4o", "other-key", "/v1/messages"),
    ),
    "both": ((OTHER,), ("other", "small", "other-key", "/v1/messages")),
}


@pytest.mark.feature("L10")
@pytest.mark.parametrize(("named", "asked"), WHO.values(), ids=WHO)
async def test_what_is_not_said_of_the_summariser_is_the_conversation_s_own(named, asked):
    """The conversation asks its provider itself, with the same settings from which its summariser is made."""
    async with (
        ScriptedUpstream(otherwise=GOOD, key="own-key") as mine,
        ScriptedUpstream(otherwise=GOOD, key="other-key") as theirs,
    ):
        own = Provider("mine", base_url=f"{mine.url}/v1", key_env="OWN")
        named = [structs.replace(one, base_url=theirs.url if one.name else "") for one in named]
        settings = ConversationSettings(model="gpt-4o", window=8_000, summarisers=tuple(named))
        environ = {"OWN": "own-key", "OTHER": "other-key"}
        async with (
            open_upstream(structs.replace(own, model=settings.model), environ=environ) as upstream,
            open_summariser(settings, own, environ=environ) as summariser,
            Conversation(settings.model, window=8_000, max_output=0, summariser=summariser) as talk,
        ):
            await upstream.ask(Ask((user("Hello!"),)))
            for number in range(10):
                await talk.add(*turn(number))
            assert GOOD in text_of(await talk.compact())

    talked, *rest = [("own", one) for one in mine.requests] + [("other", one) for one in theirs.requests]
    assert (talked[1].model, talked[1].key) == ("gpt-4o", "own-key")
    assert [(name, one.model, one.key, one.path) for name, one in rest] == [asked]
