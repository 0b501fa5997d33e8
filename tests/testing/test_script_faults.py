"""What goes wrong, as the official clients report it."""

from __future__ import annotations

import asyncio
import math
import time

import aiohttp
import anthropic
import openai
import pytest

from refold.core.overflow import classify
from refold.model.dialect import DIALECTS
from refold.testing import (
    Body,
    Broken,
    Refuse,
    Reset,
    Slow,
    call,
    echo,
    garbage,
    overloaded,
    rate_limited,
    say,
    think,
)
from refold.wire import decode_error, decode_reply
from tests.testing.exchanges import PROTOCOLS, ask

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CLAUDE = {**CHAT, "max_tokens": 64}
LONG = "A sentence that takes more than one event, and then some more words after that."


@pytest.mark.parametrize(
    ("status", "gpt_error", "claude_error"),
    [
        (400, openai.BadRequestError, anthropic.BadRequestError),
        (401, openai.AuthenticationError, anthropic.AuthenticationError),
        (403, openai.PermissionDeniedError, anthropic.PermissionDeniedError),
        (404, openai.NotFoundError, anthropic.NotFoundError),
        (413, openai.APIStatusError, anthropic.APIStatusError),
        (429, openai.RateLimitError, anthropic.RateLimitError),
        (500, openai.InternalServerError, anthropic.InternalServerError),
        (502, openai.InternalServerError, anthropic.InternalServerError),
        (529, openai.InternalServerError, anthropic.InternalServerError),
    ],
)
async def test_a_refusal_is_the_clients_own_kind_of_error(
    server, gpt, claude, status, gpt_error, claude_error
):
    server.script(otherwise=Refuse(status))

    with pytest.raises(gpt_error) as chat:
        await gpt.chat.completions.create(**CHAT)
    with pytest.raises(gpt_error):
        await gpt.responses.create(model="m", input="hi")
    with pytest.raises(claude_error) as messages:
        await claude.messages.create(**CLAUDE)

    assert chat.value.status_code == messages.value.status_code == status
    assert chat.value.request_id == "req_1"
    assert messages.value.body["error"]["type"]


async def test_an_error_in_words_of_ones_own(server, gpt):
    server.answers.append(Refuse(400, "No such thing.", "invalid_request_error", "no_such_thing"))

    with pytest.raises(openai.BadRequestError) as caught:
        await gpt.chat.completions.create(**CHAT)

    assert (caught.value.code, caught.value.body["message"]) == ("no_such_thing", "No such thing.")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (rate_limited(), "rate_limit"),
        (Refuse(413), "bytes_too_large"),
        (Refuse(401), "other"),
        (Refuse(500), "other"),
        (Refuse(404), "other"),
    ],
)
async def test_what_an_error_means_does_not_depend_on_the_protocol(server, protocol, answer, kind):
    server.answers.append(answer)

    answered = await ask(server, protocol)

    assert classify(answered.status, answered.content).kind == kind
    assert decode_error(answered.content).message


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_rate_limit_says_how_long_to_wait(server, protocol):
    server.script(rate_limited(2), rate_limited(0.5), rate_limited())

    waits = [(await ask(server, protocol)).headers.get("retry-after") for _ in range(3)]

    assert waits == ["2", "0.5", None]


async def test_a_client_that_waits_gets_through(server):
    server.script(rate_limited(0.01), Refuse(503, retry_after_s=0.01), "Finally.")

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=2) as client:
        reply = await client.chat.completions.create(**CHAT)

    assert reply.choices[0].message.content == "Finally."
    assert len(server.requests) == 3


