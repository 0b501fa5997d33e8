"""Providers that answer what no provider should."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.gateway import exchange
from refold.gateway.conversations import LiveBranch
from refold.gateway.response_tap import MAX_HELD_BYTES, Watcher, WholeEvents
from refold.model.dialect import DIALECTS
from tests.gateway.conftest import served
from tests.gateway.faults.bodies import is_own_shape
from tests.gateway.faults.pieces import STREAMS
from tests.gateway.faults.wires import PATHS, Line, RawUpstream, connected, record, split_answer

CHAT = record("chat")
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
BOMB = gzip.compress(b"0" * 50_000_000)


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


BROKEN = {
    "nothing at all": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "a status that is none": b"HTTP/1.1 abc OK\r\n\r\n",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "less than announced": OK + b"content-length: 100\r\n\r\n{}",
    "a chunk without a size": OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "a head of a megabyte": OK + b"x-a: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "a NUL in its head": OK + b"x-a: a\x00b\r\ncontent-length: 2\r\n\r\n{}",
    "a status that nobody may send": b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}",
    "a switch of protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}
ODD = {
    "a page": (OK.replace(b"application/json", b"text/html") + b"content-length: 4\r\n\r\n<h1>", b"<h1>"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "no type": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b"{}"),
    "a type that is none": (b"HTTP/1.1 200 OK\r\ncontent-type: ;;;\r\ncontent-length: 2\r\n\r\n{}", b"{}"),
    "until it closes": (OK + b"connection: close\r\n\r\n{}", b"{}"),
    "nested JSON": (OK + b"content-length: 200000\r\n\r\n" + b"[" * 200_000, b"[" * 200_000),
    "bytes": (OK + b"content-length: 4\r\n\r\n\xff\xfe\x00\x01", b"\xff\xfe\x00\x01"),
    "compressed unasked": (
        OK
        + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(gzip.compress(b"{}"))
        + gzip.compress(b"{}"),
        gzip.compress(b"{}"),
    ),
    "a bomb": (OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB) + BOMB, BOMB),
    "a compressed stream": (
        STREAM + b"content-encoding: deflate\r\n\r\n" + zlib.compress(CHAT.bytes),
        zlib.compress(CHAT.bytes),
    ),
    "names of ours": (OK + b"x-refold-receipt: forged\r\ncontent-length: 2\r\n\r\n{}", b"{}"),
    "a stream with a length": (
        STREAM + b"content-length: %d\r\n\r\n" % len(CHAT.bytes) + CHAT.bytes,
        CHAT.bytes,
    ),
    "a stream of garbage": (
        STREAM + b"\r\ndata: {\n\n\xff\xfe\n\ndata: [[[[\n\n",
        b"data: {\n\n\xff\xfe\n\ndata: [[[[\n\n",
    ),
    "a stream of numbers": (STREAM + b"\r\ndata: 5\n\ndata: []\n\n", b"data: 5\n\ndata: []\n\n"),
    "a stream that is nested": (
        STREAM + b"\r\ndata: " + b"[" * 5_000 + b"\n\n",
        b"data: " + b"[" * 5_000 + b"\n\n",
    ),
    "a stream that goes on after its end": (STREAM + b"\r\n" + CHAT.bytes * 2, CHAT.bytes * 2),
}


@pytest.fixture
async def rude():
    async with RawUpstream(lambda line: line.end("close")) as upstream, served(upstream) as gate:
        yield gate, upstream


async def answered(
    gate, upstream: RawUpstream, raw: bytes, path: str = CHAT.path
) -> tuple[bytes, bytes, bool]:
    async def answer(line: Line) -> None:
        await line.write(raw)
        await line.end("close")

    upstream.answer = answer
    async with connected(gate.url) as client:
        await client.post(
            path,
            CHAT.request.replace(b'"messages"', b'"input"') if "resp" in path else CHAT.request,
            connection="close",
        )
        return split_answer(await client.read_all())


async def test_an_answer_that_is_none_is_said_to_be_so_in_the_clients_words(rude):
    for what, raw in BROKEN.items():
        for path in (CHAT.path, PATHS["anthropic"], "/v1/embeddings"):
            head, body, is_ended = await answered(*rude, raw, path)
            is_told = head.startswith(b"HTTP/1.1 502 ") and is_own_shape(path, body)

            assert is_told or (head.startswith(b"HTTP/1.1 200 ") and not is_ended), (what, path, head)


async def test_an_answer_that_is_odd_reaches_the_client_as_it_came(rude):
    for what, (raw, expected) in ODD.items():
        head, body, _ = await answered(*rude, raw)

        assert (head.split(b" ")[1], body) == (raw.split(b" ")[1], expected), what
        assert b"forged" not in head


async def test_what_was_compressed_unasked_is_still_said_to_be_so(rude):
    head, _, _ = await answered(*rude, ODD["a compressed stream"][0])

    assert b"content-encoding: deflate" in head


async def test_an_event_without_an_end_is_handed_on_and_not_kept_in_memory(rude):
    gate, upstream = rude
    large = b'data: {"choices":[{"delta":{"content":"%s"}}]}' % (b"a" * 3 * MAX_HELD_BYTES)
    _, body, is_ended = await answered(gate, upstream, STREAM + b"\r\n" + large)

    assert (body, is_ended) == (large, False)


def test_events_are_held_up_to_a_limit_and_let_through_whole_again_after_it():
    events, large = WholeEvents(), b"data: " + b"a" * 2 * MAX_HELD_BYTES

    assert events.let_through(large) == large
    assert not events.is_between
    assert events.let_through(b"a\n\ndata: b") == b"a\n\n"
    assert events.is_between


LINES = st.sampled_from(
    [b"data: ", b"data:", b"event: error\n", b"event: message_stop\n", b"\n", b"\n\n", b"\r\n", b"\r", b": ping\n\n", b"[DONE]", b"null",
     b'{"choices":[{"delta":', b'{"content":"a"}', b'"tool_calls":[{"index":0,"function":{"arguments":{}}}]', b"}]}", b'{"type":',
     b'"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":5}}', b'"response.completed","response":5}',
     b'"message_start","message":[]}', b'"content_block_start","content_block":{"type":"tool_use","id":5}}', b"\xff", b"\xf0\x9f"]
)  # fmt: skip


@given(
    name=st.sampled_from([*STREAMS]),
    pieces=st.lists(LINES | st.binary(max_size=6), max_size=30),
    at=st.integers(0, 400),
)
def test_reading_along_never_fails_whatever_comes(name, pieces, at):
    stream = STREAMS[name].encode()
    watcher = Watcher(DIALECTS[name], "text/event-stream")
    for piece in (stream[:at], *pieces, stream[at:]):
        watcher.feed(piece)
    kept = msgspec.json.decode(watcher.outcome().reply)

    assert kept["is_whole"] in (True, False)
    assert not watcher._is_lost


async def test_a_stream_of_a_kind_that_is_not_known_is_handed_on_as_it_comes(rude):
    gate, upstream = rude
    may_end = asyncio.Event()

    async def answer(line: Line) -> None:
        await line.begin(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await line.send(b'{"a":1}\n')
        await may_end.wait()
        await line.send(b'{"b":2}\n')
        await line.end("end")

    upstream.answer = answer
    async with asyncio.timeout(10), connected(gate.url) as client:
        await client.post(CHAT.path, CHAT.request, connection="close")
        first = await client.read_until(b'{"a":1}\n')
        may_end.set()
        _, body, is_ended = split_answer(first + await client.read_all())

        assert (body, is_ended) == (b'{"a":1}\n{"b":2}\n', True)


async def test_a_provider_that_says_nothing_after_its_head_lets_the_client_go(rude, monkeypatch):
    monkeypatch.setattr(exchange, "HOLD_S", 0.01)
    gate, upstream = rude
    left = asyncio.Event()

    async def answer(line: Line) -> None:
        await line.begin()
        await line.left()
        left.set()

    upstream.answer = answer
    async with asyncio.timeout(10):
        async with connected(gate.url) as client:
            await client.post(CHAT.path, CHAT.request)
            await client.read_until(b"\r\n\r\n")
            client.leave()
        await left.wait()


async def test_a_fault_of_ours_costs_no_client_its_answer(rude, monkeypatch):
    """Neither when a reply is kept, nor when a call is to be made smaller."""

    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LiveBranch, "answered", fail)
    monkeypatch.setattr(LiveBranch, "shrink", fail)
    refusal = b'{"error":{"message":"maximum context length is 5 tokens","code":"context_length_exceeded"}}'
    head, body, is_ended = await answered(*rude, STREAM + b"\r\n" + CHAT.bytes)
    assert (head[9:12], body, is_ended) == (b"200", CHAT.bytes, True)

    length = b"content-length: %d\r\n\r\n" % len(refusal)
    head, body, is_ended = await answered(*rude, OK.replace(b"200 OK", b"400 Bad Request") + length + refusal)
    assert (head[9:12], body, is_ended) == (b"400", refusal, True)
