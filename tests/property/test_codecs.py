"""The codecs against anything: hostile bytes, arbitrary JSON, valid payloads bent out of shape, and valid messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import WireError
from refold.model.message import Text
from refold.model.message import system as ours
from refold.wire import (
    decode_error,
    decode_message,
    decode_reply,
    decode_request,
    decode_tools,
    decode_transcript,
    decode_usage,
    detect_dialect,
    encode_message,
    encode_request,
)
from tests.wire.samples import BODIES, ITEMS

ALL = [pytest.param(dialect, id=name) for name, dialect in DIALECTS.items()]
FUZZ = settings(max_examples=2 * settings.default.max_examples)

WORDS = st.sampled_from(
    ["type", "role", "content", "text", "id", "call_id", "name", "input", "output", "messages", "tools", "system",
     "source", "usage", "error", "choices", "message", "tool_calls", "function", "arguments", "user", "assistant",
     "tool", "tool_use", "tool_result", "tool_use_id", "tool_call_id", "function_call", "function_call_output",
     "reasoning", "summary", "image_url", "url", "input_text", "output_text", "shell_call_output", "document",
     "reasoning_details", "thinking_blocks", "refusal", "signature", "data", "tool_search_call", "system",
     "mcp_approval_response", "iterations", "errors", "detail"]
)  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | WORDS
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | TEXT, inner, max_size=5),
    max_leaves=25,
)


def feed(data: bytes, dialect: Dialect) -> None:
    """Every reader, and every writer on what was read: nothing but `WireError` may come out."""
    decode_error(data)
    decode_usage(data, dialect)
    for call in (
        lambda: decode_reply(data, dialect),
        lambda: decode_message(data, dialect),
        lambda: decode_tools(msgspec.Raw(data)),
        lambda: detect_dialect(data),
        lambda: decode_transcript(data),
        lambda: rewrite(data, dialect, decode_request),
        lambda: rewrite(data, dialect, decode_transcript),
    ):
        with suppress(WireError):
            call()


def rewrite(data: bytes, dialect: Dialect, decode: Callable[..., object]) -> None:
    request = decode(data, dialect)
    assert encode_request(request) == data
    for edit in (lambda parts: (*parts, Text("more")), lambda parts: parts[1:], lambda parts: parts[:-1]):
        edited = [message.with_parts(edit(message.parts)) for message in request.messages]
        with suppress(WireError):
            json.loads(encode_request(request, edited))
    for system in ((), request.system[1:], (ours("new"), *request.system[1:])):
        with suppress(WireError):
            json.loads(encode_request(request, system=system))


@pytest.mark.parametrize("dialect", ALL)
@given(
    data=st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
@FUZZ
def test_any_bytes_are_read_or_refused(dialect: Dialect, data: bytes):
    feed(data, dialect)


@pytest.mark.parametrize("dialect", ALL)
@given(
    value=JSON,
    key=st.sampled_from(["", "messages", "input", "choices", "output", "content", "usage", "error"]),
)
@FUZZ
def test_any_json_is_read_or_refused(dialect: Dialect, value: object, key: str):
    feed(json.dumps({key: value, "model": "m"} if key else value).encode(), dialect)


@pytest.mark.parametrize("dialect", ALL)
@given(data=st.data())
@FUZZ
def test_a_valid_request_bent_out_of_shape_is_read_or_refused(dialect: Dialect, data: st.DataObject):
    body = json.loads(BODIES[dialect.name].replace(b"1e400", b"1"))
    for _ in range(data.draw(st.integers(1, 3))):
        bend(body, data)
    feed(json.dumps(body).encode(), dialect)


def bend(value: object, data: st.DataObject) -> None:
    """Walk down a random path and replace or remove what is at its end."""
    while isinstance(value, dict | list) and value:
        keys = [*value] if isinstance(value, dict) else [*range(len(value))]
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 3)) == 0:
            if data.draw(st.booleans()):
                value[key] = data.draw(JSON)
            else:
                del value[key]
            return
        value = inner


@pytest.mark.parametrize("dialect", ALL)
@given(data=st.data())
@FUZZ
def test_a_valid_request_with_damaged_bytes_is_read_or_refused(dialect: Dialect, data: st.DataObject):
    body = bytearray(BODIES[dialect.name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=4))
    feed(bytes(body), dialect)


UNKNOWN = st.dictionaries(TEXT.map(lambda text: f"x_{text}"), JSON, max_size=3)


@st.composite
def dressed(draw: st.DrawFn, dialect: Dialect) -> bytes:
    """A sample message with unknown fields in it and in its blocks, in some other order and spacing."""
    item = json.loads(draw(st.sampled_from(ITEMS[dialect.name])).replace(b"1e400", b"1"))
    for block in [item, *(block for value in item.values() if isinstance(value, list) for block in value)]:
        if isinstance(block, dict):
            block.update(draw(UNKNOWN))
    shuffled = dict(draw(st.permutations([*item.items()])))
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    text = json.dumps(
        shuffled, separators=(f"{space},{space}", f"{space}:{space}"), ensure_ascii=draw(st.booleans())
    )
    return text.encode()


@pytest.mark.parametrize("dialect", ALL)
@given(data=st.data())
@FUZZ
def test_decoding_then_encoding_is_the_identity(dialect: Dialect, data: st.DataObject):
    item = data.draw(dressed(dialect))
    message = decode_message(item, dialect)
    assert bytes(encode_message(message, dialect)) == item
    assert bytes(encode_message(message.with_parts(message.parts), dialect)) == item
    body = b'{"' + dialect.messages_key.encode() + b'": [' + item + b"]}"
    request = decode_request(body, dialect)
    assert encode_request(request) == body
    assert json.loads(
        encode_request(request, [decode_message(item, dialect) for _ in request.messages])
    ) == json.loads(body)


@pytest.mark.parametrize("dialect", ALL)
@given(data=st.data(), text=TEXT)
@FUZZ
def test_a_changed_text_changes_nothing_else(dialect: Dialect, data: st.DataObject, text: str):
    item = data.draw(dressed(dialect))
    message = decode_message(item, dialect)
    places = [index for index, part in enumerate(message.parts) if isinstance(part, Text)]
    if not places:
        return
    at = data.draw(st.sampled_from(places))
    parts = [*message.parts]
    parts[at] = msgspec.structs.replace(parts[at], text="mark")
    out = bytes(encode_message(message.with_parts(tuple(parts)), dialect))
    back = decode_message(out, dialect)
    parts = [*back.parts]
    parts[at] = msgspec.structs.replace(parts[at], text=message.parts[at].text)
    again = encode_message(back.with_parts(tuple(parts)), dialect)
    assert json.loads(bytes(again)) == json.loads(item)
    assert [part.raw for part in back.parts[at + 1 :]] == [part.raw for part in message.parts[at + 1 :]]