async def test_an_overload_is_said_as_each_provider_does(server):
    server.script(otherwise=overloaded)

    answered = {protocol: await ask(server, protocol) for protocol in PROTOCOLS}

    assert {protocol: answer.status for protocol, answer in answered.items()} == {
        "chat": 503,
        "responses": 503,
        "anthropic": 529,
    }
    assert answered["anthropic"].json["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_garbage_is_a_success_that_cannot_be_read(server, protocol):
    server.answers.append(garbage())

    answered = await ask(server, protocol)

    assert answered.status == 200
    assert answered.content.startswith(b"<html>")


async def test_exact_bytes_leave_as_they_are(server):
    content, headers = b'{"odd": 1}', {"x-odd": "yes"}
    server.answers.append(Body(418, content, "application/odd", headers))

    answered = await ask(server, "chat")

    assert (answered.status, answered.content, answered.headers["x-odd"]) == (418, content, "yes")
    assert answered.headers["content-type"] == "application/odd"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_that_just_ends(server, protocol):
    server.script(say(LONG), Broken(LONG, after=4))

    whole = await ask(server, protocol, stream=True)
    cut = await ask(server, protocol, stream=True)

    assert len(whole.events) > 4
    assert len(cut.events) == 4
    assert [event.get("type") for event in cut.events] == [event.get("type") for event in whole.events[:4]]


async def test_clients_notice_a_cut_stream_each_in_its_own_way(server, gpt, claude):
    server.script(otherwise=Broken(LONG, after=4))

    chunks = [chunk async for chunk in await gpt.chat.completions.create(**CHAT, stream=True)]
    async with claude.messages.stream(**CLAUDE) as stream:
        message = await stream.get_final_message()

    assert not any(chunk.choices[0].finish_reason for chunk in chunks)
    assert message.stop_reason is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_that_breaks_in_the_middle(server, protocol, stream):
    server.answers.append(Broken(LONG, after=3, then="reset"))

    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
        await ask(server, protocol, stream=stream)


async def test_clients_raise_for_a_connection_that_breaks_in_the_middle(server, gpt, claude):
    server.script(otherwise=Broken(LONG, after=3, then="reset"))

    with pytest.raises(openai.APIConnectionError):
        _ = [chunk async for chunk in await gpt.chat.completions.create(**CHAT, stream=True)]
    with pytest.raises(anthropic.APIConnectionError):
        await claude.messages.create(**CLAUDE)


async def test_no_answer_at_all(server, gpt, claude):
    server.script(otherwise=Reset())

    with pytest.raises(openai.APIConnectionError):
        await gpt.chat.completions.create(**CHAT)
    with pytest.raises(openai.APIConnectionError):
        await gpt.responses.create(model="m", input="hi", stream=True)
    with pytest.raises(anthropic.APIConnectionError):
        await claude.messages.create(**CLAUDE)
    assert len(server.requests) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_reply_that_turns_into_garbage(server, protocol):
    server.script(otherwise=Broken(LONG, after=2, then="garbage"))

    streamed, whole = await ask(server, protocol, stream=True), await ask(server, protocol)

    assert b"cut in the midd\n\n" in streamed.content
    with pytest.raises(ValueError, match=r"Unterminated|Expecting|delimiter"):
        _ = whole.json


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_error_in_the_middle_of_a_stream(server, protocol):
    server.script(Broken(LONG, after=4, then="error"), Broken(LONG, then="error"))

    streamed, whole = await ask(server, protocol, stream=True), await ask(server, protocol)

    assert len(streamed.events) == 5
    assert classify(200, streamed.content).kind == classify(whole.status, whole.content).kind == "rate_limit"
    if protocol == "responses":
        assert [event["sequence_number"] for event in streamed.events] == [0, 1, 2, 3, 4]


async def test_clients_raise_for_an_error_in_the_middle_of_a_stream(server, gpt, claude):
    server.script(otherwise=Broken(LONG, after=4, then="error"))

    with pytest.raises(openai.APIError, match="Overloaded"):
        _ = [chunk async for chunk in await gpt.chat.completions.create(**CHAT, stream=True)]
    events = [event async for event in await gpt.responses.create(model="m", input="hi", stream=True)]
    with pytest.raises(anthropic.APIStatusError, match=r"[Oo]verloaded"):
        async with claude.messages.stream(**CLAUDE) as stream:
            await stream.get_final_message()

    assert (events[-1].type, events[-1].response.error.message) == ("response.failed", "Overloaded")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_e56_an_error_inside_of_a_success(server, protocol):
    refusal = Refuse(400, "prompt is too long: 9000 tokens > 8000 maximum", in_stream=True)
    server.script(otherwise=refusal)

    streamed, whole = await ask(server, protocol, stream=True), await ask(server, protocol)

    assert (streamed.status, whole.status) == (200, 400)
    assert classify(200, streamed.content).prompt == classify(400, whole.content).prompt == 9_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "answer", [say(), say(think("only a thought")), say("cut o", finish="length"), say("   ")]
)
async def test_replies_that_are_of_no_use_are_still_replies(server, protocol, answer):
    server.answers.append(answer)

    answered = await ask(server, protocol)

    reply = decode_reply(answered.content, DIALECTS[protocol])
    assert answered.status == 200
    assert reply.usage is not None
    assert "".join(message.text for message in reply.messages).strip() == answer_text(answer).strip()


def answer_text(answer):
    return "".join(getattr(part, "text", "") for part in answer.parts if type(part).__name__ == "Text")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_echo_says_what_the_user_said(server, protocol):
    server.answers.append(echo)

    answered = await ask(server, protocol, "Summarise this: a, b, c.")

    (said,) = decode_reply(answered.content, DIALECTS[protocol]).messages
    assert said.text == "Summarise this: a, b, c."


async def test_a_call_whose_arguments_are_no_json(server, gpt, claude):
    server.script(otherwise=say(call("read", '{"path": "a.p')))

    reply = await gpt.chat.completions.create(**CHAT)
    streamed = await ask(server, "anthropic", stream=True)

    assert reply.choices[0].message.tool_calls[0].function.arguments == '{"path": "a.p'
    pieces = [
        event["delta"]["partial_json"]
        for event in streamed.events
        if "partial_json" in event.get("delta", {})
    ]
    assert "".join(pieces) == '{"path": "a.p'


async def test_a_slow_answer_outlasts_a_clients_patience(server, gpt):
    server.script(Slow("Late.", before_s=math.inf), Slow("In time.", before_s=0.01))

    with pytest.raises(openai.APITimeoutError):
        await gpt.chat.completions.create(**CHAT, timeout=0.1)
    reply = await gpt.chat.completions.create(**CHAT)

    assert reply.choices[0].message.content == "In time."


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_that_stalls(server, protocol):
    server.answers.append(Slow(LONG, between_s=0.02))

    started = time.monotonic()
    answered = await ask(server, protocol, stream=True)

    assert time.monotonic() - started > 0.02 * (len(answered.events) - 1)


async def test_leaving_does_not_wait_for_slow_answers(server, gpt):
    asked = asyncio.Event()

    def never(_):
        asked.set()
        return Slow("Never.", before_s=math.inf)

    server.answers.append(never)
    waiting = asyncio.create_task(gpt.chat.completions.create(**CHAT))
    await asked.wait()

    async with asyncio.timeout(60):
        await server.__aexit__(None, None, None)

    with pytest.raises(openai.APIConnectionError):
        await waiting
