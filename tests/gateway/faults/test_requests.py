"""Requests that are no proper HTTP, that say two things at once, or that want to be somewhere else."""

from __future__ import annotations

import asyncio
import json

import pytest

from refold.gateway import server
from tests.gateway.faults.bodies import HI, around, is_own_shape
from tests.gateway.faults.wires import connected, split_answer

BODY = around("chat", HI)
LONG_ANSWER = BODY.replace(b'"max_tokens":50', b'"max_tokens":5000')
TOO_LONG = around("chat", b'[{"role":"system","content":"%s"},%s' % (b"and so on " * 200, HI[1:])).replace(
    b'"max_tokens":50', b'"max_tokens":5000'
)
CHAT = "/v1/chat/completions"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"smug":1}'


def written(*headers: bytes, body: bytes = BODY, path: str = CHAT, length: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1".encode("latin-1"), b"Host: localhost", b"Connection: close", *headers]
    lines += [b"Content-Length: %d" % len(body)] if length else []
    return b"\r\n".join([*lines, b"", b""]) + body


async def answered(gate, request: bytes) -> bytes:
    async with connected(gate.url) as client:
        client.writer.write(request)
        return await client.read_all()


UNCLEAR = {
    "a length and chunks": written(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "chunks and a shorter length": written(
        b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n" + SMUGGLED, length=False
    ),
    "two lengths": written(b"Content-Length: 5"),
    "one length twice": written(b"Content-Length: %d" % len(BODY)),
    "a list of lengths": written(b"Content-Length: %d, %d" % (len(BODY), len(BODY)), length=False),
    "a length with a sign": written(b"Content-Length: +%d" % len(BODY), length=False),
    "a negative length": written(b"Content-Length: -1", length=False),
    "a length in hex": written(b"Content-Length: 0x10", length=False),
    "an empty length": written(b"Content-Length: ", length=False),
    "a length beyond all measure": written(b"Content-Length: 99999999999999999999999", length=False),
    "almost chunked": written(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + SMUGGLED, length=False),
    "chunked, then not": written(
        b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + SMUGGLED, length=False
    ),
    "chunked in one line, not in another": written(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        body=b"0\r\n\r\n" + SMUGGLED,
        length=False,
    ),
    "chunked after a vertical tab": written(
        b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n" + SMUGGLED, length=False
    ),
    "not encoded, and said so": written(b"Transfer-Encoding: identity"),
    "a chunk of no size": written(b"Transfer-Encoding: chunked", body=b"zz\r\n" + BODY, length=False),
    "a chunk of a negative size": written(b"Transfer-Encoding: chunked", body=b"-1\r\n" + BODY, length=False),
    "a chunk of every size": written(
        b"Transfer-Encoding: chunked", body=b"f" * 20 + b"\r\n" + BODY, length=False
    ),
    "a folded header": written(b"X-Note: a\r\n b"),
    "a folded header of ours": written(b"X-Refold-Upstream: scripted\r\n evil"),
    "a space before the colon": written(b"Transfer-Encoding : chunked"),
    "a header without a colon": written(b"X-Note"),
    "a NUL in a header": written(b"X-Note: a\x00b"),
    "a control character in a header": written(b"X-Refold-Conversation: a\x01\x0bb"),
    "a bare CR in a header": written(b"X-Note: a\rX-Refold: off"),
    "a bare LF in a header": written(b"X-Note: a\nX-Refold-Upstream: evil"),
    "lines that end in LF": written().replace(b"\r\n", b"\n"),
    "an absolute address": written(path="http://evil.example/v1/chat/completions"),
    "an address of bytes": written(path="/v1/\xe9"),
    "a tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "everything": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "the opening of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version that is none": written().replace(b"HTTP/1.1", b"HTTP/9.9"),
    "the opening of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}
"""What two programs in a row could read in two ways; and what is no request at all."""

FOREIGN = {
    "two hosts": written(b"Host: evil.example"),
    "a host with an address in it": written().replace(b"Host: localhost", b"Host: localhost#@evil.example"),
    "another host": written().replace(b"Host: localhost", b"Host: evil.example"),
    "no host": written().replace(b"Host: localhost\r\n", b""),
    "a page of another site": written(b"Origin: http://evil.example"),
    "a way up": written(path="/v1/../refold/status"),
    "a way up, encoded": written(path="/v1/%2e%2e/%2E./x"),
    "a way up, backwards": written(path="/v1/..\\..\\x"),
    "a way to here": written(path="/v1/./chat/completions"),
}


async def test_what_can_be_read_in_two_ways_is_refused_and_goes_nowhere(gate):
    got = {what: await answered(gate, request) for what, request in UNCLEAR.items()}

    assert {what: one for what, one in got.items() if not one.startswith(b"HTTP/1.1 400 ")} == {}
    assert {what for what, one in got.items() if one.count(b"HTTP/1.1 ") != 1} == set()
    assert gate.upstream.requests == []


async def test_what_is_meant_for_somebody_else_goes_nowhere(gate):
    got = {what: split_answer(await answered(gate, request)) for what, request in FOREIGN.items()}

    assert {what: head for what, (head, _, _) in got.items() if not head.startswith(b"HTTP/1.1 403 ")} == {}
    assert {what: body for what, (_, body, _) in got.items() if not is_own_shape(CHAT, body)} == {}
    assert gate.upstream.requests == []


PROPER = {
    "chunks": written(b"Transfer-Encoding: chunked", body=CHUNKED, length=False),
    "chunks with extensions": written(
        b"Transfer-Encoding: chunked", body=CHUNKED.replace(b"\r\n{", b";a=b\r\n{", 1), length=False
    ),
    "HTTP/1.0": written().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "an empty header": written(b"X-Refold-Conversation: "),
    "a header in UTF-8": written("X-Refold-Conversation: é日本".encode()),
    "a header in Latin-1": written(b"X-Refold-Conversation: caf\xe9", b"X-Note: \xff"),
    "a header with a direction": written("X-Refold-Conversation: a\u202eb".encode()),
    "a name of 10 KB": written(b"X-Refold-Conversation: " + b"n" * 10_240),
    "a query of anything": written(path=f'{CHAT}?http://evil.example&x="<>{{}}|^`&x=%00%0d%0a'),
    "a fragment": written(path=f"{CHAT}#http://evil.example"),
    "an encoded path": written(path="/%76%31/chat/completions"),
    "what is no header of ours after the body": written(
        b"Transfer-Encoding: chunked",
        body=CHUNKED[:-2] + b"X-Refold-Upstream: evil\r\nHost: evil.example\r\n\r\n",
        length=False,
    ),
}


async def test_what_is_odd_and_proper_is_one_request(gate):
    got = {what: await answered(gate, request) for what, request in PROPER.items()}

    assert {what: one for what, one in got.items() if not one.startswith(b"HTTP/1.1 200 ")} == {}
    assert [one.body for one in gate.upstream.requests] == [BODY] * len(PROPER)


SENSELESS = [
    *(
        f"X-Refold-Window: {size}"
        for size in ("1e9", "0", "-1", "many", "1000000000", "9" * 10_000, "0x10", "1_000")
    ),
    *(f"X-Refold-Preset: {name}" for name in ("best", "../../etc/passwd", "p" * 10_240)),
    *(f"X-Refold-Upstream: {name}" for name in ("http://evil.example", "scripted@evil", "u" * 10_240)),
]


async def test_a_wish_that_makes_no_sense_is_refused_in_the_clients_words(gate):
    for header in SENSELESS:
        head, body, _ = split_answer(await answered(gate, written(header.encode())))

        assert head.startswith(b"HTTP/1.1 400 "), header[:40]
        assert is_own_shape(CHAT, body)
        assert len(body) < 1_000
    assert gate.upstream.requests == []


async def test_a_window_of_any_allowed_size_that_holds_the_request_is_a_wish_that_can_be_met(gate):
    for size in ("256", "1000", "100000000"):
        got = await answered(gate, written(f"X-Refold-Window: {size}".encode()))

        assert got.startswith(b"HTTP/1.1 200 ")
    got = await answered(gate, written(b"X-Refold-Window: 256", body=LONG_ANSWER))

    assert got.startswith(b"HTTP/1.1 200 ")
    *others, lowered = gate.upstream.requests
    assert [one.body for one in others] == [BODY, BODY, BODY]
    assert lowered.json["max_tokens"] == 192  # messages have a quarter of 256


async def test_a_window_that_no_model_has_is_refused_with_the_range(gate):
    for size in ("1", "10", "255", "100000001", "999999999"):
        head, body, _ = split_answer(await answered(gate, written(f"X-Refold-Window: {size}".encode())))

        assert head.startswith(b"HTTP/1.1 400 ")
        told = json.loads(body)["error"]
        assert told["code"] == "config_error"
        assert "X-Refold-Window is not a number of tokens from 256 to 100,000,000" in told["message"]
    assert gate.upstream.requests == []


async def test_a_window_too_small_for_the_request_is_refused_with_the_sum(gate):
    for size in ("256", "300"):
        request = written(f"X-Refold-Window: {size}".encode(), body=TOO_LONG)
        head, body, _ = split_answer(await answered(gate, request))

        assert head.startswith(b"HTTP/1.1 400 ")
        told = json.loads(body)["error"]
        assert told["code"] == "context_length_exceeded"
        assert f"window {size} − instructions " in told["message"]
        assert "(lowered from 5,000) = " in told["message"]
    assert gate.upstream.requests == []


async def test_requests_in_a_row_are_as_many_at_the_provider(gate):
    row = written().replace(b"Connection: close", b"X-Number: 1") + written()

    got = await answered(gate, row)

    assert got.count(b"HTTP/1.1 200 ") == len(gate.upstream.requests) == 2


@pytest.mark.parametrize("header", [b"X-Note: " + b"a" * 1_000_000, b"X-Note: a\r\n" * 100_000])
async def test_headers_without_an_end_are_not_waited_for(gate, header):
    async with connected(gate.url) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + header)
        got = await client.read_all()

    assert got == b"" or got.startswith(b"HTTP/1.1 400 ")
    assert gate.upstream.requests == []


@pytest.mark.parametrize("size", [66_000, 190_000])
async def test_long_headers_that_come_in_one_piece_are_refused(gate, size):
    body = b'{"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}]}'
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Note: %s\r\nContent-Length: %d\r\n\r\n"
    )
    got = await answered(gate, head % (b"a" * size, len(body)) + body)

    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"x-refold-action" not in got, "it was sent to the provider"


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc"])
async def test_headers_that_do_not_come_are_not_waited_for(gate, begun, monkeypatch):
    monkeypatch.setattr(server, "HEAD_S", 0.01)
    async with asyncio.timeout(10), connected(gate.url) as client:
        client.writer.write(begun)

        assert (await client.read_all()).startswith(b"HTTP/1.1 400 ")


PAGES = (
    f"conversations?limit={'9' * 5_000}",
    "conversations?limit=-1",
    "conversations?words=%00%ff",
    "conversations/%00",
    "conversations/" + "n" * 5_000,
    "conversations/a%2f..%2fb/sessions?branch=%00&limit=1",
    "conversations/x/undo",
    "nothing",
)


async def test_pages_that_are_not_there_are_said_to_be_so(gate):
    for page in PAGES:
        request = f"GET /refold/{page} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        head, _, is_ended = split_answer(await answered(gate, request))

        assert (head[9:10] in (b"2", b"4"), is_ended) == (True, True), page[:50]
