"""What a provider's refusals and broken answers become: typed errors, and another try where that can help."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from refold.model.errors import (
    ContextOverflow,
    MalformedHistory,
    OutputCapExceeded,
    RateLimited,
    UpstreamError,
    UpstreamUnavailable,
)
from refold.model.message import user
from refold.ports.models import Ask
from refold.testing import (
    WORDINGS,
    Body,
    Broken,
    Refuse,
    Reset,
    ScriptedUpstream,
    echo,
    garbage,
    overflow,
    overloaded,
    rate_limited,
    say,
)
from refold.upstreams import Retries
from refold.wire.reply import Reply
from refold.wire.sse import TextDelta
from tests.upstreams.questions import QUESTION, Waits, asking, streamed
from tests.upstreams.test_http import ask, each_format, either_way


async def listen(upstream, heard: list[object]) -> None:
    async for item in upstream.stream(QUESTION):
        heard.append(item)  # noqa: PERF401  # what came before an error counts


@pytest.mark.parametrize("wording", WORDINGS)
@either_way
async def test_every_way_to_say_too_long_is_understood(wording, is_streamed):
    """One refuses without a word: there our own count, near the budget, speaks for it."""
    question = Ask((user("Why?"),), estimated=7_900, budget=8_000)
    answer = overflow(wording, prompt=9_000, window=8_000)
    async with ScriptedUpstream(answer) as server, asking(server) as upstream:
        with pytest.raises(ContextOverflow) as caught:
            await ask(upstream, question, is_streamed=is_streamed)
    assert caught.value.overflow.kind in ("input_too_long", "input_plus_output", "bytes_too_large")
    assert len(server.requests) == 1


@each_format
@either_way
async def test_a_window_that_is_full_is_an_overflow(wire, is_streamed):
    question = Ask((user("word " * 3_000),), max_output=16)
    async with ScriptedUpstream(window=1_000) as server, asking(server, wire) as upstream:
        with pytest.raises(ContextOverflow) as caught:
            await ask(upstream, question, is_streamed=is_streamed)
    assert caught.value.overflow.is_overflow


@pytest.mark.parametrize(
    "refuse, kind",
    [
        (
            Refuse(400, "max_tokens: 99 > 64, which is the maximum allowed number of output tokens"),
            OutputCapExceeded,
        ),
        (
            Refuse(400, "tool_use ids were found without tool_result blocks immediately after"),
            MalformedHistory,
        ),
        (Refuse(401), UpstreamError),
        (Refuse(404), UpstreamError),
    ],
)
@each_format
async def test_what_asking_again_cannot_help_is_raised_at_once(wire, refuse, kind):
    async with ScriptedUpstream(refuse) as server, asking(server, wire) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await upstream.ask(QUESTION)
    assert type(caught.value) is kind
    assert caught.value.overflow is not None
    assert len(server.requests) == 1


async def test_an_account_without_money_is_not_asked_again():
    broke = Refuse(429, "You exceeded your current quota", code="insufficient_quota")
    async with ScriptedUpstream(broke) as server, asking(server) as upstream:
        with pytest.raises(UpstreamError, match="insufficient_quota"):
            await upstream.ask(QUESTION)
    assert len(server.requests) == 1


@each_format
@either_way
async def test_a_busy_provider_is_asked_again(wire, is_streamed):
    waits = Waits()
    answers = (rate_limited(2), overloaded, Refuse(500), "At last.")
    async with (
        ScriptedUpstream(*answers) as server,
        asking(server, wire, waits=waits, retries=Retries(tries=4)) as upstream,
    ):
        reply = await ask(upstream, is_streamed=is_streamed)
    assert reply.messages[-1].text == "At last."
    assert waits.waited == [2, 0.5, 1.0]
    assert [request.body for request in server.requests] == [server.requests[0].body] * 4


@each_format
@either_way
@pytest.mark.parametrize(
    "fault, kind",
    [(rate_limited(), RateLimited), (Refuse(500), UpstreamUnavailable)],
)
async def test_patience_ends_after_the_last_try(wire, is_streamed, fault, kind):
    waits = Waits()
    async with ScriptedUpstream(otherwise=fault) as server, asking(server, wire, waits=waits) as upstream:
        with pytest.raises(kind):
            await ask(upstream, is_streamed=is_streamed)
    assert (len(server.requests), waits.waited) == (3, [0.25, 0.5])


@each_format
@either_way
@pytest.mark.feature("X14")
async def test_what_was_sent_and_may_be_billed_is_not_sent_again(wire, is_streamed):
    async with ScriptedUpstream(otherwise=Reset()) as server, asking(server, wire) as upstream:
        with pytest.raises(UpstreamUnavailable, match="broke the connection"):
            await ask(upstream, is_streamed=is_streamed)
    assert len(server.requests) == 1


@each_format
async def test_an_error_inside_of_a_stream_that_had_said_nothing_is_tried_again(wire):
    refuse = Refuse(529, "Overloaded", "overloaded_error", in_stream=True)
    async with ScriptedUpstream(refuse, "Now.") as server, asking(server, wire) as upstream:
        _, reply = await streamed(upstream)
    assert reply.messages[-1].text == "Now."


@each_format
async def test_an_overflow_inside_of_a_stream_is_told_as_one(wire):
    told = Refuse(400, "prompt is too long: 9000 tokens > 8000 maximum", in_stream=True)
    async with ScriptedUpstream(told) as server, asking(server, wire) as upstream:
        with pytest.raises(ContextOverflow) as caught:
            await streamed(upstream)
    assert (caught.value.overflow.limit, caught.value.overflow.prompt) == (8000, 9000)


async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin a stream with an error, and hang up in the middle of it."""
    await reader.readuntil(b"\r\n\r\n")
    half = b"event: error\ndata: prompt is too long: 9000 tokens > 8000 maximum"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + f"{len(half):x}".encode() + b"\r\n" + half + b"\r\n")
    await writer.drain()
    writer.close()


