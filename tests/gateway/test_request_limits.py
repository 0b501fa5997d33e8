"""A body is refused before it costs anything: too long, too slow, too deep, compressed."""

from __future__ import annotations

import asyncio
import json
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from refold.gateway import request as limits
from refold.gateway.request import MAX_BRACKETS, MAX_DEPTH, check_json, check_new, read_body
from refold.model.errors import BodyEncoded, BodyTooLarge, BodyTooSlow, WireError
from refold.wire.json_codec import FIELDS


def chunk(body: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.request", "body": body, "more_body": more}


class Client:
    """Sends what it is given, then nothing more, and the connection stays open."""

    def __init__(self, *messages: dict[str, object], **headers: str) -> None:
        self._messages, self.asked = iter(messages), 0
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.scope = {"type": "http", "headers": named}

    async def receive(self) -> dict[str, object]:
        self.asked += 1
        message = next(self._messages, None)
        if message is None:
            await asyncio.Event().wait()
        return message or {}

    async def read(self, **limits: float) -> bytes:
        return await read_body(self.scope, self.receive, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [[0], [5], [1, 1, 1], [0, 4, 0]])
async def test_a_body_comes_whole_in_whatever_pieces(sizes):
    pieces = [bytes([65 + place]) * size for place, size in enumerate(sizes)]
    client = Client(*map(chunk, pieces[:-1]), chunk(pieces[-1], more=False))

    assert await client.read(max_bytes=5) == b"".join(pieces)


async def test_bytes_are_counted_as_they_come_whatever_was_announced():
    endless = Client(*repeat(chunk(b"x" * 1_000), 1_000))
    with pytest.raises(BodyTooLarge, match="more than 4,500 bytes"):
        await endless.read(max_bytes=4_500)
    assert endless.asked == 5, "what comes after it is not waited for"

    liar = Client(chunk(b"x" * 11, more=False), content_length="3")
    with pytest.raises(BodyTooLarge):
        await liar.read(max_bytes=10)


@pytest.mark.parametrize("announced", ["11", "99999999999999999999999999999999"])
async def test_a_body_that_is_announced_too_long_is_not_even_begun(announced):
    client = Client(content_length=announced)

    with pytest.raises(BodyTooLarge):
        await client.read(max_bytes=10)
    assert client.asked == 0


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "GZIP", "identity, gzip", "nonsense"])
async def test_a_compressed_body_is_refused_before_it_is_read(encoding):
    client = Client(content_encoding=encoding)

    with pytest.raises(BodyEncoded) as refused:
        await client.read()
    assert "without Content-Encoding" in refused.value.hint
    assert client.asked == 0


async def test_no_encoding_is_no_encoding():
    assert await Client(chunk(b"{}", more=False), content_encoding="identity").read() == b"{}"


async def test_a_body_that_does_not_come_is_given_up():
    with pytest.raises(BodyTooSlow, match="3 bytes came"):
        await Client(chunk(b"abc")).read(grace_s=0, bytes_per_s=1e9)


async def test_what_came_buys_time_for_the_rest(monkeypatch):
    deadlines: list[float] = []

    class Limit:
        def __init__(self, when: float) -> None:
            deadlines.append(when)

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            return None

        def reschedule(self, when: float) -> None:
            deadlines.append(when)

    monkeypatch.setattr(limits.asyncio, "timeout_at", Limit)
    await Client(chunk(b"x" * 500), chunk(b"x" * 100), chunk(b"", more=False)).read(
        grace_s=30, bytes_per_s=100
    )

    assert [round(when - deadlines[0], 6) for when in deadlines] == [0, 5, 6]


async def test_a_client_that_goes_away_is_noticed():
    with pytest.raises(ClientDisconnect):
        await Client(chunk(b"abc"), {"type": "http.disconnect"}).read()


def depth_of(text: str) -> int:
    """How deep JSON is nested, character by character."""
    deepest = depth = 0
    is_string = is_escaped = False
    for char in text:
        if is_escaped:
            is_escaped = False
        elif is_string:
            is_escaped, is_string = char == "\\", char != '"'
        elif char == '"':
            is_string = True
        else:
            depth += (char in "[{") - (char in "]}")
            deepest = max(deepest, depth)
    return deepest


TEXTS = st.text('ab"\\{}[]\n\u00e9\x00/ut', max_size=12)
VALUES = st.recursive(
    TEXTS | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=25,
)


@given(VALUES, st.booleans(), st.integers(1, 40), st.integers(0, 9))
def test_levels_are_counted_exactly(value, is_ascii, step, folds):
    text = json.dumps([value, value], ensure_ascii=is_ascii)
    deep = depth_of(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_STEP", step)
        patch.setattr(limits, "_FOLDS", folds)

        check_json(text.encode(), max_depth=deep)
        with pytest.raises(WireError, match=f"nested more than {deep - 1} levels"):
            check_json(text.encode(), max_depth=deep - 1)


def is_refused(check, *args, **limits) -> bool:
    try:
        check(*args, **limits)
    except WireError:
        return True
    return False


@given(st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=3), VALUES, st.booleans())
def test_what_is_new_is_refused_where_the_whole_would_be(before, after, other, is_first):
    """Though what came before is not looked at again."""
    whole = {"messages": [*before, *after]}
    whole = {**whole, "other": other} if is_first else {"other": other, **whole}
    body, known = json.dumps(whole).encode(), len(json.dumps(before)) - 1 if before else 0
    for limit in range(depth_of(json.dumps({"messages": before})), depth_of(body.decode()) + 1):
        refused = is_refused(check_new, body, FIELDS.decode(body), "messages", known, max_depth=limit)
        assert refused is is_refused(check_json, body, max_depth=limit)


def test_a_field_that_came_twice_hides_nothing():
    known, deep = b'[{"a":1}', b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    body = b'{"messages":%s,"messages":%s,{"a":2}]}' % (deep, known)
    with pytest.raises(WireError, match="nested more than"):
        check_new(body, FIELDS.decode(body), "messages", len(known))


def test_what_is_known_is_counted_where_there_could_be_too_many_lists(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BRACKETS", 300)
    known = b"[" + b",".join([b"[]"] * 200)
    body = b'{"messages":%s]}' % known
    with pytest.raises(WireError, match="holds more than 300 brackets"):
        check_new(body, FIELDS.decode(body), "messages", len(known), max_depth=100)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" * 300 + b"]" * 300 + b"," + b"[" * 200,
        b'["\\\\",' + b"[" * 300,
        b'["\\"]",' + b"[" * 300,
    ],
)
def test_what_would_break_a_parser_is_refused_in_words(body):
    with pytest.raises(WireError) as refused:
        check_json(body)

    assert refused.value.message == f"the body is nested more than {MAX_DEPTH} levels deep"
    assert "server.max_depth" in refused.value.hint


def test_brackets_in_texts_are_no_levels():
    check_json(json.dumps(["[" * 1_000, 'quote " {' * 1_000, "\\", "\\" * 999, "[" * 1_000]).encode())


def test_no_conversation_has_so_many_lists():
    with pytest.raises(WireError, match="holds more than 8,000,000 brackets"):
        check_json(b"[" + b"[]," * (MAX_BRACKETS // 2) + b"[]]")


def test_bytes_that_are_no_text_and_too_many_are_refused_as_everywhere():
    with pytest.raises(WireError, match="UTF-8"):
        check_json(b'["\xff"]')
    with pytest.raises(BodyTooLarge):
        check_json(b"[1, 2]", max_bytes=5)
