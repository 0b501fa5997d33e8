"""One question to a provider, in the three formats, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import aiohttp
import pytest

from refold.model.errors import UpstreamError, UpstreamUnavailable
from refold.model.message import Reasoning, Text, assistant, tool, user
from refold.model.tokens import Usage
from refold.model.window import Tool
from refold.ports.models import Ask
from refold.testing import Body, Refuse, ScriptedUpstream, Slow, call, echo, say, think
from refold.upstreams import Provider, Retries, Timeouts, http, open_upstream
from refold.wire.reply import Reply
from refold.wire.sse import CallDelta, ReasoningDelta, TextDelta
from tests.upstreams.questions import FORMATS, QUESTION, Waits, asking, bare, streamed

ANSWERS = {
    "text": "Grüße 😀 and more than one chunk of them, so that the pieces are put together.",
    "thought": say(think("Hm. Let me think about that for a moment."), "Done."),
    "calls": say("Look.", call("read", {"path": "/ä"}, id="a"), call("read", "{}", id="b")),
    "nothing": say(),
    "cut": say("It is", finish="length"),
    "refusal": say("I won't.", finish="refusal"),
    "filtered": say(finish="filter"),
    "full": say("So", finish="window"),
    "billed": say("x", usage=Usage(input=3, cache_read=2, output=9, reasoning=4)),
}
each_format = pytest.mark.parametrize("wire", FORMATS)
either_way = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


async def ask(upstream, ask=QUESTION, *, is_streamed: bool) -> Reply:
    return (await streamed(upstream, ask))[1] if is_streamed else await upstream.ask(ask)


@each_format
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_a_streamed_reply_equals_the_one_that_is_not(wire, answer):
    tools = (Tool("read", "Reads.", '{"type":"object"}'),)
    question = Ask((user("Look."),), tools=tools)
    async with ScriptedUpstream(otherwise=answer) as server, asking(server, wire) as upstream:
        whole = await upstream.ask(question)
        deltas, reply = await streamed(upstream, question)
    texts = [part.text for message in whole.messages for part in message.parts if isinstance(part, Text)]
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "".join(texts)
    assert whole.usage is not None
    assert len(server.requests) == 2
    assert bare(reply) == bare(whole)


@each_format
async def test_what_is_new_is_told_while_the_model_writes(wire):
    answer = say(think("Hm."), "A sentence that takes two pieces.", call("read", {"path": "/ä"}, id="c1"))
    question = Ask((user("Look."),), tools=(Tool("read", "", '{"type":"object"}'),))
    async with ScriptedUpstream(answer) as server, asking(server, wire) as upstream:
        deltas, _ = await streamed(upstream, question)
    thoughts = [delta.text for delta in deltas if isinstance(delta, ReasoningDelta)]
    assert "".join(thoughts) == "Hm."
    assert len([delta for delta in deltas if isinstance(delta, TextDelta)]) == 2
    calls = [delta for delta in deltas if isinstance(delta, CallDelta)]
    assert calls[0] == CallDelta(0, "c1", "read")
    assert json.loads("".join(delta.arguments for delta in calls)) == {"path": "/ä"}


@each_format
@either_way
async def test_a_question_says_what_it_has_to(wire, is_streamed):
    """System prompt, model, limits and tools in the places of the wire, and usage is asked for."""
    question = Ask((user("Why?"),), "Be brief.", (Tool("look", "Looks.", '{"type":"object"}'),), 77, 0.25)
    async with ScriptedUpstream("Because.") as server, asking(server, wire, key_env="KEY") as upstream:
        reply = await ask(upstream, question, is_streamed=is_streamed)
    (request,) = server.requests
    sent = request.json
    assert (reply.messages[-1].text, reply.model) == ("Because.", "m-1")
    assert (request.system, request.text, request.model, request.key) == ("Be brief.", "Why?", "m-1", "sk-1")
    assert [found.name for found in request.request.tools] == ["look"]
    assert (request.request.max_output, sent["temperature"], request.stream) == (77, 0.25, is_streamed)
    assert ("anthropic-version" in request.headers) == (wire == "anthropic")
    assert ("x-api-key" in request.headers) == (wire == "anthropic")
    if wire == "responses":
        assert sent["store"] is False


@each_format
async def test_a_conversation_of_another_format_can_be_asked_about(wire):
    """Every provider rule of the scripted server is on: a broken translation would be refused."""
    from tests.wire.test_translate import CONVERSATIONS

    foreign = [messages for messages in CONVERSATIONS.values() if messages[0].origin.dialect != wire]
    assert len(foreign) > 2
    async with ScriptedUpstream(otherwise="So.") as server, asking(server, wire) as upstream:
        for messages in foreign:
            await upstream.ask(Ask((*messages, user("Sum up."))))
    assert len(server.requests) == len(foreign)


async def test_a_key_is_not_taken_to_where_an_answer_points():
    async with ScriptedUpstream(otherwise="Give me your key.") as other:
        away = Body(307, headers={"Location": f"{other.url}/v1/chat/completions"})
        async with ScriptedUpstream(away) as server, asking(server, key_env="KEY") as upstream:
            with pytest.raises(UpstreamError, match="status 307"):
                await upstream.ask(QUESTION)
    assert not other.requests


async def test_a_server_that_does_not_stream_and_one_that_always_does():
    body = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    stream = b'data: {"choices":[{"delta":{"content":"Ho"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with (
        ScriptedUpstream(Body.of(200, body), Body.of(200, stream)) as server,
        asking(server) as upstream,
    ):
        deltas, reply = await streamed(upstream)
        assert (deltas, reply.messages[0].text) == ([], "Hi")
        assert (await upstream.ask(QUESTION)).messages[0].text == "Ho"


@each_format
async def test_a_model_that_refuses_a_temperature_is_asked_without_one_from_then_on(wire):
    refuse = Refuse(
        400,
        "Unsupported value: 'temperature' does not support 0.3 with this model.",
        code="unsupported_value",
    )
    waits, once = Waits(), Retries(tries=1)
    async with (
        ScriptedUpstream(refuse, otherwise=echo) as server,
        asking(server, wire, waits=waits, retries=once) as upstream,
    ):
        await upstream.ask(QUESTION)
        await upstream.ask(QUESTION)
    assert ["temperature" in request.json for request in server.requests] == [True, False, False]
    assert waits.waited == []


async def test_an_error_about_a_temperature_that_was_not_sent_is_an_error():
    async with (
        ScriptedUpstream(Refuse(400, "The temperature is too high.")) as server,
        asking(server) as upstream,
    ):
        with pytest.raises(UpstreamError):
            await upstream.ask(Ask((user("How warm is it?"),), temperature=None))
    assert len(server.requests) == 1


@each_format
@pytest.mark.parametrize(
    "answer, timeouts",
    [
        (Slow(say("Late."), before_s=9), Timeouts(first_byte_s=0.05)),
        (Slow(say("A sentence that takes several pieces."), between_s=9), Timeouts(between_s=0.05)),
        (Slow(say("Late."), before_s=9), Timeouts(total_s=0.05)),
        (Slow(say("One, two, three, four, five, six, seven, eight."), between_s=0.04), Timeouts(total_s=0.1)),
    ],
)
async def test_a_provider_that_takes_too_long_is_given_up_and_not_asked_again(wire, answer, timeouts):
    """It may be at work, and its work will be on the bill."""
    waits, told = Waits(is_real=True), r"sent nothing for 0\.05 s|did not finish within"
    async with (
        ScriptedUpstream(answer) as server,
        asking(server, wire, waits=waits, timeouts=timeouts) as upstream,
    ):
        with pytest.raises(UpstreamUnavailable, match=told):
            await streamed(upstream)
    assert len(server.requests) == 1


@each_format
async def test_whoever_stops_listening_stops_the_model(wire):
    """The connection is closed at once, and the upstream can be asked again."""
    slow = Slow(say("A sentence that takes several pieces."), between_s=0.02)
    async with ScriptedUpstream(slow, "Next.") as server, asking(server, wire) as upstream:
        async with aclosing(upstream.stream(QUESTION)) as items:
            async for item in items:
                if isinstance(item, TextDelta):
                    break
        assert (await upstream.ask(QUESTION)).messages[-1].text == "Next."


@each_format
async def test_one_connection_serves_many_questions(wire, monkeypatch):
    made, connect = [], aiohttp.TCPConnector._create_connection

    async def counted(self, *args):
        made.append(1)
        return await connect(self, *args)

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", counted)
    monkeypatch.setattr(http, "LINGER_S", 5)  # a busy machine takes its time
    slow_end = Slow(say("Yes."), between_s=0.001)
    async with ScriptedUpstream(otherwise=slow_end) as server, asking(server, wire) as upstream:
        for _ in range(5):
            await streamed(upstream)
            await upstream.ask(QUESTION)
    assert len(made) == 1


async def test_a_server_that_does_not_hang_up_is_not_waited_for():
    stream = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    hung_up = asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + stream)
        await reader.read(-1)  # until the client hangs up
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    provider = Provider("x", "m", base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, asyncio.timeout(5), open_upstream(provider) as upstream:
        assert (await streamed(upstream))[1].messages[0].text == "Hi"
        await hung_up.wait()


async def test_large_questions_are_sent():
    large = Ask((user("x" * 3_000_000),))
    async with ScriptedUpstream("Read.", window=None) as server, asking(server) as upstream:
        assert (await upstream.ask(large)).messages[0].text == "Read."


async def test_headers_and_parameters_of_the_settings_replace_our_own():
    settings = {
        "headers": {"X-Title": "Refold", "Authorization": "Token t"},
        "parameters": {"reasoning_effort": "low", "temperature": None, "top_p": 0.5},
        "key_env": "KEY",
    }
    async with ScriptedUpstream("Yes.") as server, asking(server, **settings) as upstream:
        await upstream.ask(QUESTION)
    (request,) = server.requests
    assert (request.headers["x-title"], request.headers["authorization"]) == ("Refold", "Token t")
    assert (request.json["reasoning_effort"], request.json["top_p"]) == ("low", 0.5)
    assert "temperature" not in request.json


@pytest.mark.parametrize(
    "auth, header", [("bearer", "authorization"), ("x-api-key", "x-api-key"), ("api-key", "api-key")]
)
@each_format
async def test_a_key_is_sent_in_the_way_that_is_asked_for(wire, auth, header):
    async with (
        ScriptedUpstream("Yes.") as server,
        asking(server, wire, auth=auth, key_env="KEY") as upstream,
    ):
        await upstream.ask(QUESTION)
    carriers = {name for name, value in server.requests[0].headers.items() if "sk-1" in value}
    assert carriers == {header}


async def test_thoughts_can_be_sent_back_where_they_came_from():
    question = user("Why?")
    answers = (say(think("Hm."), "So."), "Yes.")
    async with ScriptedUpstream(*answers) as server, asking(server, "anthropic") as upstream:
        reply = await upstream.ask(Ask((question,)))
        await upstream.ask(Ask((question, *reply.messages, user("Sure?"))))
    thoughts = [part for part in server.requests[1].messages[1].parts if isinstance(part, Reasoning)]
    assert [thought.text for thought in thoughts] == ["Hm."]


async def test_calls_without_their_results_are_left_out():
    history = (user("Go."), assistant("Look.", call("read", id="a")), user("Stop."), tool("b", "lost"))
    async with ScriptedUpstream("Yes.") as server, asking(server, "anthropic") as upstream:
        await upstream.ask(Ask(history))
    assert not [message for message in server.requests[0].messages if message.calls or message.results]
