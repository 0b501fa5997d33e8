from functools import partial

import msgspec
import pytest
from msgspec import structs

from refold.core.stages import tool_results
from refold.model.dialect import ANTHROPIC, CHAT
from refold.model.message import Message, Text, ToolCall, ToolResult, assistant, tool, user
from refold.wire.request import decode_messages, encode_message
from tests.core.stages.shown_messages import results_of, room_for, show_all, work

ROOM = room_for(1_000_000)
Prune = partial(tool_results.Prune, text="{name}")


def after(result, room=ROOM):
    """The room for the next pruning: the boundary is after the last message that was pruned."""
    last = max((edit.seq + 1 for edit in result.edits), default=room.pruned)
    return structs.replace(room, pruned=last)


def later(shown, *outputs):
    """The same messages, and more work after them."""
    size = len(shown.items)
    items = (structs.replace(item, seq=size + item.seq) for item in show_all(work(*outputs)).items)
    return type(shown)((*shown.items, *items), size + 2 * len(outputs) + 2)


def test_the_stub_names_the_tool_first_and_the_original():
    shown = show_all(work("x" * 9_000))
    assert results_of(tool_results.Prune().apply(shown, ROOM).shown) == ["look #m2"]


def test_a_result_that_reads_like_a_stub_is_pruned_like_any_other():
    shown = show_all(work("x" * 9_000, "look", "y" * 9_000))
    assert results_of(Prune(keep=0).apply(shown, ROOM).shown) == ["look"] * 3


def test_nothing_is_pruned_up_to_the_threshold():
    shown = show_all(work("x" * 4_000, "y" * 4_000))
    result = Prune().apply(shown, ROOM)
    assert result.shown is shown
    assert result.reason == "8,000 tokens of tool results since the last pruning; 8,000 may stay"


def test_all_but_the_newest_become_the_name_of_their_tool():
    shown = show_all(work("x" * 4_000, "y" * 2_001, "z" * 1_000, "w" * 1_000))
    result = Prune().apply(shown, ROOM)
    assert results_of(result.shown) == ["look", "look", "z" * 1_000, "w" * 1_000]
    assert [(edit.seq, edit.before, edit.after, edit.handle) for edit in result.edits] == [
        (2, 4_000, 4, "#m2"),
        (4, 2_001, 4, "#m4"),
    ]


def test_what_is_kept_ends_at_the_first_result_that_does_not_fit():
    shown = show_all(work("x" * 10, "y" * 200, "z" * 50))
    assert results_of(Prune(threshold=100, keep=100).apply(shown, ROOM).shown) == ["look", "look", "z" * 50]


def test_a_pruned_result_keeps_call_id_and_name():
    """Acceptance case G73."""
    wire = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "grep", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "grep", "content": "found " * 3_000, "extra": 1},
        {"role": "assistant", "content": "there"},
    ]
    shown = show_all(decode_messages(msgspec.json.encode(wire), CHAT))
    pruned = Prune().apply(shown, ROOM).shown.messages[2]
    assert msgspec.json.decode(encode_message(pruned, CHAT)) == {**wire[2], "content": "grep"}


def test_results_of_one_anthropic_message_are_pruned_one_by_one():
    calls = assistant("", ToolCall("a", "grep"), ToolCall("b", "ls"))
    results = Message(
        "tool", (ToolResult("a", (Text("x" * 9_000),), True), ToolResult("b", (Text("y" * 900),)))
    )
    shown = show_all([user("go"), calls, results, assistant("done")])
    result = Prune().apply(shown, room_for(1_000_000, dialect=ANTHROPIC))
    assert results_of(result.shown) == ["grep", "y" * 900]
    assert result.shown.messages[2].results[0].is_error


def test_a_tool_that_nobody_knows():
    shown = show_all([user("go"), tool("c1", "x" * 9_000), assistant("done")])
    assert results_of(Prune().apply(shown, ROOM).shown) == ["pruned"]


