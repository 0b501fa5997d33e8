"""What the operator adds to requests, and that clients who did not ask for it do not see it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.gateway.conftest import served
from tests.gateway.faults.wires import Line, RawUpstream, connected, split_answer

HI = [{"role": "user", "content": "hi"}]


async def asked(gate, path, **fields):
    body = msgspec.json.encode({"model": "gpt-5", "messages": HI, **fields})
    _, told, answer = await gate.post(path, body)
    return gate.upstream.requests[-1].json, told, answer


async def test_usage_is_asked_for_in_streams_and_does_not_reach_who_did_not_ask(upstream):
    async with served(upstream, compaction_include_usage=True) as gate:
        sent, told, answer = await asked(gate, "/v1/chat/completions", stream=True)
        own, _, full = await asked(
            gate, "/v1/chat/completions", stream=True, stream_options={"include_usage": True}
        )

        assert sent["stream_options"] == own["stream_options"] == {"include_usage": True}
        assert told["x-refold-added"] == "stream_options"
        assert b'"usage":{' not in answer
        assert b'"usage":{' in full
        assert answer.endswith(b"data: [DONE]\n\n")
        (listed,) = await gate.store.conversations("local")
        assert listed.usage.input > 0


async def test_a_client_that_refuses_usage_is_left_alone(upstream):
    async with served(upstream, compaction_include_usage=True) as gate:
        body = {"stream": True, "stream_options": {"include_usage": False}}
        sent, told, _ = await asked(gate, "/v1/chat/completions", **body)

        assert sent["stream_options"] == {"include_usage": False}
        assert "x-refold-added" not in told


USAGE = b'{"choices": [], "usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":16}}'
HIDDEN = [
    b"data: " + USAGE,
    b"data:" + USAGE,
    b": a comment\ndata: " + USAGE,
    b"event: chunk\ndata: " + USAGE,
]
ENDS = [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n", b"\n\r", b"\r\n\r", b"\r\r\n"]


def spoken(text: str) -> bytes:
    """A chunk that says something, and uses the word that usage is found by."""
    return msgspec.json.encode({"choices": [{"delta": {"content": f"{text} usage"}}], "usage": None})


LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'
DONE = b"data: [DONE]"


@pytest.mark.parametrize("end", ENDS, ids=str)
@pytest.mark.parametrize("cut", ["whole events", "inside the blank line"])
async def test_a_client_sees_each_event_when_it_comes_and_no_usage(cut, end):
    """The provider sends the next event only when the client has the one before."""
    said = [b"data: " + spoken("h\u00e9"), b"data: " + spoken("two"), LAST]
    has_come = asyncio.Event()

    async def answer(line: Line) -> None:
        await line.begin()
        for event in (*said, *HIDDEN, DONE):
            at = len(event) + (1 if cut == "inside the blank line" else len(end))
            whole = event + end
            for piece in (whole[:at], whole[at:]):
                await line.send(piece)
            if event in said:
                await has_come.wait()
                has_come.clear()
        await line.end("end")

    async with (
        asyncio.timeout(20),
        RawUpstream(answer) as provider,
        served(provider, compaction_include_usage=True) as gate,
        connected(gate.url) as client,
    ):
        body = {"model": "gpt-5", "messages": HI, "stream": True}
        await client.post("/v1/chat/completions", msgspec.json.encode(body), connection="close")
        seen = b""
        for event in said:
            seen += await client.read_until(event + end[:1])
            has_come.set()
        _, got, is_ended = split_answer(seen + await client.read_all())

        assert (got, is_ended) == (b"".join(event + end for event in (*said, DONE)), True)


async def test_usage_that_ends_the_stream_without_a_blank_line_does_not_reach_the_client():
    async def answer(line: Line) -> None:
        await line.begin()
        await line.send(b"data: " + spoken("one") + b"\n\n" + LAST + b"\n\ndata: " + USAGE + b"\n")
        await line.end("end")

    async with RawUpstream(answer) as provider, served(provider, compaction_include_usage=True) as gate:
        body = {"model": "gpt-5", "messages": HI, "stream": True}
        _, _, got = await gate.post("/v1/chat/completions", msgspec.json.encode(body))

        assert got == b"data: " + spoken("one") + b"\n\n" + LAST + b"\n\n"


@pytest.mark.feature("L13")
@pytest.mark.parametrize(
    "effort, tokens, word",
    [("low", 1_024, "low"), ("medium", 4_096, "medium"), ("high", 16_384, "high"), ("5000", 5_000, "medium")],
)
async def test_effort_is_a_word_or_a_number_of_tokens(effort, tokens, word, upstream):
    async with served(upstream, compaction_thinking=effort) as gate:
        sent, told, _ = await asked(gate, "/v1/messages", max_tokens=20_000)
        assert sent["thinking"] == {"type": "enabled", "budget_tokens": tokens}
        assert told["x-refold-added"] == "thinking"
        sent, _, _ = await asked(gate, "/v1/chat/completions")
        assert sent["reasoning_effort"] == word
        sent, _, _ = await asked(gate, "/v1/responses", input=HI, messages=None)
        assert sent["reasoning"] == {"effort": word}


@pytest.mark.feature("L13")
async def test_a_client_that_says_how_much_to_think_is_left_alone(upstream):
    async with served(upstream, compaction_thinking="high") as gate:
        own = {"type": "enabled", "budget_tokens": 2_000}
        sent, told, _ = await asked(gate, "/v1/messages", max_tokens=20_000, thinking=own)
        assert (sent["thinking"], "x-refold-added" in told) == (own, False)
        sent, _, _ = await asked(gate, "/v1/messages", max_tokens=1_000)
        assert "thinking" not in sent
