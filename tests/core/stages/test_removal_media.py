import pytest

from refold.core.stages.removal import DescribeMedia, describe
from refold.model.dialect import ANTHROPIC
from refold.model.message import File, Image, Message, Text, ToolCall, ToolResult, assistant, user
from tests.core.conversations import talk
from tests.core.stages.shown_messages import room_for, show_all

PICTURE = Image(media_type="image/png", data="AAAA")
ROOM = room_for(100, dialect=ANTHROPIC)


def test_media_of_earlier_turns_are_described():
    asked = Message("user", (Text("what is this?"), PICTURE))
    result = DescribeMedia().apply(show_all([asked, *talk("a u")], protected=2), ROOM)
    assert result.shown.messages[0].parts == (Text("what is this?"), Text("[image image/png #m0.2]"))
    assert [(edit.seq, edit.reason) for edit in result.edits] == [(0, "media of an earlier turn")]


def test_the_active_turn_and_pins_keep_their_media():
    asked = Message("user", (PICTURE,))
    shown = show_all([asked, *talk("a"), asked], protected=2)
    assert [edit.seq for edit in DescribeMedia().apply(shown, ROOM).edits] == [0]
    pinned = DescribeMedia().apply(shown, room_for(100, pinned=[0]))
    assert pinned.reason == "no earlier turn holds media"


def test_media_inside_of_results_are_described_and_their_text_stays():
    result = ToolResult("x", (Text("a page"), PICTURE))
    messages = [user("go"), assistant("", ToolCall("x", "open")), Message("tool", (result,)), *talk("a")]
    after = DescribeMedia().apply(show_all(messages), ROOM).shown.messages[2].results[0]
    assert after.parts == (Text("a page"), Text("[image image/png #m2]"))
    assert after.call_id == "x"


def test_screenshots_of_computer_calls_stay():
    shot = ToolResult("x", (PICTURE,), kind="computer")
    assert not DescribeMedia().apply(show_all([Message("tool", (shot,)), *talk("a")]), ROOM).edits


@pytest.mark.parametrize(
    "part, line",
    [
        (PICTURE, "[image image/png #m1]"),
        (Image(url="https://example.org/a.png"), "[image https://example.org/a.png #m1]"),
        (Image(url="https://example.org/?signature=" + "x" * 300), "[image #m1]"),
        (Image(file_id="file-1"), "[image #m1]"),
        (
            File(media_type="application/pdf", name="bill.pdf", data="AAAA"),
            "[file bill.pdf application/pdf #m1]",
        ),
    ],
)
def test_a_description_uses_words_of_the_source(part, line):
    assert describe(part, "#m1") == line


def test_files_can_be_left_alone():
    asked = Message("user", (File(name="a.txt", text="all of it"), PICTURE))
    shown = show_all([asked, *talk("a u")])
    after = DescribeMedia(files=False).apply(shown, ROOM).shown.messages[0]
    assert [type(part) for part in after.parts] == [File, Text]
