import pytest

from refold.core.stages.parts import COUNT_MARK
from refold.core.stages.tool_results import Mask
from refold.model.message import Message, Text, ToolCall, ToolResult, assistant, tool, user
from tests.core.conversations import FlatCounter
from tests.core.stages.shown_messages import lines, results_of, room_for, show_all, work

BIG = lines(1_000)


@pytest.mark.feature("C1")
def test_answered_results_become_excerpts_that_end_at_line_ends():
    shown = show_all(work(BIG))
    result = Mask().apply(shown, room_for(100))
    (text,) = results_of(result.shown)
    assert len(text) <= 400
    said = [line for line in text.splitlines() if line and "…" not in line]
    assert set(said) <= set(BIG.splitlines())
    assert said[-1] == BIG.splitlines()[-1]
    assert "[… the rest is in #m2]" in text
    assert [(edit.seq, edit.reason) for edit in result.edits] == [(2, "answered tool output")]


@pytest.mark.feature("C1")
@pytest.mark.parametrize("each, masked", [(174, False), (175, True)])
def test_masking_begins_when_the_window_is_80_percent_full(each, masked):
    """Four messages and 100 tokens of instructions in a window of 1,000."""
    counter = FlatCounter(each)
    shown = show_all(work(BIG), counter=counter)
    result = Mask().apply(shown, room_for(900, instructions=100, counter=counter))
    assert bool(result.edits) is masked


@pytest.mark.feature("C1")
def test_what_nobody_has_answered_stays():
    messages = [*work(BIG), *work(BIG, answer="")]
    masked = results_of(Mask().apply(show_all(messages), room_for(100)).shown)
    assert len(masked[0]) < 500
    assert masked[1] == BIG


@pytest.mark.feature("C1")
@pytest.mark.parametrize("said", ["", "  \n "])
def test_an_assistant_that_only_calls_has_not_answered(said):
    messages = [*work(BIG, answer=""), Message("assistant", (Text(said), ToolCall("z", "look")))]
    result = Mask().apply(show_all(messages), room_for(100))
    assert result.reason == "no tool result has been answered yet"


@pytest.mark.feature("C1")
def test_assistant_messages_are_untouched():
    messages = work(BIG, answer=BIG)
    assert Mask().apply(show_all(messages), room_for(100)).shown.messages[-1] == messages[-1]


@pytest.mark.feature("C1")
def test_the_room_is_shared_out_by_recency_above_a_floor_of_300():
    """Three results share 4 × 1,000 characters as 1 : 3 : 5, and none gets less than 300."""
    result = Mask(mark=COUNT_MARK).apply(show_all(work(*["x" * 9_000] * 3)), room_for(1_000))
    assert [len(text) for text in results_of(result.shown)] == [444, 1_333, 2_222]
    tiny = Mask(mark=COUNT_MARK).apply(show_all(work(*["x" * 10_000] * 3)), room_for(10))
    assert [len(text) for text in results_of(tiny.shown)] == [300, 300, 300]


@pytest.mark.feature("C1")
def test_the_excerpt_is_70_percent_head_and_30_percent_tail():
    text = "a" * 5_000 + "b" * 5_000
    (masked,) = results_of(Mask(mark=COUNT_MARK).apply(show_all(work(text)), room_for(0)).shown)
    assert "limit; #m2] …" in masked
    # The seed's mark has no handle, which leaves room for 175 and 74; two more are in "truncated" and "chars".
    assert (masked.count("a"), masked.count("b")) == (171 + 2, 73)


def test_headroom_is_added_to_what_is_shared():
    plain = Mask(mark=COUNT_MARK).apply(show_all(work("x" * 9_000)), room_for(1_000))
    more = Mask(mark=COUNT_MARK, headroom=0.025).apply(show_all(work("x" * 9_000)), room_for(1_000))
    assert [len(text) for text in (*results_of(plain.shown), *results_of(more.shown))] == [4_000, 4_100]


def test_short_results_stay():
    result = Mask().apply(show_all(work("short", "also short")), room_for(1))
    assert result.reason == "every answered tool result is short enough"


def test_each_result_of_a_joint_message_is_masked_and_named():
    calls = assistant("", ToolCall("a", "grep"), ToolCall("b", "ls"))
    results = Message("tool", (ToolResult("a", (Text(BIG),)), ToolResult("b", (Text(BIG),))))
    shown = Mask().apply(show_all([user("go"), calls, results, assistant("so")]), room_for(10)).shown
    first, second = results_of(shown)
    assert "#m2.1" in first
    assert "#m2.2" in second


def test_the_active_turn_and_pins_stay():
    messages = [*work(BIG), *work(BIG), *work(BIG)]
    shown = show_all(messages, protected=8)
    texts = results_of(Mask().apply(shown, room_for(10, pinned=[2])).shown)
    assert [text == BIG for text in texts] == [True, False, True]


def test_a_policy_may_mask_what_was_answered_in_the_active_turn_too():
    shown = show_all(work("x" * 2_000, "y" * 2_000), protected=0)
    assert not Mask().apply(shown, room_for(10)).edits
    result = Mask(active=True).apply(shown, room_for(10, pinned=[4]))
    assert [edit.seq for edit in result.edits] == [2]


def test_structured_results_are_masked_like_strings():
    parts = (Text(BIG), Text("the end"))
    messages = [user("go"), assistant("", ToolCall("a", "x")), Message("tool", (ToolResult("a", parts),))]
    (text,) = results_of(Mask().apply(show_all([*messages, assistant("so")]), room_for(10)).shown)
    assert text.endswith("the end")
    assert len(text) <= 300


def test_an_empty_list():
    assert not Mask().apply(show_all([]), room_for(10)).edits
    assert not Mask().apply(show_all([tool("x", "orphan")]), room_for(0)).edits
