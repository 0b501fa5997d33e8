from __future__ import annotations

import json

import pytest
from msgspec import structs

from refold.model.dialect import RESPONSES
from refold.model.errors import WireError
from refold.model.message import File, Image, Message, Opaque, Text, ToolResult
from refold.wire import decode_message, encode_message
from tests.wire.samples import PNG, RESPONSES_ITEMS


def read(index: int) -> Message:
    return decode_message(RESPONSES_ITEMS[index], RESPONSES)


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, RESPONSES)))


def test_every_kind_of_block_is_read():
    *known, unknown = read(1).bare().parts
    assert known == [
        Text("Look é"),
        Image(media_type="image/png", data=PNG),
        Image(file_id="file-1"),
        File(media_type="application/pdf", data="JVBERi0=", name="a.pdf"),
        File(url="https://example.org/a.pdf"),
        File(file_id="file-2"),
    ]
    assert isinstance(unknown, Opaque)
    assert read(19).text == "Done\nno"


@pytest.mark.parametrize(
    "index, result",
    [
        (12, ToolResult("call_1", (Text("text"),))),
        (13, ToolResult("call_1", (Text("t"), Image(url="https://example.org/a.png")))),
        (14, ToolResult("call_2", (Text("ok"),), kind="custom")),
        (15, ToolResult("call_3", (Image(media_type="image/png", data=PNG),), kind="computer")),
        (16, ToolResult("call_4", (Text('{"stdout":"a"}'),), kind="local_shell")),
        (17, ToolResult("call_5", (Text("a\n"), Text("b\nwarn")), kind="shell")),
        (18, ToolResult("call_6", (Text("no such file"),), is_error=True, kind="apply_patch")),
    ],
)
def test_each_shape_of_output_is_one_result(index: int, result: ToolResult):
    assert read(index).bare() == Message("tool", (result,))


@pytest.mark.parametrize("index", [12, 13, 14, 16, 17, 18])
def test_an_elided_output_has_the_shape_its_tool_wants(index: int):
    message = read(index)
    stub = structs.replace(message.results[0], parts=(Text("[elided]"),))
    again = decode_message(encode_message(message.with_parts((stub,)), RESPONSES), RESPONSES)
    assert again.results[0].text == "[elided]"
    assert again.results[0].kind == message.results[0].kind


def test_a_screenshot_cannot_become_text():
    message = read(15)
    stub = structs.replace(message.results[0], parts=(Text("[elided]"),))
    with pytest.raises(WireError, match="one screenshot"):
        encode_message(message.with_parts((stub,)), RESPONSES)


def test_a_changed_screenshot_is_written_back():
    message = read(15)
    shot = structs.replace(message.results[0].parts[0], data="AAAA")
    edited = encoded(message.with_parts((structs.replace(message.results[0], parts=(shot,)),)))
    assert edited["output"] == {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
    assert edited["acknowledged_safety_checks"] == []


def test_a_changed_stream_of_a_shell_keeps_its_outcome_and_its_neighbour():
    message = read(17)
    first, second = message.results[0].parts
    parts = (first, structs.replace(second, text="short"))
    out = encode_message(message.with_parts((structs.replace(message.results[0], parts=parts),)), RESPONSES)
    chunks = json.loads(bytes(out))["output"]
    assert bytes(first.raw) in bytes(out)
    assert chunks[1] == {"stdout": "short", "stderr": "", "outcome": {"type": "timeout"}, "x": 1}


def test_a_repaired_patch_says_so():
    message = read(18)
    fixed = structs.replace(message.results[0], is_error=False)
    assert encoded(message.with_parts((fixed,)))["status"] == "completed"


def test_new_media_are_written_in_the_formats_words():
    parts = (
        Text("t"),
        Image(media_type="image/png", data=PNG),
        File(data="AA==", media_type="text/csv", name="n"),
    )
    assert encoded(Message("user", parts))["content"] == [
        {"type": "input_text", "text": "t"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "input_file", "filename": "n", "file_data": "data:text/csv;base64,AA=="},
    ]
    with pytest.raises(WireError):
        encode_message(Message("user", (File(text="plain"),)), RESPONSES)
    with pytest.raises(WireError):
        encode_message(Message("tool", (ToolResult("c", (File(url="u"),), kind="shell"),)), RESPONSES)
