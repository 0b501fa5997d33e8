from __future__ import annotations

import json

import pytest
from msgspec import structs

from refold.model.dialect import ANTHROPIC
from refold.model.errors import WireError
from refold.model.message import File, Image, Message, Opaque, Reasoning, Text, ToolCall
from refold.wire import decode_message, encode_message
from tests.wire.samples import ANTHROPIC_MESSAGES


def read(index: int) -> Message:
    return decode_message(ANTHROPIC_MESSAGES[index], ANTHROPIC)


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, ANTHROPIC)))


def kinds(parts: tuple[object, ...]) -> list[str]:
    return [part.kind if isinstance(part, Opaque) else type(part).__name__ for part in parts]


def test_every_kind_of_block_is_read():
    thinking, redacted, text, call, empty, *server = read(1).bare().parts
    assert thinking == Reasoning("Hm.", "c2ln")
    assert redacted == Reasoning("", sealed="c2VhbGVk")
    assert text == Text("Reading.")
    assert call == ToolCall("tu_1", "read", '{ "path" : "a", "n": 1.0 }')
    assert empty == ToolCall("tu_2", "list", "{}")
    assert kinds(tuple(server)) == ["server_tool_use", "web_search_tool_result", "mcp_tool_use"]


def test_media_are_read_from_every_kind_of_source():
    link, stored, s3, pdf, plain, url, file, blocks, whole, *rest = read(3).bare().parts
    assert (link, stored) == (Image(url="https://example.org/a.png"), Image(file_id="file_1"))
    assert pdf == File(media_type="application/pdf", data="JVBERi0=", name="T")
    assert plain == File(media_type="text/plain", text="plain")
    assert (url, file) == (File(url="https://example.org/a.pdf"), File(file_id="file_2"))
    assert (blocks, whole) == (File(text="one\ntwo"), File(text="whole"))
    assert kinds((s3, *rest)) == ["image", "container_upload", "compaction", "hologram"]


def test_a_changed_result_keeps_its_unknown_fields_and_the_other_blocks():
    message = read(2)
    first, *others = message.parts
    shorter = structs.replace(first, parts=(Text("[elided]"),), is_error=False)
    out = bytes(encode_message(message.with_parts((shorter, *others)), ANTHROPIC))
    assert json.loads(out)["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "tu_1",
        "content": "[elided]",
        "x": {},
    }
    assert all(bytes(part.raw) in out for part in others)
    assert out.endswith(b'"x":[1, 2]}')


def test_a_changed_block_within_a_result_leaves_its_neighbours_alone():
    message = read(2)
    result = message.results[1]
    inner = (structs.replace(result.parts[0], text="b"), *result.parts[1:])
    out = bytes(encode_message(message.with_parts((structs.replace(result, parts=inner),)), ANTHROPIC))
    assert json.loads(out)["content"][0]["content"][0] == {"type": "text", "text": "b", "x": 1}
    assert all(bytes(part.raw) in out for part in result.parts[1:])


def test_a_changed_document_keeps_what_stands_around_it():
    message = read(3)
    plain, blocks = message.parts[4], message.parts[7]
    edited = message.with_parts((structs.replace(plain, text="p"), structs.replace(blocks, text="b")))
    assert encoded(edited)["content"] == [
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "p"},
            "context": "c",
        },
        {"type": "document", "source": {"type": "content", "content": "b"}},
    ]


def test_changed_arguments_are_an_object_on_the_wire():
    message = read(1)
    call = structs.replace(message.calls[0], arguments='{"path": "b"}')
    block = encoded(message.with_parts((call,)))["content"][0]
    assert block["input"] == {"path": "b"}
    assert block["cache_control"] == {"type": "ephemeral"}
    assert encoded(Message("assistant", (ToolCall("c", "f", ""),)))["content"][0]["input"] == {}


@pytest.mark.parametrize("arguments", ['{"path": "b', "[1]", '"text"', "null", '{"a":1} x'])
def test_arguments_that_are_no_object_are_refused_with_their_place(arguments: str):
    message = Message("assistant", (Text("a"), ToolCall("c", "f", arguments)))
    with pytest.raises(WireError) as caught:
        encode_message(message, ANTHROPIC)
    assert caught.value.place == "content[1].input"


def test_thinking_leaves_as_it_came_or_not_at_all():
    message = read(1)
    rest = message.parts[2:]
    assert encoded(message.with_parts(rest))["content"][0]["type"] == "text"
    for part in message.parts[:2]:
        edited = message.with_parts((structs.replace(part, text="other"), *rest))
        with pytest.raises(WireError, match="cannot be changed"):
            encode_message(edited, ANTHROPIC)


@pytest.mark.parametrize(
    "part", [Reasoning("unsigned"), ToolCall("c", "f", "x", "custom"), Opaque("alien"), Text("\ud800")]
)
def test_what_the_format_cannot_carry_is_refused(part: object):
    with pytest.raises(WireError):
        encode_message(Message("assistant", (part,)), ANTHROPIC)


def test_results_nested_in_results_are_passed_on_unread():
    block = b'{"type":"text","text":"x"}'
    for _ in range(300):
        block = b'{"type":"tool_result","tool_use_id":"t","content":[' + block + b"]}"
    message = decode_message(b'{"role":"user","content":[' + block + b"]}", ANTHROPIC)
    assert kinds(message.results[0].parts) == ["tool_result"]


def test_bytes_that_are_no_text_are_refused_in_arguments_too():
    raw = b'{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":{"x":"\xff"}}]}'
    with pytest.raises(WireError, match="not valid UTF-8") as caught:
        decode_message(raw, ANTHROPIC)
    assert caught.value.place == "content[0]"
