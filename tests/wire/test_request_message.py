from __future__ import annotations

import pytest
from msgspec import Raw

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.errors import WireError
from refold.model.message import Message, Text, ToolCall, user
from refold.wire import decode_message, decode_messages, encode_message


def test_a_list_is_read_index_for_index_with_places_in_it():
    array = b'[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":1}]}]'
    assert [m.text for m in decode_messages(array.replace(b":1}", b':"b"}'), CHAT)] == ["a", "b"]
    for dialect in (CHAT, RESPONSES, ANTHROPIC):
        with pytest.raises(WireError) as caught:
            decode_messages(array, dialect)
        assert caught.value.place == "[1].content[0].text"


def test_parts_taken_over_from_another_message_of_the_format_keep_their_block():
    block = b'{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}'
    source = decode_message(b'{"role":"user","content":[' + block + b"]}", ANTHROPIC)
    assert block in bytes(encode_message(Message("user", (Text("new"), *source.parts)), ANTHROPIC))


def test_a_block_of_another_format_is_refused():
    source = decode_message(b'{"role":"user","content":[{"type":"input_text","text":"a"}]}', RESPONSES)
    with pytest.raises(WireError, match="cannot be changed"):
        encode_message(Message("user", source.parts), CHAT)


def test_what_a_message_says_can_leave_in_any_format_once_it_is_bare():
    call = decode_message(
        b'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}',
        CHAT,
    )
    assert bytes(encode_message(call.bare(), ANTHROPIC)) == (
        b'{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]}'
    )


def test_a_change_of_role_is_written():
    message = decode_message(b'{"role":"user","content":"a","x":1}', CHAT).with_parts((Text("a"),))
    changed = Message("assistant", message.parts, message.origin)
    assert bytes(encode_message(changed, CHAT)) == b'{"role":"assistant","content":"a","x":1}'


def test_deep_arguments_do_not_matter_when_something_else_changes():
    deep = b'{"a":' * 400 + b"1" + b"}" * 400
    raw = b'{"role":"assistant","content":[{"type":"text","text":"t"},{"type":"tool_use","id":"c","name":"f","input":'
    message = decode_message(Raw(raw + deep + b"}]}"), ANTHROPIC)
    out = encode_message(message.with_parts((Text("u"), *message.parts[1:])), ANTHROPIC)
    assert deep in bytes(out)
    assert isinstance(message.parts[1], ToolCall)


@pytest.mark.parametrize("wrap", [bytes, Raw])
def test_white_space_around_a_message_is_no_part_of_it(wrap: type[bytes | Raw]):
    message = decode_message(wrap(b'  {"role":"user","content":"x","y":1}\n '), CHAT)
    edited = message.with_parts((Text("z"),))
    assert bytes(encode_message(edited, CHAT)) == b'{"role":"user","content":"z","y":1}'


def test_raw_may_be_given_as_bytes():
    assert decode_message(b'{"role":"user","content":"hi"}', CHAT).bare() == user("hi")
