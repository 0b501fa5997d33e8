"""What the systems that Refold unites got wrong at least once, case by case.

A test's docstring names its case. Cases that are proven next to what they are about are listed in `ELSEWHERE`, and a test
checks that they are still there.
"""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from refold.core.presets import PRESETS
from refold.core.verify import verify_window
from refold.model.dialect import ANTHROPIC, CHAT
from refold.model.errors import BudgetError, RecoverySpent
from refold.model.message import Message, Reasoning, Text, ToolCall, ToolResult, assistant, system, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Budget, Usage
from refold.model.window import FixedFields
from tests.core.preset_player import Quarter, ask, estimated, use_tool, work, written
from tests.engine.action_player import Played
from tests.engine.conversations import agent_turn, give_up

ROOT = Path(__file__).parents[2]
CASES = [
    *(f"B{number}" for number in range(15, 23)),
    "C24", "C27", "C31", "C32", "C33",
    *(f"D{number}" for number in range(38, 48)),
    *(f"E{number}" for number in range(49, 55)),
    *(f"G{number}" for number in range(71, 78)),
]  # fmt: skip
ELSEWHERE = {
    "B15": ["core/test_view_turns.py::test_safe_boundary_golden_table"],
    "B16": [
        "core/test_presets_picoclaw.py::test_a_single_huge_turn_keeps_its_question_and_says_what_is_gone"
    ],
    "B17": [
        "core/test_cut.py::test_extremes",
        "core/test_cut_keep.py::test_where_there_is_hardly_anything_to_cut",
    ],
    "B18": ["core/test_cut.py::test_tool_arguments_count"],
    "B19": [
        "core/test_cut.py::test_five_messages_are_a_split_turn_and_four_are_not",
        "core/test_presets_opal.py::test_a_cut_inside_a_long_turn_names_where_the_turn_began",
        "core/test_extractive_summary.py::test_a_split_turn_is_summed_up_in_two_parts",
    ],
    "B21": [
        "core/test_cut.py::test_by_message_compacts_from_the_message_that_passes_the_budget_and_at_least_one",
        "core/test_presets_lis.py::test_4_000_tokens_are_kept_by_message",
    ],
    "C31": [
        "core/test_presets_opal.py::test_files_add_up_over_all_cycles_and_a_changed_file_is_no_longer_only_read"
    ],
    "C32": [
        "core/test_presets_opal.py::test_no_heading_comes_twice_and_the_size_is_bounded_after_many_cycles",
        "core/test_extractive_summary.py::test_fifty_compactions_in_a_row_keep_rules_and_files_and_repeat_no_heading",
    ],
    "D38": [
        "core/test_presets_lis.py::test_more_than_80_percent_reported_compact_and_80_percent_do_not",
    ],
    "D39": ["core/test_presets_lis.py::test_without_a_report_our_own_count_decides"],
    "D41": [
        "core/test_measure_calibrate.py::test_what_cannot_be_a_measurement_is_left_out",
        "core/test_measure_calibrate.py::test_the_ratio_stays_in_range",
    ],
    "D42": ["tokens/test_catalog_windows.py::test_an_unknown_model_gets_a_default_and_a_warning"],
    "D43": ["core/test_triggers.py::test_a_ratio_out_of_range_is_refused"],
    "D44": ["core/test_measure_estimate.py::test_golden_values"],
    "D45": ["core/test_presets_opal.py::test_after_a_compaction_the_old_report_counts_no_more"],
    "D47": ["engine/test_actions.py::test_a_tiny_window_ends_in_a_clear_error"],
    "E50": [
        "engine/test_state_limits.py::test_what_was_too_much_without_a_number_is_remembered_for_the_turn"
    ],
    "E52": ["engine/test_state_limits.py::test_a_policy_that_is_off_does_nothing_at_all"],
    "G71": [
        "core/stages/test_tool_results_prune.py::test_the_prefix_up_to_the_boundary_never_changes_again",
        "core/test_presets_lis.py::test_the_prefix_stays_the_same_until_8_000_more_have_come",
    ],
    "G72": [
        "core/test_prompt_cache_breakpoints.py::test_what_the_client_took_is_not_there_for_others",
        "core/test_prompt_cache_breakpoints.py::test_only_the_tail_moves_between_two_compactions",
    ],
    "G73": ["core/stages/test_tool_results_prune.py::test_a_pruned_result_keeps_call_id_and_name"],
    "G74": ["core/test_presets_lis.py::test_keep_all_prunes_only_when_the_conversation_is_compacted"],
    "G75": ["core/stages/test_tool_results_prune.py::test_the_original_is_untouched"],
    "G77": [
        "engine/test_events_notices.py::test_pruning_is_told_in_two_lines",
        "engine/test_events_notices.py::test_a_compaction_is_told_with_what_the_window_is_made_of",
    ],
}
TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "too long"}}
every_preset = pytest.mark.parametrize("preset", PRESETS)