@pytest.mark.feature("O12")
@each_format
async def test_an_overflow_that_was_begun_when_the_connection_broke_is_told_as_one(wire):
    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    there = SimpleNamespace(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, asking(there, wire) as upstream:
        with pytest.raises(ContextOverflow) as caught:
            await streamed(upstream)
    assert (caught.value.overflow.limit, caught.value.overflow.prompt) == (8000, 9000)


@each_format
@pytest.mark.parametrize("then", ["end", "reset", "garbage", "error"])
async def test_a_stream_that_breaks_after_a_word_is_never_tried_again(wire, then):
    broken = Broken(say("A sentence that takes many pieces. " * 9), 7, then)
    heard = []
    async with ScriptedUpstream(broken, otherwise=echo) as server, asking(server, wire) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await listen(upstream, heard)
    assert any(isinstance(item, TextDelta) for item in heard)
    if then in ("end", "garbage"):
        assert "broke off its reply: event[" in caught.value.message
        assert "ask it to go on" in caught.value.hint
    assert not any(isinstance(item, Reply) for item in heard)
    assert len(server.requests) == 1


@each_format
@pytest.mark.parametrize("then", ["end", "reset", "garbage"])
async def test_half_a_reply_is_no_reply(wire, then):
    broken = Broken(say("Half of it."), then=then)
    async with ScriptedUpstream(otherwise=broken) as server, asking(server, wire) as upstream:
        with pytest.raises(UpstreamError):
            await upstream.ask(QUESTION)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        garbage(),
        Body(200),
        Body(200, b"{}"),
        Body(200, b"null"),
        Body(200, b"<html>", "text/event-stream"),
    ],
)
@each_format
@either_way
async def test_what_is_no_reply_is_an_error_and_not_tried_again(wire, is_streamed, answer):
    async with ScriptedUpstream(answer) as server, asking(server, wire) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await ask(upstream, is_streamed=is_streamed)
    assert type(caught.value) is UpstreamError
    assert len(server.requests) == 1


@each_format
@pytest.mark.parametrize(
    "error, kind",
    [
        ({"error": {"message": "This endpoint's maximum context length is 8000 tokens. However, you requested about 9000 tokens", "code": 400}}, ContextOverflow),
        ({"error": {"message": "Provider returned error", "code": 502}}, UpstreamUnavailable),
    ],
)  # fmt: skip
async def test_an_error_in_the_place_of_a_reply_is_an_error(wire, error, kind):
    async with ScriptedUpstream(otherwise=Body.of(200, error)) as server, asking(server, wire) as upstream:
        with pytest.raises(kind):
            await upstream.ask(QUESTION)
    assert len(server.requests) == (1 if kind is ContextOverflow else 3)


async def test_a_choice_that_broke_off_is_an_error():
    choice = {"error": {"code": 502, "message": "upstream"}, "message": {"content": "so f"}}
    async with (
        ScriptedUpstream(Body.of(200, {"choices": [choice]}), "Whole.") as server,
        asking(server) as upstream,
    ):
        assert (await upstream.ask(QUESTION)).messages[-1].text == "Whole."