def test_the_prefix_up_to_the_boundary_never_changes_again():
    """Acceptance case G71: the boundary moves only forward, and rarely."""
    stage, outputs, room = Prune(threshold=1_000, keep=300), [], ROOM
    shown, rewrites = show_all(work(answer="")), 0
    for number in range(60):
        grown = work(*outputs, f"{number:03d}" * 33, answer="")
        fresh = show_all(grown).items[len(shown.items) :]
        prefix = shown.messages[: room.pruned]
        shown = type(shown)((*shown.items, *fresh), len(grown))
        outputs.append(f"{number:03d}" * 33)
        result = stage.apply(shown, room)
        rewrites += bool(result.edits)
        shown, room = result.shown, after(result, room)
        assert shown.messages[: len(prefix)] == prefix
    assert 5 <= rewrites <= 10
    assert room.pruned > 100


def test_later_output_arms_it_again():
    stage = Prune(threshold=1_000, keep=200)
    once = stage.apply(show_all(work("x" * 1_500, "y" * 100)), ROOM)
    grown, room = later(once.shown, "z" * 800), after(once)
    assert results_of(stage.apply(grown, room).shown) == ["look", "y" * 100, "z" * 800]
    more = later(grown, "w" * 150)
    assert results_of(stage.apply(more, room).shown) == ["look", "look", "look", "w" * 150]


def test_keep_all_prunes_only_when_forced():
    """Acceptance case G74."""
    shown = show_all(work("x" * 9_000, "y" * 100))
    assert Prune(policy="keep_all").apply(shown, ROOM).reason == "the policy keeps all tool results"
    forced = Prune(policy="keep_all", force=True).apply(shown, ROOM)
    assert results_of(forced.shown) == ["look", "y" * 100]


def test_keep_none_prunes_every_result_up_to_now():
    shown = show_all(work("x" * 9_000, "y" * 10))
    stage = Prune(policy="keep_none", rules={"look": "summarise"})
    once = stage.apply(shown, ROOM)
    assert results_of(once.shown) == ["look", "look"]
    grown = later(once.shown, "z" * 100)
    assert results_of(stage.apply(grown, after(once)).shown) == ["look", "look", "z" * 100]


@pytest.mark.parametrize("rule", ["summarise", "summarize"])
def test_tools_that_are_summarised_stay(rule):
    shown = show_all(work("x" * 9_000, name="report") + work("y" * 9_000))
    stage = Prune(rules={"report": rule})
    result = stage.apply(shown, ROOM)
    assert results_of(result.shown) == ["x" * 9_000, "look"]
    assert stage.apply(result.shown, after(result)).reason.startswith("0 tokens of tool results since")


def test_force_does_not_wait_for_the_threshold():
    shown = show_all(work("x" * 500, "y" * 100))
    assert results_of(Prune(keep=100, force=True).apply(shown, ROOM).shown) == ["look", "y" * 100]


def test_the_active_turn_and_pins_stay():
    shown = show_all(work("x" * 9_000, "y" * 9_000, "z" * 9_000), protected=5)
    result = Prune().apply(shown, room_for(1_000_000, pinned=[2]))
    assert results_of(result.shown) == ["x" * 9_000, "look", "z" * 9_000]


@pytest.mark.parametrize("protected, expected", [(4, ["look", "y" * 9_000]), (2, ["x" * 9_000, "y" * 9_000])])
def test_only_what_comes_before_the_active_turn_is_pruned(protected, expected):
    shown = show_all(work("x" * 9_000, "y" * 9_000), protected=protected)
    assert results_of(Prune().apply(shown, ROOM).shown) == expected


def test_a_stub_with_a_handle_is_made_only_where_it_is_shorter():
    stage = Prune(threshold=10, keep=0, text="[output of {name}: {handle}]")
    result = stage.apply(show_all(work("tiny", "x" * 100)), ROOM)
    assert results_of(result.shown) == ["tiny", "[output of look: #m4]"]


def test_the_original_is_untouched():
    """Acceptance case G75: pruning shows something else, it changes nothing."""
    messages = work("x" * 9_000)
    shown = show_all(messages)
    Prune(keep=0).apply(shown, ROOM)
    assert shown.messages == tuple(messages)
