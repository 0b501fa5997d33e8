from __future__ import annotations

import json

import pytest
from msgspec import structs

from refold.core.fold import FoldedBranch
from refold.core.prompt_cache import mark_window
from refold.core.view import View
from refold.model.dialect import ANTHROPIC, CHAT
from refold.model.errors import WireError
from refold.model.message import Message, Reasoning, Text, ToolCall, ToolResult, user
from refold.model.window import Breakpoint, Window
from refold.wire import decode_request, encode_window
from refold.wire.request import write_breakpoints
from tests.core.conversations import TextCounter
from tests.wire.samples import ANTHROPIC_MESSAGES

pytestmark = pytest.mark.feature("L9")

EPHEMERAL = {"type": "ephemeral"}
BODY = rb"""{"model":"m", "x" : [1.0, 2], "system":"Be \u006bind.", "tools": [{"name":"look", "input_schema":{ }}],
    "messages":[{"role":"user","content":"Hello \u2603","y":1}, {"role":"assistant","content":[
        {"type":"text","text":"Reading.","citations":null}, {"type":"tool_use","id":"a","name":"look","input":{ "n": 1.0 }}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"a  b", "z":0}]}]}"""


def mark(index: int | None, part: int = 0, ttl="5m") -> Breakpoint:
    return Breakpoint(index, part, ttl, "test")


def written(*marks: Breakpoint, body: bytes = BODY, **changes) -> dict:
    request = decode_request(body, ANTHROPIC)
    window = Window(request.fixed, request.messages, breakpoints=marks)
    return json.loads(encode_window(request, structs.replace(window, **changes)))


def test_without_breakpoints_the_body_leaves_as_it_came():
    request = decode_request(BODY, ANTHROPIC)
    assert encode_window(request, Window(request.fixed, request.messages)) == BODY
    window = Window(request.fixed, request.messages)
    assert write_breakpoints(window) is window


def test_a_string_becomes_one_block_and_the_rest_keeps_its_bytes():
    request = decode_request(BODY, ANTHROPIC)
    marks = (mark(None), mark(0), mark(2, 0, "1h"))
    body = encode_window(request, Window(request.fixed, request.messages, breakpoints=marks))
    out = json.loads(body)
    assert out["system"] == [{"type": "text", "text": "Be kind.", "cache_control": EPHEMERAL}]
    assert out["messages"][0] == {
        "role": "user", "content": [{"type": "text", "text": "Hello ☃", "cache_control": EPHEMERAL}], "y": 1
    }  # fmt: skip
    assert out["messages"][2]["content"][0] == {
        "type": "tool_result", "tool_use_id": "a", "content": "a  b", "z": 0,
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
    }  # fmt: skip
    assert bytes(request.fields["x"]) in body
    assert bytes(request.fields["tools"]) in body
    assert bytes(request.messages[1].origin.raw) in body


def test_a_block_beside_the_marked_one_keeps_its_bytes():
    request = decode_request(BODY, ANTHROPIC)
    body = encode_window(request, Window(request.fixed, request.messages, breakpoints=(mark(1, 0),)))
    assert bytes(request.messages[1].parts[1].raw) in body
    assert json.loads(body)["messages"][1]["content"][0]["cache_control"] == EPHEMERAL


def test_summaries_and_the_block_after_the_system_prompt_are_marked_too():
    out = written(mark(None, 0), mark(None, 1), mark(0), summaries=(user("before"),), block="summary")
    assert [block["text"] for block in out["system"]] == ["Be kind.", "summary"]
    assert [block["cache_control"] for block in out["system"]] == [EPHEMERAL, EPHEMERAL]
    assert out["messages"][0]["content"] == [{"type": "text", "text": "before", "cache_control": EPHEMERAL}]
    assert out["messages"][1] == {"role": "user", "content": "Hello ☃", "y": 1}


