from __future__ import annotations

import json

import pytest

from refold.model.dialect import ANTHROPIC
from refold.model.errors import WireError
from refold.model.message import File, Image, Message, Opaque, Reasoning, Text, ToolResult, system, tool
from refold.wire import decode_message, encode_message
from tests.wire.samples import ANTHROPIC_MESSAGES, PNG


def read(index: int) -> Message:
    return decode_message(ANTHROPIC_MESSAGES[index], ANTHROPIC)


def encoded(message: Message) -> dict[str, object]:
    return json.loads(bytes(encode_message(message, ANTHROPIC)))


def kinds(parts: tuple[object, ...]) -> list[str]:
    return [part.kind if isinstance(part, Opaque) else type(part).__name__ for part in parts]


def test_results_make_a_tool_message_and_keep_their_company():
    message = read(2)
    error, blocks, nothing, text = message.bare().parts
    assert message.role == "tool"
    assert error == ToolResult("tu_1", (Text("text"),), is_error=True)
    assert isinstance(blocks, ToolResult)
    assert blocks.parts[:2] == (Text("a"), Image(media_type="image/png", data=PNG))
    assert kinds(blocks.parts[2:]) == ["search_result", "tool_reference"]
    assert nothing == ToolResult("tu_3")
    assert text == Text("and now?")


def test_new_messages_have_the_normal_form():
    result = {"type": "tool_result", "tool_use_id": "c", "content": "boom", "is_error": True}
    assert encoded(tool("c", "boom", is_error=True)) == {"role": "user", "content": [result]}
    media = (Image(media_type="image/png", data=PNG), File(text="t", name="n"), File(file_id="f"))
    assert [block["source"]["type"] for block in encoded(Message("user", media))["content"]] == [
        "base64",
        "text",
        "file",
    ]
    thoughts = (Reasoning("t", "sig"), Reasoning("", sealed="s"))
    assert encoded(Message("assistant", thoughts))["content"] == [
        {"type": "thinking", "thinking": "t", "signature": "sig"},
        {"type": "redacted_thinking", "data": "s"},
    ]


def test_a_later_system_message_stays_one_and_may_go_without_content():
    said, bare, blocks = (read(index) for index in (5, 6, 7))
    assert (said.role, bare.role, blocks.role) == ("system", "system", "system")
    assert said.text == "Be brief from now on."
    assert kinds(bare.parts) == ["system"]
    assert kinds(blocks.parts) == ["tool_addition", "Text"]
    for parts in ((Text("now"),), (*bare.parts, Text("now"))):
        edited = encoded(bare.with_parts(parts))
        assert edited == {**json.loads(ANTHROPIC_MESSAGES[6]), "content": "now"}
    assert encoded(said.with_parts(())) == {"role": "system"}
    assert encoded(system("Be kind.")) == {"role": "system", "content": "Be kind."}


@pytest.mark.parametrize(
    "item, place",
    [
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "tool", "content": "a"}, "role"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "a"}]}, "content[0].tool_use_id"),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": None}]},
            "content[0].tool_use_id",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text"}]}],
            },
            "content[0].content[0].text",
        ),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}, "content[0].id"),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "{}"}]},
            "content[0].input",
        ),
        (
            {"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]},
            "content[0].source.url",
        ),
        ({"role": "user", "content": [{"type": "image"}]}, "content[0].source"),
        (
            {
                "role": "user",
                "content": [{"type": "document", "source": {"type": "content", "content": [1]}}],
            },
            "content[0].source.content[0]",
        ),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": 1}]}, "content[0].thinking"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(item: dict[str, object], place: str):
    with pytest.raises(WireError) as caught:
        decode_message(json.dumps(item).encode(), ANTHROPIC)
    assert caught.value.place == place