def test_every_case_has_a_test():
    here = Path(__file__).read_text(encoding="utf-8")
    missing = [case for case in CASES if case not in ELSEWHERE and f'"""Case {case}' not in here]
    gone = [name for names in ELSEWHERE.values() for name in names if not is_defined(name)]
    assert (missing, gone) == ([], [])


def is_defined(name: str) -> bool:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.walk(tree))


def talked(preset, turns: int = 12, *, window: int = 4_000, **settings):
    """A conversation of turns with a tool, in a window that holds a few of them."""
    talk = estimated(preset, window=window, **settings)
    for number in range(turns):
        question, call, result, answer = agent_turn(number, size=900)
        talk.add(question)
        talk.context()
        talk.add(call, result)
        talk.context()
        talk.add(answer)
    return talk


def said(window) -> str:
    return "\n".join(message.text for message in (*window.system, *window.summaries, *window.messages))


@every_preset
@pytest.mark.parametrize("turns", [0, 8])
def test_the_question_that_is_being_answered_is_never_replaced(preset, turns):
    """Case B20."""
    talk = talked(preset, turns)
    question = user("please look at invoice 7731 and at nothing else")
    talk.add(question)
    for number in range(30):
        use_tool(talk, f"{number} " + "some output\n" * 60)
        assert question in talk.context().messages


@every_preset
def test_what_one_summary_left_is_in_the_next_one_or_still_there(preset):
    """Case B22."""
    requests = []

    def remember(request, folded, frame):
        requests.append(request)
        text = f"up to {request.last}"
        return Summary(text, request.first, request.last, 10, "model", frame.policy.scope)

    talk = talked(preset, 60, summarise=remember)
    assert len(requests) > 2
    for number in range(len(talk.folded.branch)):
        is_shown = any(talk.folded.number(index) == number for index in range(len(talk.folded.shown)))
        assert is_shown or any(request.first <= number < request.last for request in requests)
    for earlier, later in pairwise(requests):
        left = {item.seq for item in earlier.kept if item.seq >= earlier.last}
        assert left <= {item.seq for item in (*later.items, *later.kept)} | dropped(talk)


def dropped(talk) -> set[int]:
    return {edit.seq for receipt in talk.receipts for edit in receipt.edits if not edit.after}


@every_preset
def test_the_summary_so_far_survives_every_failure_after_it(preset):
    """Case C24."""
    answers = iter(["The invoice of case 7f3a was paid."])

    def once(request, folded, frame):
        text = next(answers, None)
        return text and Summary(text, request.first, request.last, 20, "model", frame.policy.scope)

    talk = talked(preset, 30, summarise=once)
    assert written(talk)
    talk.add(user("and now?"))
    assert "case 7f3a was paid" in said(talk.context())
    assert "case 7f3a was paid" in said(talk.recover(400, TOO_LONG))


@every_preset
def test_a_summary_that_gains_nothing_is_refused_and_the_history_stays(preset):
    """Case C27."""

    def long_winded(request, folded, frame):
        return Summary("word " * 9_000, request.first, request.last, 9_000, "model", frame.policy.scope)

    talk = estimated(preset, window=20_000, summarise=long_winded)
    for number in range(5):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    before = talk.context()
    assert talk.compact() == before
    assert written(talk) == []


@every_preset
def test_compacting_what_is_compacted_changes_nothing(preset):
    """Case C33."""
    talk = estimated(preset, window=100_000)
    for number in range(30):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    talk.context()
    once = talk.compact()
    count = len(talk.receipts)
    assert [talk.compact() for _ in range(3)] == [once] * 3
    assert len(talk.receipts) == count


@every_preset
@pytest.mark.parametrize("reported", [150_000, 3])
def test_a_report_that_cannot_be_true_is_billed_and_nothing_else(preset, reported):
    """Case D40."""
    talk, other = (estimated(preset, window=100_000) for _ in range(2))
    for each, usage in ((talk, Usage(input=reported)), (other, None)):
        for number in range(3):
            each.add(*agent_turn(number))
        each.add(user("and now?"))
        each.context()
        each.record(usage)
        each.add(assistant("well"), user("and then?"))
    assert talk.context() == other.context()
    assert not talk.receipts
    assert talk.meter.billed.input == reported


