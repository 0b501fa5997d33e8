from __future__ import annotations

import json

import pytest
from msgspec import structs

from refold.core.pairs import repair
from refold.model.dialect import RESPONSES
from refold.model.errors import WireError
from refold.model.message import Message, Opaque, Text, ToolCall, ToolResult
from refold.wire import decode_message, encode_message
from tests.wire.samples import RESPONSES_ITEMS


def read(index: int) -> Message:
    return decode_message(RESPONSES_ITEMS[index], RESPONSES)


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, RESPONSES)))


@pytest.mark.parametrize(
    "index, call",
    [
        (5, ToolCall("call_1", "read", '{ "a": 1 }')),
        (6, ToolCall("call_2", "patch", "*** Begin", "custom")),
        (7, ToolCall("call_3", "computer", '{"type":"click","x":1,"y":2}', "computer")),
        (8, ToolCall("call_4", "local_shell", '{"type":"exec","command":["ls"]}', "local_shell")),
        (9, ToolCall("call_5", "shell", '{"commands":["ls", "pwd"],"timeout_ms":1000}', "shell")),
        (10, ToolCall("call_6", "apply_patch", '{"type":"delete_file","path":"a"}', "apply_patch")),
        (11, ToolCall("call_7", "computer", '[{"type":"wait"}]', "computer")),
        (27, ToolCall("call_8", "computer", "", "computer")),
        (28, ToolCall("call_9", "tool_search", '{ "query": "q" }', "tool_search")),
        (31, ToolCall("mcpr_1", "write", "{}", "mcp_approval")),
        (33, ToolCall("call_a", "teleport", '"\\u00e9"', "teleport")),
    ],
)
def test_each_call_item_is_one_call(index: int, call: ToolCall):
    assert read(index).bare() == Message("assistant", (call,))


def test_a_changed_call_keeps_its_other_fields():
    message = read(5)
    edited = message.with_parts((structs.replace(message.calls[0], arguments="{}"),))
    assert encoded(edited) == {**json.loads(RESPONSES_ITEMS[5]), "arguments": "{}"}
    message = read(9)
    edited = message.with_parts((structs.replace(message.calls[0], arguments='{"commands":[]}'),))
    assert encoded(edited)["action"] == {"commands": []}


@pytest.mark.parametrize(
    "index, call_id, kind",
    [(29, "call_9", "tool_search"), (32, "mcpr_1", "mcp_approval"), (34, "call_a", "teleport")],
)
def test_what_answers_a_call_is_its_result(index: int, call_id: str, kind: str):
    (result,) = read(index).parts
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.kind) == (call_id, kind)
    assert read(index).role == "tool"


@pytest.mark.parametrize("call, result", [(28, 29), (31, 32), (33, 34)])
def test_an_answer_without_its_call_is_taken_out_with_it(call: int, result: int):
    hi = decode_message(RESPONSES_ITEMS[2], RESPONSES)
    assert repair([hi, read(call), read(result)], RESPONSES).messages == (hi, read(call), read(result))
    assert repair([hi, read(result)], RESPONSES).messages == (hi,)


def test_a_search_that_the_provider_ran_is_the_providers_own():
    assert isinstance(read(30).parts[0], Opaque)


@pytest.mark.parametrize("index, key", [(27, "call_id"), (28, "call_id"), (31, "id"), (33, "call_id")])
def test_a_renamed_call_changes_nothing_but_its_id(index: int, key: str):
    message = read(index)
    edited = message.with_parts((structs.replace(message.calls[0], id="new"),))
    assert encoded(edited) == {**json.loads(RESPONSES_ITEMS[index]), key: "new"}


@pytest.mark.parametrize("index, key", [(29, "call_id"), (32, "approval_request_id"), (34, "call_id")])
def test_a_renamed_result_changes_nothing_but_its_id(index: int, key: str):
    message = read(index)
    edited = message.with_parts((structs.replace(message.results[0], call_id="new"),))
    assert encoded(edited) == {**json.loads(RESPONSES_ITEMS[index]), key: "new"}


def test_changed_arguments_go_back_to_the_field_they_came_from():
    for index, key in ((28, "arguments"), (33, "input"), (10, "operation")):
        message = read(index)
        edited = message.with_parts((structs.replace(message.calls[0], arguments='{"a":1}'),))
        assert encoded(edited) == {**json.loads(RESPONSES_ITEMS[index]), key: {"a": 1}}


def test_of_an_unknown_tool_only_a_text_can_be_elided():
    stub = (Text("[elided]"),)
    message = read(34)
    edited = message.with_parts((structs.replace(message.results[0], parts=stub),))
    assert encoded(edited) == {**json.loads(RESPONSES_ITEMS[34]), "output": "[elided]"}
    for index in (29, 32):
        message = read(index)
        with pytest.raises(WireError):
            encode_message(message.with_parts((structs.replace(message.results[0], parts=stub),)), RESPONSES)


@pytest.mark.parametrize(
    "message",
    [
        Message("assistant", (ToolCall("c", "teleport", "", "teleport"),)),
        Message("tool", (ToolResult("c", (Text("there"),), kind="teleport"),)),
    ],
)
def test_a_new_item_of_an_unknown_tool_cannot_be_written(message: Message):
    with pytest.raises(WireError):
        encode_message(message, RESPONSES)


def test_bytes_that_are_no_text_are_refused_in_actions_too():
    with pytest.raises(WireError, match="not valid UTF-8"):
        decode_message(b'{"type":"shell_call","call_id":"a","action":{"x":"\xff"}}', RESPONSES)


@pytest.mark.parametrize("call_id", [b"", b',"call_id":null'])
def test_an_output_that_names_no_call_is_refused(call_id: bytes):
    with pytest.raises(WireError) as caught:
        decode_message(b'{"type":"function_call_output","output":"a"' + call_id + b"}", RESPONSES)
    assert caught.value.place == "call_id"


def test_an_id_that_is_no_text_makes_an_unknown_item_no_call():
    message = decode_message(b'{"type":"warp_call","call_id":7}', RESPONSES)
    assert isinstance(message.parts[0], Opaque)
