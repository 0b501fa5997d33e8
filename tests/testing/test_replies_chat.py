from __future__ import annotations

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from refold.model.dialect import CHAT
from refold.model.tokens import Usage
from refold.testing import call, say, think
from refold.wire import decode_reply, decode_usage
from tests.testing.exchanges import ask

USER = [{"role": "user", "content": "hi"}]
LONG = "A sentence that takes more than one event, with an emoji 🎉 and an ä."


def joined(chunks, field="content"):
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    return "".join(getattr(delta, field, None) or "" for delta in deltas)


async def test_a_text_arrives_whole(server, gpt):
    server.answers.append(LONG)

    reply = await gpt.chat.completions.create(model="gpt-5", messages=USER)

    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (LONG, "stop")
    assert reply.model == "gpt-5"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0


async def test_a_stream_says_the_same_and_its_usage_has_to_be_asked_for(server, gpt):
    server.script(otherwise=LONG)

    plain = [c async for c in await gpt.chat.completions.create(model="m", messages=USER, stream=True)]
    options = {"include_usage": True}
    asked = await gpt.chat.completions.create(model="m", messages=USER, stream=True, stream_options=options)
    counted = [chunk async for chunk in asked]
    whole = await gpt.chat.completions.create(model="m", messages=USER)

    assert joined(plain) == joined(counted) == LONG
    assert len(plain) > 4
    assert plain[-1].choices[0].finish_reason == "stop"
    assert not any(chunk.usage for chunk in plain)
    assert counted[-1].usage == whole.usage
    assert counted[-1].choices == []


async def test_calls_arrive_with_ids_of_their_own_and_can_be_answered(server, gpt):
    server.script(say("Reading.", call("read", {"path": "a.py"}), call("list")), "Done.")

    reply = await gpt.chat.completions.create(model="m", messages=USER)
    said = reply.choices[0].message
    results = [{"role": "tool", "tool_call_id": made.id, "content": "ok"} for made in said.tool_calls]
    history = [*USER, said.model_dump(exclude_none=True), *results]
    second = await gpt.chat.completions.create(model="m", messages=history)

    assert reply.choices[0].finish_reason == "tool_calls"
    assert [made.function.name for made in said.tool_calls] == ["read", "list"]
    assert said.tool_calls[0].function.arguments == '{"path":"a.py"}'
    assert second.choices[0].message.content == "Done."


async def test_streamed_calls_are_put_together_by_the_client(server, gpt):
    arguments = {"path": "a/long/path/to/some/file.py", "lines": [1, 2]}
    server.answers.append(say(call("read", arguments), call("list", "{}", id="mine")))

    async with gpt.chat.completions.stream(model="m", messages=USER) as stream:
        final = await stream.get_final_completion()

    first, second = final.choices[0].message.tool_calls
    assert (first.function.name, second.id) == ("read", "mine")
    assert first.function.arguments == '{"path":"a/long/path/to/some/file.py","lines":[1,2]}'


async def test_reasoning_arrives_as_servers_of_open_models_send_it(server, gpt):
    server.script(otherwise=say(think(LONG), "Yes."))

    reply = await gpt.chat.completions.create(model="m", messages=USER)
    chunks = [c async for c in await gpt.chat.completions.create(model="m", messages=USER, stream=True)]

    assert reply.choices[0].message.reasoning_content == LONG == joined(chunks, "reasoning_content")
    assert 0 < reply.usage.completion_tokens_details.reasoning_tokens < reply.usage.completion_tokens


@pytest.mark.parametrize(
    ("answer", "finish", "content", "refusal"),
    [
        (say("I won't.", finish="refusal"), "stop", None, "I won't."),
        (say("cut o", finish="length"), "length", "cut o", None),
        (say("", finish="filter"), "content_filter", "", None),
        (say(), "stop", "", None),
    ],
)
async def test_replies_that_end_otherwise(server, gpt, answer, finish, content, refusal):
    server.script(otherwise=answer)

    reply = await gpt.chat.completions.create(model="m", messages=USER)
    chunks = [c async for c in await gpt.chat.completions.create(model="m", messages=USER, stream=True)]

    choice = reply.choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.refusal) == (
        finish,
        content,
        refusal,
    )
    assert chunks[-1].choices[0].finish_reason == finish
    assert joined(chunks, "refusal") == (refusal or "")


def test_a_sync_client_in_a_plain_test(threaded, sync_gpt):
    threaded.script(otherwise=LONG)

    whole = sync_gpt.chat.completions.create(model="m", messages=USER)
    streamed = list(sync_gpt.chat.completions.create(model="m", messages=USER, stream=True))

    assert whole.choices[0].message.content == joined(streamed) == LONG
    assert threaded.requests[1].stream


async def test_the_usage_can_be_made_up(server, gpt):
    server.answers.append(say("ok", usage=Usage(100, 900, 0, 50, 20)))

    usage = (await gpt.chat.completions.create(model="m", messages=USER)).usage

    assert (usage.prompt_tokens, usage.completion_tokens) == (1_000, 50)
    assert usage.prompt_tokens_details.cached_tokens == 900
    assert decode_usage(usage.model_dump(), CHAT) == Usage(100, 900, 0, 50, 20)


ANSWERS = [
    say(think("why"), LONG, call("f", {"a": 1})),
    say(),
    say("no", finish="refusal"),
    say(think("only")),
]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_official_types_accept_every_byte_of_it(server, answer):
    server.script(otherwise=answer)

    whole = await ask(server, "chat")
    streamed = await ask(server, "chat", stream=True, stream_options={"include_usage": True})

    ChatCompletion.model_validate_json(whole.content, strict=True)
    for chunk in streamed.events:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert streamed.content.endswith(b"data: [DONE]\n\n")
    assert decode_reply(whole.content, CHAT).usage == decode_usage(streamed.events[-1]["usage"], CHAT)