class TestRoom:
    def test_an_output_that_fills_the_window_is_lowered_until_messages_have_a_quarter(self):
        """Case D42."""
        talk = estimated("opal", window=4_000, max_output=4_000)
        talk.add(user("hello"))
        assert talk.context().output == talk.output == 3_000 - talk.frame.cost.total.tokens

    def test_a_thinking_budget_that_fills_the_window_is_refused_at_once(self):
        """Case D42."""
        with pytest.raises(BudgetError, match="fill the whole window"):
            Played(
                FixedFields(CHAT),
                Budget(window=4_000, max_output=4_000, thinking=3_500),
                PRESETS["opal"],
                Quarter(),
            )

    @every_preset
    def test_an_output_that_leaves_little_does_not_compact_at_every_step(self, preset):
        """Case D42: an eighth of the window is left, and a compaction buys more than one call."""
        talk = talked(preset, 20, window=16_000, max_output=14_000)
        calls = sum(entry.message.role == "assistant" for entry in talk.folded.branch)
        assert 0 < len(written(talk)) <= calls * 2 // 3

    @every_preset
    def test_instructions_that_leave_no_room_are_an_error_that_says_what_to_do(self, preset):
        """Case D46."""
        fixed = FixedFields(CHAT, (system("rule " * 4_000),))
        with pytest.raises(BudgetError, match="system prompt") as caught:
            Played(fixed, Budget(window=4_000), PRESETS[preset], Quarter())
        assert "shorten" in caught.value.hint


@pytest.mark.feature("O14")
class TestOverflow:
    @every_preset
    def test_recovery_is_bounded_and_each_window_is_smaller(self, preset):
        """Case E49."""
        talk = talked(preset, 10, window=12_000)
        talk.add(user("and now?"))
        talk.context()
        sizes = [talk.measurement.content.tokens]
        for _ in range(2):
            talk.recover(400, TOO_LONG)
            sizes.append(talk.measurement.content.tokens)
        assert sizes == sorted(set(sizes), reverse=True)
        with pytest.raises(RecoverySpent) as caught:
            talk.recover(400, TOO_LONG)
        assert caught.value.hint
        assert talk.recall("#m0") == agent_turn(0)[0]

    @every_preset
    def test_where_nothing_can_shrink_it_says_so_and_loses_nothing(self, preset):
        """Case E49: a stall is not tried again and again."""
        talk = estimated(preset)
        talk.add(user("hi"))
        sent = talk.context()
        with pytest.raises(RecoverySpent):
            talk.recover(400, TOO_LONG)
        talk.add(assistant("hello"), user("and now?"))
        assert talk.context().messages == (*sent.messages, assistant("hello"), user("and now?"))

    @every_preset
    def test_the_output_is_taken_off_a_limit_that_was_stated(self, preset):
        """Case E51."""
        talk = talked(preset, 10, window=16_000, max_output=2_000)
        talk.add(user("and now?"))
        talk.context()
        stated = "This model's maximum context length is 4000 tokens. Please reduce the length of the prompt."
        talk.recover(400, {"error": {"message": stated, "code": "context_length_exceeded"}})
        assert talk.measurement.content.tokens <= 2_000

    @every_preset
    def test_the_question_stands_there_once_after_a_retry(self, preset):
        """Case E53."""
        talk = talked(preset, 10, window=12_000)
        question = user("is invoice 7731 paid?")
        talk.add(question)
        talk.context()
        for _ in range(2):
            window = talk.recover(400, TOO_LONG)
            assert window.messages.count(question) == 1
            assert said(window).count("invoice 7731") == 1

    @every_preset
    def test_the_active_turn_is_whole_after_a_retry(self, preset):
        """Case E54."""
        talk = talked(preset, 10, window=12_000)
        turn = agent_turn(99)[:3]
        talk.add(*turn)
        talk.context()
        assert talk.recover(400, TOO_LONG).messages[-3:] == tuple(turn)


@every_preset
def test_thinking_of_the_latest_reply_leaves_as_it_came(preset):
    """Case G76."""
    talk = estimated(preset, window=3_000, dialect=ANTHROPIC)
    for number in range(20):
        thought = Reasoning(f"thought {number}", f"signature {number}")
        call = ToolCall(f"c{number}", "look")
        reply = Message("assistant", (thought, Text("let me see"), call))
        talk.add(user(f"question {number}"), reply)
        talk.add(Message("tool", (ToolResult(call.id, (Text("line\n" * 150),)),)))
        window = talk.context()
        assert reply in window.messages
        assert verify_window(window) == ()
        talk.add(assistant("done"))
    assert talk.receipts


@every_preset
def test_messages_are_the_same_whatever_is_done_to_what_is_shown(preset):
    """Case G75, for everything that is done on its own."""
    talk = talked(preset, 30)
    originals = [message for number in range(30) for message in agent_turn(number, size=900)]
    assert talk.receipts
    assert talk.folded.branch.messages() == tuple(originals)


@every_preset
def test_without_any_summary_there_is_still_a_context(preset):
    """Case C24: where none can be written, something stands for what is gone."""
    talk = talked(preset, 30, summarise=give_up)
    work(talk, "x")
    ask(talk, "well?")
    talk.add(user("and now?"), assistant("", ToolCall("z", "look")), tool("z", "y"))
    window = talk.context()
    assert verify_window(window) == ()
    is_whole = len(window.messages) == len(talk.folded.branch)
    assert is_whole or window.summaries or window.block
