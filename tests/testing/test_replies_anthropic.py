from __future__ import annotations

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from refold.model.dialect import ANTHROPIC
from refold.model.tokens import Usage
from refold.testing import call, say, think
from refold.wire import decode_reply, decode_usage
from tests.testing.exchanges import ask

ASKED = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
LONG = "A sentence that takes more than one event, with an emoji 🎉 and an ä."
EVENT = TypeAdapter(RawMessageStreamEvent)


async def test_a_text_arrives_whole(server, claude):
    server.answers.append(LONG)

    reply = await claude.messages.create(**ASKED | {"model": "claude-x"})

    assert (reply.content[0].text, reply.stop_reason, reply.model) == (LONG, "end_turn", "claude-x")
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0


async def test_a_stream_is_put_together_by_the_client(server, claude):
    server.script(otherwise=say(think("why so"), LONG, call("read", {"path": "a/long/path/to/a/file.py"})))

    async with claude.messages.stream(**ASKED) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    whole = await claude.messages.create(**ASKED)

    thought, text, used = final.content
    assert "".join(texts) == text.text == LONG
    assert len(texts) > 1
    assert (thought.thinking, thought.signature) == ("why so", whole.content[0].signature)
    assert used.input == whole.content[2].input == {"path": "a/long/path/to/a/file.py"}
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_the_order_of_events_is_the_providers(server):
    server.answers.append("Hello.")

    streamed = await ask(server, "anthropic", stream=True)

    named = [line[7:] for line in streamed.content.decode().splitlines() if line.startswith("event: ")]
    assert named == [event["type"] for event in streamed.events]
    assert named == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_thinking_goes_back_as_it_came(server, claude):
    server.script(say(think("hm"), call("read", {"path": "a.py"})), "Done.")

    reply = await claude.messages.create(**ASKED)
    result = {"type": "tool_result", "tool_use_id": reply.content[1].id, "content": "ok"}
    said = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]}
    history = [*ASKED["messages"], said, {"role": "user", "content": [result]}]
    second = await claude.messages.create(**ASKED | {"messages": history})

    assert second.content[0].text == "Done."


async def test_sealed_thinking_shows_nothing(server, claude):
    server.script(otherwise=say(think("", sealed="c2VhbGVk"), "Yes."))

    async with claude.messages.stream(**ASKED) as stream:
        final = await stream.get_final_message()
    whole = await claude.messages.create(**ASKED)

    assert final.content[0].data == whole.content[0].data == "c2VhbGVk"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (say("I won't.", finish="refusal"), "refusal"),
        (say("cut o", finish="length"), "max_tokens"),
        (say(finish="window"), "model_context_window_exceeded"),
        (say(think("only a thought")), "end_turn"),
        (say(), "end_turn"),
    ],
)
async def test_replies_that_end_otherwise(server, claude, answer, reason):
    server.script(otherwise=answer)

    reply = await claude.messages.create(**ASKED)
    async with claude.messages.stream(**ASKED) as stream:
        streamed = await stream.get_final_message()

    assert reply.stop_reason == streamed.stop_reason == reason
    assert len(reply.content) == len(streamed.content) == len(answer.parts)


def test_a_sync_client_in_a_plain_test(threaded, sync_claude):
    threaded.script(otherwise=LONG)

    whole = sync_claude.messages.create(**ASKED)
    with sync_claude.messages.stream(**ASKED) as stream:
        streamed = stream.get_final_text()

    assert whole.content[0].text == streamed == LONG


async def test_tokens_can_be_counted_without_a_reply(server, claude):
    server.answers.append("ok")

    counted = await claude.messages.count_tokens(model="m", messages=ASKED["messages"], system="Be brief.")
    reply = await claude.messages.create(**ASKED, system="Be brief.")

    assert counted.input_tokens == reply.usage.input_tokens


async def test_the_usage_can_be_made_up(server, claude):
    server.answers.append(say("ok", usage=Usage(100, 900, 30, 50, 20)))

    usage = (await claude.messages.create(**ASKED)).usage

    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (100, 900, 50)
    assert decode_usage(usage.model_dump(exclude_none=True), ANTHROPIC) == Usage(100, 900, 30, 50, 20)


ANSWERS = [
    say(think("why"), LONG, call("f", {"a": 1})),
    say(),
    say("no", finish="refusal"),
    say(think("only")),
]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_official_types_accept_every_byte_of_it(server, answer):
    server.script(otherwise=answer)

    whole = await ask(server, "anthropic")
    streamed = await ask(server, "anthropic", stream=True)

    Message.model_validate_json(whole.content, strict=True)
    for event in streamed.events:
        if event["type"] != "ping":
            EVENT.validate_python(event)
    assert decode_reply(whole.content, ANTHROPIC).usage is not None
