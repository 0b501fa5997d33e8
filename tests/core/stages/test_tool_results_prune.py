import msgspec
import pytest

from refold.core.stages.tool_results import Prune
from refold.model.dialect import ANTHROPIC, CHAT
from refold.model.message import Message, Text, ToolCall, ToolResult, assistant, tool, user
from refold.wire.message import decode_messages, encode_message
from tests.core.stages.shown_messages import results_of, room_for, show_all, work

ROOM = room_for(1_000_000)


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
    stage, outputs = Prune(threshold=1_000, keep=300), []
    shown, boundary, rewrites = show_all(work(answer="")), 0, 0
    for number in range(60):
        grown = work(*outputs, f"{number:03d}" * 33, answer="")
        fresh = show_all(grown).items[len(shown.items) :]
        prefix = shown.messages[:boundary]
        shown = type(shown)((*shown.items, *fresh), len(grown))
        outputs.append(f"{number:03d}" * 33)
        result = stage.apply(shown, ROOM)
        rewrites += bool(result.edits)
        shown = result.shown
        assert shown.messages[: len(prefix)] == prefix
        assert stage.boundary(shown) >= boundary
        boundary = stage.boundary(shown)
    assert 5 <= rewrites <= 10
    assert boundary > 100


def test_later_output_arms_it_again():
    stage = Prune(threshold=1_000, keep=200)
    once = stage.apply(show_all(work("x" * 1_500, "y" * 100)), ROOM).shown
    grown = type(once)((*once.items, *show_all(work("z" * 800)).items), len(once.items) + 4)
    assert results_of(stage.apply(grown, ROOM).shown) == ["look", "y" * 100, "z" * 800]
    more = type(once)((*grown.items, *show_all(work("w" * 150)).items), len(grown.items) + 4)
    assert results_of(stage.apply(more, ROOM).shown) == ["look", "look", "look", "w" * 150]


def test_keep_all_prunes_only_when_forced():
    """Acceptance case G74."""
    shown = show_all(work("x" * 9_000, "y" * 100))
    assert Prune(policy="keep_all").apply(shown, ROOM).reason == "the policy keeps all tool results"
    forced = Prune(policy="keep_all", force=True).apply(shown, ROOM)
    assert results_of(forced.shown) == ["look", "y" * 100]


def test_keep_none_prunes_every_result_up_to_now():
    shown = show_all(work("x" * 9_000, "y" * 10))
    stage = Prune(policy="keep_none", rules={"look": "summarise"})
    once = stage.apply(shown, ROOM).shown
    assert results_of(once) == ["look", "look"]
    grown = type(once)((*once.items, *show_all(work("z" * 100)).items), len(once.items) + 4)
    assert results_of(stage.apply(grown, ROOM).shown) == ["look", "look", "z" * 100]


@pytest.mark.parametrize("rule", ["summarise", "summarize"])
def test_tools_that_are_summarised_stay(rule):
    shown = show_all(work("x" * 9_000, name="report") + work("y" * 9_000))
    stage = Prune(rules={"report": rule})
    result = stage.apply(shown, ROOM)
    assert results_of(result.shown) == ["x" * 9_000, "look"]
    assert stage.apply(result.shown, ROOM).reason.startswith("0 tokens of tool results since")


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
