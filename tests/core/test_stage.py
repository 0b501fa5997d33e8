import re

import pytest
from msgspec import structs

from refold.core.stage import HANDLE_PATTERN, handle_of, is_stub, numbered_parts, part_of, removed
from refold.model.message import Message, Reasoning, Text, ToolCall, user
from tests.core.conversations import talk
from tests.core.stages.shown_messages import room_for, show_all


@pytest.mark.parametrize("handle", [handle_of(12), handle_of(12, 2)])
def test_handles_are_found_in_text(handle):
    assert re.findall(HANDLE_PATTERN, f"[… the rest is in {handle}]") == [handle]


def test_a_handle_means_the_same_part_with_and_without_thinking():
    thought, said, call = Reasoning("hm", "signed"), Text("well"), ToolCall("x", "look")
    original = Message("assistant", (thought, said, call))
    assert list(numbered_parts(original)) == [(1, said, 1), (2, call, 2)]
    assert list(numbered_parts(Message("assistant", (said, call)))) == [(0, said, 1), (1, call, 2)]
    assert part_of(original, 2) is call
    assert part_of(original, 3) is part_of(original, 0) is None


def test_a_message_of_one_part_needs_no_number():
    assert [number for _, _, number in numbered_parts(user("hi"))] == [None]


def test_a_stub_ends_in_its_handle():
    assert is_stub("[gone, see #m4]", "#m4")
    assert not is_stub("[gone, see #m44]", "#m4")
    assert not is_stub("see #m4", "#m4")


def test_what_is_pinned_and_the_newest_instruction_are_not_touched():
    shown = show_all(talk("s u s a"))
    room = structs.replace(room_for(100, pinned=[3]), newest=2)
    assert [room.may_touch(shown, index) for index in range(4)] == [True, True, False, False]


def test_taking_items_away_moves_what_is_protected():
    result = removed("test", show_all(talk("u a u a u"), protected=4), {0, 1}, "old")
    assert result.shown.protected == 2
    assert [item.seq for item in result.shown.items] == [2, 3, 4]
    assert [(edit.seq, edit.after, edit.handle) for edit in result.edits] == [(0, 0, "#m0"), (1, 0, "#m1")]
    assert [item.seq for item in result.removed] == [0, 1]
