from __future__ import annotations

import json

import pytest

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import BodyTooLarge, WireError
from refold.model.message import Message, user
from refold.model.window import Window
from refold.wire import MAX_MESSAGES, Request, decode_transcript, encode_request, encode_transcript
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


def shortened(request: Request, *first: Message, block: str = "") -> Window:
    """A summary and the last message."""
    return Window(request.fixed, request.messages[-1:], first, block)


@pytest.mark.parametrize("dialect", ALL)
def test_a_transcript_leaves_in_the_shape_it_came_in(dialect: Dialect):
    items = ITEMS[dialect.name]
    written = []
    for data in (
        array(items),
        jsonl(items),
        b'{"x": [ 1 ], "%s": %s}' % (dialect.messages_key.encode(), array(items)),
    ):
        request = decode_transcript(data)
        written.append(encode_transcript(request, shortened(request, user("Before that: much."))))
    as_list, as_lines, as_object = written
    assert [json.loads(line) for line in as_lines.splitlines()] == json.loads(as_list)
    assert json.loads(as_object) == {"x": [1], dialect.messages_key: json.loads(as_list)}
    assert as_object.startswith(b'{"x":[ 1 ],')
    request = decode_transcript(as_lines)
    assert request.dialect is dialect
    assert request.messages[0].text == "Before that: much."


@pytest.mark.parametrize("dialect", ALL)
def test_an_unchanged_transcript_leaves_as_the_bytes_that_came(dialect: Dialect):
    for data in (jsonl(ITEMS[dialect.name]), b"\xef\xbb\xbf" + array(ITEMS[dialect.name]) + b"\n\n"):
        request = decode_transcript(data)
        assert encode_transcript(request, Window(request.fixed, request.messages)) == data


def test_a_list_with_a_system_prompt_of_its_own_becomes_an_object():
    request = decode_transcript(jsonl([HI, HI]), ANTHROPIC)

    written = encode_transcript(request, shortened(request, block="Before that: much."))

    assert json.loads(written) == {"messages": [json.loads(HI)], "system": "Before that: much."}
    assert decode_transcript(written).dialect is ANTHROPIC


def test_lines_stay_one_line_each():
    request = decode_transcript(json.dumps(json.loads(HI), indent=2).encode())

    written = encode_transcript(request, shortened(request, user("Before that: much.")))

    assert [json.loads(line)["content"] for line in written.splitlines()] == ["Before that: much.", "hi"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_file_that_ended_with_a_line_end_still_does(end: bytes):
    request = decode_transcript(b"[" + HI + b"," + HI + b"]" + end)

    assert encode_transcript(request, shortened(request)) == b"[" + HI + b"]" + end
