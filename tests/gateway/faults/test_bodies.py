"""Bodies that nobody should send: the gateway answers in the client's own words or sends them on as they came, and lives."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections import Counter

import anthropic
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.gateway import recognition
from tests.gateway.conftest import served
from tests.gateway.faults.bodies import HI, KEYS, around, bodies, is_own_shape, said
from tests.gateway.faults.pieces import STREAMS, Loose
from tests.gateway.faults.wires import PATHS, connected

FORMATS = list(PATHS)
MIB = 1024 * 1024


async def wrong_with(gate, path: str, body: bytes) -> str:
    """What is wrong with how a body is met; empty where nothing is."""
    before = len(gate.upstream.requests)
    status, told, answer = await gate.post(path, body)
    sent = [one.body for one in gate.upstream.requests[before:]]
    if status != 200 and not is_own_shape(path, answer):
        return f"{status} without the shape of the format"
    if status >= 500 or told.get("x-refold-action") == "failed":
        return f"a fault of ours: {status}"
    if told.get("x-refold-action") == "unparsed" and sent != [body]:
        return "not sent on as it came"
    return ""


@pytest.mark.parametrize("name", FORMATS)
async def test_whatever_a_body_holds_it_is_refused_in_the_clients_words_or_sent_on_as_it_came(gate, name):
    found = {}
    for what, body in bodies(name).items():
        if wrong := await wrong_with(gate, PATHS[name], body):
            found[what] = wrong

    assert found == {}
    assert (await gate.post(PATHS[name], around(name, HI)))[0] == 200


@pytest.mark.parametrize(
    "path", ["/v1/messages/count_tokens", "/v1/embeddings", "/v1/responses/input_tokens"]
)
async def test_other_calls_pass_whatever_they_hold(gate, path):
    found = {}
    for what, body in bodies("chat").items():
        if len(body) < MIB:
            status, _, answer = await gate.post(path, body)
            found |= {} if status < 500 and answer else {what: status}

    assert found == {}


@pytest.mark.parametrize("has_length", [True, False])
@pytest.mark.parametrize("name", FORMATS)
async def test_a_body_that_is_too_large_is_refused_while_it_comes(upstream, name, has_length):
    async with served(upstream, server_max_body_mb=1) as gate, connected(gate.url) as client:
        length = f"content-length: {64 * MIB}" if has_length else "transfer-encoding: chunked"
        lines = [f"POST {PATHS[name]} HTTP/1.1", "host: localhost", length, "", ""]
        client.writer.write("\r\n".join(lines).encode())
        for _ in range(0 if has_length else 20):
            client.writer.write(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
        head = await client.read_until(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        answer = await client.reader.readexactly(size)

        assert head.startswith(b"HTTP/1.1 413 ")
        assert is_own_shape(PATHS[name], answer)
        assert upstream.requests == []


async def test_the_official_clients_raise_what_they_raise_for_their_provider(upstream):
    async with served(upstream, server_max_body_mb=1, server_max_depth=16) as gate:
        deep: list = []
        for _ in range(20):
            deep = [deep]
        large = "a" * (MIB + 1)
        async with gate.openai() as client:
            for content, error in ((deep, openai.BadRequestError), (large, openai.APIStatusError)):
                with pytest.raises(error, match="body"):
                    await client.chat.completions.create(
                        model="gpt-5", messages=[{"role": "user", "content": content}]
                    )
        async with gate.anthropic() as client:
            for content, error in (
                (deep, anthropic.BadRequestError),
                (large, anthropic.RequestTooLargeError),
            ):
                with pytest.raises(error, match="body"):
                    await client.messages.create(
                        model="claude", max_tokens=9, messages=[{"role": "user", "content": content}]
                    )
        assert upstream.requests == []


async def test_a_body_that_never_comes_keeps_nobody_waiting(gate):
    """Others are served while a client holds its connection and sends nothing more."""
    async with connected(gate.url) as client:
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{"
        )
        await client.writer.drain()
        statuses = await asyncio.gather(*(gate.post(PATHS["chat"], around("chat", HI)) for _ in range(5)))

        assert [one[0] for one in statuses] == [200] * 5


WORDS = st.sampled_from(
    ["role", "content", "user", "assistant", "tool", "system", "type", "text", "tool_calls", "tool_use", "tool_result",
     "id", "name", "input", "arguments", "function", "call_id", "tool_call_id", "tool_use_id", "image_url", "url",
     "message", "function_call", "function_call_output", "output", "reasoning", "thinking", "signature", "cache_control"]
)  # fmt: skip
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=8)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=25,
)
FIELD_NAMES = ("model", "stream", "tools", "system", "instructions", "max_tokens", "metadata", "stream_options", "cache_control",
               "previous_response_id", "prompt_cache_key", "tool_choice", "n")  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """A request that is nearly one, and now and then damaged."""
    name = draw(st.sampled_from(FORMATS))
    fields = {"model": "gpt-5", KEYS[name]: draw(st.lists(VALUES, max_size=5) | VALUES)}
    fields |= draw(st.dictionaries(st.sampled_from(FIELD_NAMES), VALUES, max_size=3))
    body = json.dumps(fields).encode()
    if draw(st.booleans()):
        return name, body
    at = draw(st.integers(0, len(body)))
    return name, body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 3)) :]


@given(asked=st.lists(requests(), min_size=1, max_size=8))
def test_nothing_that_looks_like_a_request_is_a_fault_of_ours(asked):
    asyncio.run(_ask_all(asked))


async def _ask_all(asked: list[tuple[str, bytes]]) -> None:
    async with Loose() as loose:
        for name, body in asked:
            got = await loose.ask(PATHS[name], body, [STREAMS[name].encode()])
            assert got.status in (200, 400)
            assert got.headers.get("x-refold-action") != "failed"
            if got.headers.get("x-refold-action") == "unparsed":
                assert loose.network.sent == body


GOOD = {
    "chat": {"model": "gpt-5", "max_tokens": 50, "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
             "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Wo ist Zürich?"}]},
                          {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]},
                          {"role": "tool", "tool_call_id": "a", "content": "there"}, {"role": "user", "content": "And now?"}]},
    "responses": {"model": "gpt-5", "instructions": "Be brief.", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Wo ist Zürich?"}]},
                  {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}, {"type": "function_call_output", "call_id": "a", "output": "there"},
                  {"role": "user", "content": "And now?"}]},
    "anthropic": {"model": "claude", "max_tokens": 50, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                  "messages": [{"role": "user", "content": "Wo ist Zürich?"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
                               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "there"}, {"type": "text", "text": "And now?"}]}]},
}  # fmt: skip
"""A request of each format that its provider takes."""
ODD = (
    b"null",
    b"-1",
    b"1e400",
    b'"\\ud800"',
    b"[]",
    b"{}",
    b"[[]]",
    b'""',
    b"true",
    b"\xff",
    b"\x00",
    b'"a',
    b"99999999999999999999",
)


def mutate(body: bytes, chance: random.Random) -> bytes:
    """A request with one to three changes: bytes that are others, gone or doubled, and values that are others."""
    for _ in range(chance.randint(1, 3)):
        at, size = chance.randrange(len(body) or 1), chance.randint(1, 40)
        values = [found.span() for found in VALUE.finditer(body)]
        match chance.randrange(5):
            case 0:
                body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
            case 1:
                body = body[:at] + body[at + size :]
            case 2:
                body = body[:at] + body[at : at + size] * 2 + body[at + size :]
            case _ if values:
                first, last = chance.choice(values)
                body = body[:first] + chance.choice(ODD) + body[last:]
    return body


VALUE = re.compile(rb'(?<=: )(?:"[^"]*"|-?\d+|null)')


async def ask_mutated(gate, count: int, seed: int) -> tuple[Counter[int], list[str]]:
    """Send so many mutated requests: how often each status came, and what was wrong with answers."""
    chance, statuses, found = random.Random(seed), Counter[int](), list[str]()
    for at in range(count):
        name = FORMATS[at % len(FORMATS)]
        body = mutate(json.dumps(GOOD[name], ensure_ascii=False).encode(), chance)
        status, told, answer = await gate.post(PATHS[name], body)
        statuses[status] += 1
        if status >= 500 or told.get("x-refold-action") == "failed":
            found.append(f"{name} {at}: a fault of ours: {status}")
        elif status != 200 and not is_own_shape(PATHS[name], answer):
            found.append(f"{name} {at}: {status} without the shape of the format")
        gate.upstream.requests.clear()
    for name in FORMATS:
        body = json.dumps(GOOD[name], ensure_ascii=False).encode()
        if (await gate.post(PATHS[name], body))[0] != 200:
            found.append(f"{name}: a request that is as it should be was refused after them")
    return statuses, found


async def test_mutated_requests_are_answered(gate):
    assert (await ask_mutated(gate, 300, 7))[1] == []


@pytest.mark.parametrize(
    ("name", "text"), [("anthropic", '"ephemeral"'), ("chat", '"object"'), ("responses", '"And now?"')]
)
async def test_a_number_that_nothing_can_hold_is_refused_by_the_provider(gate, name, text):
    body = json.dumps(GOOD[name]).replace(text, "1e400").encode()
    status, told, answer = await gate.post(PATHS[name], body)

    assert status == 400
    assert told["x-refold-action"] != "failed"
    assert is_own_shape(PATHS[name], answer)


@pytest.mark.slow
async def test_five_thousand_mutated_requests_are_answered(gate, capsys):
    seed = random.SystemRandom().randrange(1 << 30)
    statuses, found = await ask_mutated(gate, 5_000, seed)
    with capsys.disabled():
        sys.stdout.write(f"\nMutated bodies, seed {seed}: statuses {dict(statuses)}, wrong {len(found)}\n")
    assert found == []


async def test_a_message_that_is_unreadable_spoils_no_conversation(gate):
    """What cannot be read is sent on, and the conversation goes on with the next request."""
    good = [{"role": "user", "content": "one"}]
    for content in (b"[1]", b'{"a":1}', b'"\\ud800"'):
        await gate.post(PATHS["chat"], around("chat", said(content)), x_refold_conversation="talk")
        body = msgspec.json.encode({"model": "gpt-5", "messages": good})
        _, told, _ = await gate.post(PATHS["chat"], body, x_refold_conversation="talk")

        assert told["x-refold-action"] == "passed"
        good += [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": "more"}]
    head = await gate.store.head("local", "talk", told["x-refold-branch"])
    assert len(await gate.store.messages(head)) == len(good) - 2


async def test_more_than_can_be_taken_in_at_once_passes_by_and_what_is_known_may_be_longer(gate, monkeypatch):
    monkeypatch.setattr(recognition, "MOST_NEW", 20)
    said = [{"role": ("user", "assistant")[at % 2], "content": f"Sentence {at}."} for at in range(41)]
    told = []
    for size in (41, 15, 31, 41):
        body = msgspec.json.encode({"model": "gpt-5", "messages": said[:size]})
        _, found, _ = await gate.post(PATHS["chat"], body)
        told.append(found["x-refold-action"])

    assert told == ["unparsed", "passed", "passed", "passed"]
    (listed,) = await gate.store.conversations("local")
    assert listed.messages == 41