def test_every_block_that_may_be_cached_can_carry_one():
    messages = b"[" + b",".join(ANTHROPIC_MESSAGES) + b"]"
    body = b'{"messages":' + messages + b"}"
    request = decode_request(body, ANTHROPIC)
    places = [
        (index, at)
        for index, message in enumerate(request.messages)
        for at, part in enumerate(message.parts)
        if not isinstance(part, Reasoning) and part.raw != message.origin.raw
    ]
    marks = tuple(mark(index, at, "1h") for index, at in places)
    out = written(*marks, body=body)
    before = json.loads(body)["messages"]
    for index, at in places:
        block = out["messages"][index]["content"][at]
        assert block.pop("cache_control") == {"type": "ephemeral", "ttl": "1h"}
        content = before[index]["content"]
        original = {"type": "text", "text": content} if isinstance(content, str) else content[at]
        original.pop("cache_control", None)
        assert block == original


def test_what_was_changed_or_made_here_carries_one_as_well():
    request = decode_request(BODY, ANTHROPIC)
    call, result = request.messages[1], request.messages[2]
    stub = structs.replace(result.parts[0], parts=(Text("look"),))
    new = (ToolCall("b", "look"), ToolResult("b", (Text("seen"),)))
    messages = (
        *request.messages[:1], call, result.with_parts((stub,)),
        Message("assistant", new[:1]), Message("tool", new[1:]),
    )  # fmt: skip
    out = written(mark(2), mark(3), mark(4), messages=messages)
    blocks = [message["content"][0] for message in out["messages"][2:]]
    assert [block.pop("cache_control") for block in blocks] == [EPHEMERAL] * 3
    assert blocks[0] == {"type": "tool_result", "tool_use_id": "a", "content": "look", "z": 0}
    assert blocks[1] == {"type": "tool_use", "id": "b", "name": "look", "input": {}}


def test_one_too_many_of_the_client_s_own_is_left_out_inside_of_a_result_too():
    def block(**fields: object) -> dict:
        return {"type": "text", "text": "hi", **fields, "cache_control": EPHEMERAL}

    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block(x=1)], "z": 0}
    talk = [[{"type": "text", "text": "go"}], [call], [result], *([block()] for _ in range(4))]
    roles = ("user", "assistant", "user", "user", "user", "user", "user")
    messages = [{"role": role, "content": said} for role, said in zip(roles, talk, strict=True)]
    request = decode_request(json.dumps({"messages": messages}).encode(), ANTHROPIC)
    folded = FoldedBranch.of(View.of(request.messages, ANTHROPIC, TextCounter()))
    window = mark_window(Window(request.fixed, request.messages), folded, "5m")
    out = json.loads(encode_window(request, window))["messages"]
    assert out[2]["content"] == [{**result, "content": [{"type": "text", "text": "hi", "x": 1}]}]
    assert out[3:] == messages[3:]


def test_the_client_s_way_to_cache_whole_requests_is_known():
    for control, ttl in (
        (None, None),
        ({"type": "ephemeral"}, "5m"),
        ({"type": "ephemeral", "ttl": "1h"}, "1h"),
        ("odd", "5m"),
    ):
        fields = {"cache_control": control, "messages": [{"role": "user", "content": "hi"}]}
        body = json.dumps(fields).encode()
        assert decode_request(body, ANTHROPIC).fixed.automatic == ttl
        assert decode_request(body, CHAT).fixed.automatic is None


def test_what_cannot_be_written_is_named_by_its_place():
    request = decode_request(BODY, ANTHROPIC)
    custom = Message("assistant", (Text("x"), ToolCall("c", "look", "free text", kind="custom")))
    window = Window(request.fixed, (*request.messages, custom), breakpoints=(mark(3, 1),))
    with pytest.raises(WireError) as caught:
        encode_window(request, window)
    assert caught.value.place == "messages[3].content[1]"


def test_other_formats_have_none():
    request = decode_request(b'{"messages":[{"role":"user","content":"hi"}]}', CHAT)
    with pytest.raises(WireError, match="chat has no cache breakpoints"):
        encode_window(request, Window(request.fixed, request.messages, breakpoints=(mark(0),)))
