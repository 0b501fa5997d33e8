from __future__ import annotations

import json

import pytest
from msgspec import structs

from refold.model.dialect import CHAT
from refold.model.errors import WireError
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    tool,
    user,
)
from refold.wire import decode_message, encode_message
from tests.wire.samples import CHAT_MESSAGES


def parts(index: int) -> tuple[object, ...]:
    return decode_message(CHAT_MESSAGES[index], CHAT).bare().parts


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, CHAT)))


def test_reasoning_comes_first_and_calls_last():
    assert parts(4) == (
        Reasoning("Two files."),
        ToolCall("call_1", "read", '{"path": "a"}'),
        ToolCall("call_2", "grep", "x+ y", "custom"),
    )
    assert parts(7) == (Reasoning("short"), Text("Done."))


def test_results_are_read_from_text_and_from_blocks():
    assert parts(5) == (ToolResult("call_1", (Text("one\ntwo"),)),)
    assert parts(6) == (ToolResult("call_2", (Text("hit"), Text(""))),)


def test_a_refusal_is_something_said():
    assert parts(8) == (Text("I"), Text("cannot"))
    assert parts(9) == (Text("No, sorry."),)


def test_a_message_that_says_nothing_has_no_parts():
    assert parts(10) == ()
    assert parts(11) == ()


def test_a_changed_refusal_goes_back_to_where_it_was():
    message = decode_message(CHAT_MESSAGES[9], CHAT)
    edited = message.with_parts((structs.replace(message.parts[0], text="No."),))
    assert encoded(edited) == {"role": "assistant", "content": None, "refusal": "No."}
    assert encoded(message.with_parts((Text("Yes."),))) == {
        "role": "assistant",
        "content": "Yes.",
        "refusal": None,
    }


@pytest.mark.parametrize("beside", ["null", '"top"', None])
def test_a_refusal_in_the_content_stays_there(beside: str | None):
    field = f'"refusal":{beside},' if beside else ""
    block = '{"type":"refusal","refusal":"no"}'
    raw = f'{{{field}"role":"assistant","content":[{{"type":"text","text":"a"}},{block}]}}'
    message = decode_message(raw.encode(), CHAT)
    edited = message.with_parts((structs.replace(message.parts[0], text="b"), *message.parts[1:]))
    assert bytes(encode_message(edited, CHAT)).decode() == raw.replace('"text":"a"', '"text":"b"')
    moved = Message("assistant", message.parts)
    assert decode_message(encode_message(moved, CHAT), CHAT).bare() == message.bare()


def test_two_refusals_in_one_message_are_both_said():
    message = decode_message(CHAT_MESSAGES[9], CHAT)
    assert encoded(message.with_parts(message.parts * 2))["refusal"] == "No, sorry.\nNo, sorry."


def test_a_call_of_the_old_kind_passes_untouched_and_can_be_left_out():
    message = decode_message(CHAT_MESSAGES[14], CHAT)
    (call,) = message.parts
    assert isinstance(call, Opaque)
    assert call.kind == "function_call"
    said = encoded(message.with_parts((Text("a"), call)))
    assert said == {**json.loads(CHAT_MESSAGES[14]), "content": "a"}
    assert encoded(message.with_parts((Text("a"),))) == {"role": "assistant", "content": "a", "x": 1}


def test_dropping_the_calls_drops_the_field():
    message = decode_message(CHAT_MESSAGES[4], CHAT)
    assert "tool_calls" not in encoded(message.with_parts((Text("Never mind."),)))


def test_a_string_stays_a_string_and_becomes_blocks_when_it_must():
    message = decode_message(b'{"role":"user","content":"a","name":"n"}', CHAT)
    assert encoded(message.with_parts((Text("b"),))) == {"role": "user", "content": "b", "name": "n"}
    picture = Image(url="https://example.org/x")
    assert encoded(message.with_parts((Text("b"), picture)))["content"] == [
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": {"url": "https://example.org/x"}},
    ]


def test_new_messages_have_the_normal_form():
    assert encoded(user("hi")) == {"role": "user", "content": "hi"}
    assert encoded(tool("c1", "out")) == {"role": "tool", "tool_call_id": "c1", "content": "out"}
    files = (
        File(media_type="audio/mp3", data="AA=="),
        File(media_type="application/pdf", data="BB==", name="b.pdf"),
    )
    assert encoded(Message("user", files))["content"] == [
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,BB==", "filename": "b.pdf"}},
    ]


@pytest.mark.parametrize(
    "message",
    [
        Message("user", (ToolCall("c", "f"),)),
        Message("user", (Reasoning("r"),)),
        Message("assistant", (Reasoning("r", "signature"),)),
        Message("assistant", (Reasoning("", sealed="s"),)),
        Message("assistant", (ToolCall("c", "shell", "{}", "shell"),)),
        Message("tool", (ToolResult("a"), ToolResult("b"))),
        Message("tool", (Text("no result"),)),
        Message("user", (Image(file_id="f"),)),
        Message("user", (File(text="plain"),)),
        user("\ud800"),
    ],
)
def test_what_the_format_cannot_carry_is_refused(message: Message):
    with pytest.raises(WireError):
        encode_message(message, CHAT)


@pytest.mark.parametrize(
    "item, place",
    [
        ({"content": "a"}, "role"),
        ({"role": 1, "content": "a"}, "role"),
        ({"role": "function", "name": "f", "content": "a"}, "role"),
        ({"role": "model", "content": "a"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": {"text": "a"}}, "content"),
        ({"role": "user", "content": ["a"]}, "content[0]"),
        ({"role": "user", "content": [{"text": "a"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}, "content[1].text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 1}}]},
            "content[0].image_url.url",
        ),
        ({"role": "tool", "content": "a"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": None, "content": "a"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": 7, "content": "a"}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "c", "content": None}, "content"),
        ({"role": "assistant", "tool_calls": {}}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, "tool_calls[0].id"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}, "tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "x"}]}, "tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": [1]}}]},
            "tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_place(item: dict[str, object], place: str):
    with pytest.raises(WireError) as caught:
        decode_message(json.dumps(item).encode(), CHAT)
    assert caught.value.place == place


def test_old_names_come_with_advice():
    with pytest.raises(WireError, match="send a `tool` message"):
        decode_message(b'{"role":"function","name":"f","content":"a"}', CHAT)


def test_an_empty_id_is_read_for_verification_to_judge():
    assert decode_message(b'{"role":"tool","tool_call_id":"","content":"a"}', CHAT).results[0].call_id == ""
