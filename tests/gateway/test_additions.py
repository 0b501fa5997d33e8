"""What the operator adds to requests, and that clients who did not ask for it do not see it."""

from __future__ import annotations

import msgspec
import pytest

from refold.gateway.additions import WithoutUsage
from tests.gateway.conftest import served

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


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_the_chunk_with_usage_is_taken_out_wherever_the_stream_is_cut(size, end):
    events = [
        b'data: {"choices":[{"delta":{"content":"h\xc3\xa9 usage"}}],"usage":null}',
        b'data: {"choices": [], "usage":{"a":1}}',
        b"data: [DONE]",
    ]
    stream = end.join([*events, b""])
    strip = WithoutUsage()
    out = b"".join(strip.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + strip.rest()
    assert out == end.join([events[0], events[2], b""])


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
