from __future__ import annotations

import json

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import BodyTooLarge, WireError
from refold.model.message import user
from refold.wire import MAX_MESSAGES, decode_transcript, encode_request
from tests.wire.samples import BODIES, ITEMS, array

ALL = [CHAT, RESPONSES, ANTHROPIC]
HI = b'{"role":"user","content":"hi"}'


def jsonl(items: list[bytes]) -> bytes:
    return b"".join(
        json.dumps(json.loads(item)).replace("Infinity", "1e400").encode() + b"\n" for item in items
    )


@pytest.mark.parametrize("dialect", ALL)
def test_every_form_of_a_transcript_is_the_same_conversation(dialect: Dialect):
    items = ITEMS[dialect.name]
    expected = [json.loads(item) for item in items]
    for data in (
        BODIES[dialect.name],
        array(items),
        b"\xef\xbb\xbf" + array(items),
        b'{"id":"x", "tools": null, "messages":' + array(items) + b"}",
        b'\n\n{"id":"x","messages":' + array(items).replace(b"\n", b" ") + b"}\n\n",
        jsonl(items),
        jsonl(items).replace(b"\n", b"\r\n\r\n"),
    ):
        request = decode_transcript(data)
        found = [*request.system, *request.messages][-len(items) :]
        assert request.dialect is dialect
        assert [json.loads(bytes(message.origin.raw)) for message in found] == expected
        assert encode_request(request) == data


def test_a_dialect_that_is_given_is_used():
    assert decode_transcript(b"[" + HI + b"]", ANTHROPIC).dialect is ANTHROPIC
    with pytest.raises(WireError):
        decode_transcript(BODIES["responses"], CHAT)


def test_one_line_with_one_message_is_a_transcript():
    assert decode_transcript(HI).messages[0].bare() == user("hi")
    call = b'{"type":"custom_tool_call","call_id":"c","name":"f","input":"x"}'
    assert decode_transcript(call).dialect is RESPONSES


def test_an_object_on_many_lines_is_one_object():
    data = b'{"a": {}\n,"messages":[\n' + HI + b"\n]}"
    assert len(decode_transcript(data).messages) == 1


def test_several_conversations_in_one_file_are_refused_with_advice():
    line = b'{"messages":[' + HI + b"]}\n"
    with pytest.raises(WireError, match="several conversations") as caught:
        decode_transcript(line + line)
    assert "split the file" in caught.value.hint


@pytest.mark.parametrize(
    "data, place",
    [
        (b"", ""),
        (b" \n ", ""),
        (b"hello", ""),
        (b"[]", "messages"),
        (b"[1]", "messages[0]"),
        (b'{"a":1}', "messages"),
        (b'{"messages":{}}', "messages"),
        (HI + b"\n\n" + HI[:-2] + b"\n", "line 3"),
        (HI + b"\n" + HI + b"}\n" + HI, "line 2"),
        (HI + b"\n[]\n", "line 2"),
        (HI + b'\n{"role":"user","content":[{"type":"text"}]}\n', "line 2, content[0].text"),
        (HI + b'\n\n{"role":"nobody","content":""}', "line 3, role"),
        (b'{"role":"nobody","content":""}', "line 1, role"),
        (b'{"type":"message"}', "line 1, role"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(data: bytes, place: str):
    with pytest.raises(WireError) as caught:
        decode_transcript(data)
    assert caught.value.place == place


def test_reading_lines_stops_at_the_first_that_is_no_message():
    with pytest.raises(WireError, match="is no message") as caught:
        decode_transcript(HI + b"\n{}\n" + b'{"role":"nobody"}\n' * 3)
    assert caught.value.place == "line 2"


def test_blank_lines_cost_nothing_and_are_counted():
    data = HI + b"\n" * 3_000_000 + b'{"role":"nobody","content":""}\n'
    with pytest.raises(WireError) as caught:
        decode_transcript(data)
    assert caught.value.place == "line 3000001, role"
    assert len(decode_transcript(b"{" + b"\n" * 3_000_000 + b'"messages":[' + HI + b"]}").messages) == 1


def test_a_file_of_too_many_messages_is_refused():
    with pytest.raises(WireError, match="more than 100,000 messages"):
        decode_transcript((HI + b"\n") * (MAX_MESSAGES + 1))
    with pytest.raises(WireError, match="more than 100,000 messages") as caught:
        decode_transcript(b"[" + b",".join([HI] * (MAX_MESSAGES + 1)) + b"]")
    assert caught.value.place == "messages"


def test_the_limit_of_bytes_is_the_callers():
    with pytest.raises(BodyTooLarge):
        decode_transcript(HI, max_body_bytes=10)
