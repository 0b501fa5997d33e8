import msgspec
import pytest
from msgspec import Raw

from refold.model.message import (
    Message,
    Origin,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool,
    user,
    visible,
)

BODY = b'[{"role":"user","content":[{"type":"text","text":"hi"}]}]'


def decoded() -> Message:
    (raw,) = msgspec.json.decode(BODY, type=list[Raw])
    block = msgspec.json.decode(BODY, type=list[dict[str, Raw]])[0]["content"]
    (text,) = msgspec.json.decode(block, type=list[Raw])
    return Message("user", (Text("hi", raw=text),), Origin("chat", raw))


def test_a_message_is_a_value():
    assert user("hi") == user("hi")
    with pytest.raises(AttributeError):
        user("hi").role = "assistant"


def test_what_a_message_says():
    message = Message("assistant", (Reasoning("hm"), Text("a"), ToolCall("x", "look"), Text("b")))
    assert message.text == "a\nb"
    assert [call.id for call in message.calls] == ["x"]
    assert tool("x", "found").results[0].text == "found"
    assert assistant("", ToolCall("x", "look")).parts == (ToolCall("x", "look"),)
    assert system("rule").role == "system"


def test_an_edit_keeps_the_origin_and_says_so():
    edited = decoded().with_parts((Text("bye"),))
    assert edited.text == "bye"
    assert edited.origin.raw == decoded().origin.raw
    assert edited.origin.edited
    assert not decoded().origin.edited
    assert user("hi").with_parts(()).origin is None


def test_bare_is_what_two_spellings_have_in_common():
    assert decoded() != user("hi")
    assert decoded().bare() == user("hi")
    marked = ToolResult("x", (Text("1", raw=Raw(b'"1"')),), raw=Raw(b"{}"))
    assert Message("tool", (marked,)).bare() == tool("x", "1")


SLICE = 65_536
FLAG = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


@pytest.mark.parametrize(
    "mark",
    [
        FLAG,
        FLAG[:4],
        "\ufe0f\ufe0f\ufe0e",
        "❤\ufe0f",
        "\u200b\u200b",
        "\x00\x07",
        "a\u200db",
        "\U000e0061" * 9,
    ],
)
@pytest.mark.parametrize("filling", ["word ", "größer\n", "中文"])
def test_what_stands_where_a_long_text_is_sliced_is_read_as_one(mark, filling):
    for at in range(SLICE - len(mark) - 1, SLICE + 2):
        before = (filling * SLICE)[:at]
        text = f"{before}{mark}{filling * 20_000}"

        assert visible(text) == f"{before}{visible(f'.{mark}.')[1:-1]}{filling * 20_000}"


def test_a_long_text_without_invisible_characters_is_returned_itself():
    for text in ("word " * SLICE, "größer\n" * SLICE, FLAG[:1] * SLICE):
        assert visible(text) is text
