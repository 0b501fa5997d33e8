from __future__ import annotations

import json

import pytest
from msgspec import structs

from refold.model.dialect import RESPONSES
from refold.model.errors import WireError
from refold.model.message import Message, Opaque, Reasoning, Role, Text, ToolCall, assistant, tool
from refold.wire import decode_message, encode_message
from tests.wire.samples import RESPONSES_ITEMS


def read(index: int) -> Message:
    return decode_message(RESPONSES_ITEMS[index], RESPONSES)


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, RESPONSES)))


@pytest.mark.parametrize("index, role", [(0, "developer"), (1, "user"), (2, "user"), (19, "assistant")])
def test_messages_have_the_role_they_say(index: int, role: Role):
    assert read(index).role == role


def test_reasoning_is_its_text_and_what_is_sealed():
    assert read(3).bare() == Message("assistant", (Reasoning("a\nb\nc", sealed="gAAA"),))
    assert read(4).bare() == Message("assistant", (Reasoning(""),))


@pytest.mark.parametrize("index", range(20, 25))
def test_items_of_the_providers_own_are_opaque(index: int):
    message = read(index)
    assert message.role == "assistant"
    assert isinstance(message.parts[0], Opaque)
    assert message.parts[0].kind == json.loads(RESPONSES_ITEMS[index])["type"]


@pytest.mark.parametrize("index", [25, 26])
def test_a_reference_may_go_without_its_type(index: int):
    message = read(index)
    assert message.role == "assistant"
    assert isinstance(message.parts[0], Opaque)
    assert message.parts[0].kind == "item_reference"


@pytest.mark.parametrize("index", [35, 36, 37])
def test_items_that_only_a_client_can_write_are_the_developers(index: int):
    message = read(index)
    assert message.role == "developer"
    assert isinstance(message.parts[0], Opaque)


def test_new_text_beside_a_models_own_has_what_the_format_asks_for():
    message = read(19)
    edited = encoded(message.with_parts((*message.parts, Text("more"))))
    assert edited["content"][-1] == {"type": "output_text", "text": "more", "annotations": []}
    bare = decode_message(b'{"role":"assistant","content":[{"type":"output_text","text":"a"}]}', RESPONSES)
    changed = encoded(bare.with_parts((structs.replace(bare.parts[0], text="b"),)))
    assert changed["content"] == [{"type": "output_text", "text": "b"}]


def test_reasoning_and_opaque_items_leave_as_they_came_or_not_at_all():
    message = read(3)
    with pytest.raises(WireError, match="cannot be changed"):
        encode_message(message.with_parts((structs.replace(message.parts[0], text="x"),)), RESPONSES)
    with pytest.raises(WireError, match="type of an item cannot change"):
        encode_message(read(20).with_parts((Text("x"),)), RESPONSES)
    assert json.loads(bytes(encode_message(Message("assistant", read(20).parts), RESPONSES))) == json.loads(
        RESPONSES_ITEMS[20]
    )


def test_an_item_cannot_turn_into_another_kind():
    with pytest.raises(WireError, match="type of an item cannot change"):
        encode_message(read(5).with_parts((Text("I called it."),)), RESPONSES)


def test_new_items_have_the_normal_form():
    assert encoded(tool("c", "out")) == {"type": "function_call_output", "call_id": "c", "output": "out"}
    assert encoded(assistant("hi")) == {"type": "message", "role": "assistant", "content": "hi"}
    assert encoded(Message("assistant", (Text("a"), Text("b"))))["content"][0] == {
        "type": "output_text",
        "text": "a",
        "annotations": [],
    }
    assert encoded(Message("assistant", (Reasoning("r"),))) == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "r"}],
    }


@pytest.mark.parametrize(
    "message",
    [
        assistant("a", ToolCall("c", "f")),
        Message("assistant", (Reasoning("r", "signature"),)),
        Message("assistant", (ToolCall("c", "f", "{}", "telepathy"),)),
        Message("assistant", (ToolCall("c", "shell", "{", "shell"),)),
        Message("tool", ()),
    ],
)
def test_what_one_item_cannot_carry_is_refused(message: Message):
    with pytest.raises(WireError):
        encode_message(message, RESPONSES)


@pytest.mark.parametrize(
    "item, place",
    [
        ({"role": "tool", "content": "a"}, "role"),
        ({"type": "message", "role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"content": "a"}, "role"),
        ({"id": "m", "content": "a"}, "role"),
        ({"type": "message", "id": "m"}, "role"),
        ({"type": 3}, "type"),
        ({"type": "function_call", "name": "f", "arguments": ""}, "call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": ""}, "name"),
        ({"type": "function_call_output", "output": "a"}, "call_id"),
        ({"type": "function_call_output", "call_id": None, "output": "a"}, "call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "output"),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text"}]},
            "output[0].text",
        ),
        ({"type": "computer_call_output", "call_id": "c", "output": "a"}, "output"),
        ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": 1}]}, "output[0].stdout"),
        ({"type": "message", "role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        ({"type": "reasoning", "summary": [{"type": "summary_text"}]}, "summary[0].text"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(item: dict[str, object], place: str):
    with pytest.raises(WireError) as caught:
        decode_message(json.dumps(item).encode(), RESPONSES)
    assert caught.value.place == place
