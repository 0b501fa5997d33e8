import msgspec
import pytest

from refold.core.policy import AllOf, LastTurns, MessagesToRefine, RemainingTokens, TokenRatio
from refold.core.presets import ACROSS_RUNS, CLEAN_SLATE, LIBRECHAT, WITHOUT_SUMMARIES
from refold.core.stages import Trim
from refold.model.message import Message, ToolCall, assistant, tool, user
from refold.model.tokens import Usage
from tests.core.preset_player import ask, changed, estimated, results, use_tool, work, written

LINES = "".join(f"line {number:05d} of the output\n" for number in range(2_000))


def output(tokens: int) -> str:
    """So many tokens of a tool's output, in lines."""
    return LINES[: 4 * tokens]


def pressed(tokens: int):
    """Three answered results in a window of 10,000, of which 5 % are reserved, and a question: so many tokens in all."""
    talk = estimated(LIBRECHAT, window=10_000)
    for number in range(3):
        call = ToolCall(f"c{number}", "look")
        talk.add(user("look"), Message("assistant", (call,)), tool(call.id, output(2_200)), assistant("so"))
    free = tokens - talk.measurement.content.tokens
    talk.add(user("q" * 4 * (free - 4)))
    assert talk.measurement.content.tokens == tokens
    return talk


@pytest.mark.feature("C1")
class TestMasking:
    @pytest.mark.parametrize("tokens, is_masked", [(7_599, False), (7_600, True)])
    def test_it_begins_at_80_percent_of_what_the_reserve_leaves(self, tokens, is_masked):
        talk = pressed(tokens)
        talk.context()
        assert bool(talk.receipts) is is_masked

    def test_answered_results_are_shown_as_excerpts_the_newer_the_longer(self):
        talk = pressed(8_000)
        first, second, third = results(talk.context().messages)
        assert " chars exceeded " in first
        assert first.startswith("line 00000")
        assert len(first) < len(second) <= len(third)
        assert third == output(2_200)
        assert not written(talk)

    def test_what_was_answered_in_the_same_run_is_masked_too(self):
        talk = estimated(LIBRECHAT, window=10_000)
        talk.add(user("look"))
        for _ in range(4):
            use_tool(talk, output(2_000), say="I see")
        assert " chars exceeded " in results(talk.context().messages)[0]

    def test_what_nobody_has_answered_stays_whole(self):
        talk = estimated(LIBRECHAT, window=10_000)
        work(talk, output(6_000))
        talk.add(user("and this?"))
        use_tool(talk, output(1_500))
        assert results(talk.context().messages)[-1] == output(1_500)


@pytest.mark.feature("C5")
class TestFit:
    def test_no_result_takes_more_than_30_percent_of_what_instructions_leave(self):
        talk = estimated(LIBRECHAT, window=10_000)
        talk.add(user("look"))
        use_tool(talk, output(9_000))
        use_tool(talk, output(900))
        shown, newest = results(talk.context().messages)
        assert newest == output(900)
        assert len(shown) <= 4 * int(0.3 * 9_500)
        assert "exceeded" in shown

    def test_an_input_that_is_cut_stays_an_object(self):
        talk = estimated(LIBRECHAT, window=10_000)
        arguments = msgspec.json.encode({"path": "a.py", "text": output(8_500)}).decode()
        talk.add(
            user("write"), Message("assistant", (ToolCall("c", "write_file", arguments),)), tool("c", "ok")
        )
        (call,) = talk.context().messages[1].calls
        cut = msgspec.json.decode(call.arguments)
        assert set(cut) == {"_truncated", "_originalChars"}
        assert cut["_originalChars"] == len(arguments)
        assert len(call.arguments) <= 4 * int(0.15 * 9_500)


def overflowing(turns: int = 8, policy=LIBRECHAT, **settings):
    """Turns of 1,500 tokens of talk, which no masking makes shorter, until they do not fit."""
    talk = estimated(policy, window=10_000, **settings)
    for number in range(turns):
        ask(talk, f"question {number} " + "q" * 3_000, reply=f"answer {number} " + "r" * 2_900)
    return talk


class TestCompaction:
    @pytest.mark.feature("C6", "C7")
    def test_nothing_is_summarised_before_something_does_not_fit(self):
        talk = overflowing(6)
        talk.add(user("and now?"))
        talk.context()
        assert not written(talk)
        ask(talk, "q" * 3_000)
        assert written(talk)

    @pytest.mark.feature("C8")
    def test_the_last_two_turns_stay_and_all_the_others_are_summarised(self):
        talk = overflowing(6)
        talk.add(user("q" * 3_000))
        window = talk.context()
        (summary,) = written(talk)
        assert [message.text[:10] for message in window.messages] == ["question 5", "answer 5 r", "q" * 10]
        assert (summary.first, summary.last) == (0, 10)

    @pytest.mark.feature("C8")
    def test_a_clean_slate_leaves_nothing_but_the_question(self):
        talk = overflowing(6, CLEAN_SLATE)
        talk.add(user("q" * 3_000))
        assert talk.context().messages == (user("q" * 3_000),)

    @pytest.mark.feature("C8")
    def test_the_second_summary_covers_everything_from_the_start_again(self):
        talk = overflowing(16)
        assert len(written(talk)) > 1
        assert {summary.first for summary in written(talk)} == {0}
        assert len(talk.folded.summaries) == 1

    @pytest.mark.feature("C7")
    def test_an_unchanged_history_is_not_summarised_again(self):
        talk = overflowing(6)
        talk.add(user("q" * 3_000))
        for _ in range(3):
            talk.context()
            talk.compact()
        assert len(written(talk)) == 1

    @pytest.mark.feature("C7")
    @pytest.mark.parametrize("trigger", [TokenRatio(0.5), RemainingTokens(9_000), MessagesToRefine(1)])
    def test_every_type_of_trigger_waits_until_something_does_not_fit(self, trigger):
        both = {"before_call": AllOf((MessagesToRefine(1), trigger))}
        talk = overflowing(6, changed("librechat", triggers=both))
        assert not written(talk)
        talk.add(user("q" * 3_000))
        talk.context()
        assert written(talk)

    def test_a_single_turn_that_fits_is_never_summarised(self):
        """Acceptance case B20: what the user pasted stays."""
        talk = estimated(LIBRECHAT, window=10_000)
        talk.add(user("p" * 4 * 5_000))
        for _ in range(4):
            use_tool(talk, output(1_000))
        window = talk.context()
        assert window.messages[0] == user("p" * 4 * 5_000)
        assert not written(talk)

    @pytest.mark.feature("C8")
    def test_two_turns_that_are_too_large_are_one(self):
        talk = overflowing(4)
        ask(talk, "q" * 14_000)
        talk.add(user("q" * 9_000))
        assert talk.context().messages == (user("q" * 9_000),)


@pytest.mark.feature("C9")
class TestPlacement:
    def test_in_a_run_the_summary_is_a_user_message_in_every_later_call(self):
        talk = overflowing(6)
        talk.add(user("q" * 3_000))
        (lead,) = talk.context().summaries
        (summary,) = written(talk)
        assert lead.role == "user"
        assert lead.text.startswith(
            f"[Earlier messages #m0 to #m9]\n<summary>\n{summary.text}\n</summary>\n\n"
        )
        assert "Pick up where you left off" in lead.text
        use_tool(talk, "x")
        assert talk.context().summaries == (lead,)
        talk.add(assistant("done"), user("next"))
        assert talk.context().summaries == (lead,)

    def test_across_runs_it_stands_in_the_system_prompt_and_is_no_instruction(self):
        talk = overflowing(6, ACROSS_RUNS)
        talk.add(user("q" * 3_000))
        before = talk.measurement.instructions
        window = talk.context()
        (summary,) = written(talk)
        assert (
            window.system[0].text
            == f"be kind\n\n## Conversation Summary (#m0 to #m9)\n\n<summary>\n{summary.text}\n</summary>"
        )
        assert window.summaries == ()
        assert talk.measurement.instructions == before
        assert talk.measurement.summary.tokens > 0


class TestWithoutSummaries:
    @pytest.mark.feature("C13")
    def test_the_fuller_the_window_the_less_is_left_of_every_result(self):
        sizes = []
        for tokens in (8_400, 8_900, 9_450):
            talk = estimated(WITHOUT_SUMMARIES, window=10_000)
            talk.add(user("look"))
            for _ in range(3):
                use_tool(talk, output(tokens // 3 - 30))
            sizes.append(sum(map(len, results(talk.context().messages))))
        assert sizes[0] > sizes[1] > sizes[2]

    @pytest.mark.feature("C6", "C13")
    def test_what_still_does_not_fit_is_dropped_with_a_note(self):
        talk = overflowing(9, WITHOUT_SUMMARIES)
        talk.add(user("and now?"))
        window = talk.context()
        assert not written(talk)
        assert "No longer shown: #m0 to #m" in window.summaries[0].text
        assert window.messages[-1] == user("and now?")

    @pytest.mark.feature("C14")
    def test_old_and_large_results_are_cleared_by_position(self):
        stages = (Trim(min_chars=10_000), *WITHOUT_SUMMARIES.stages)
        policy = changed("librechat", cut=None, triggers={}, stages=stages)
        talk = estimated(policy, window=36_000)
        for number in range(10):
            work(talk, output(3_000 + number))
        talk.add(user("and now?"))
        shown = results(talk.context().messages)
        assert shown[0] == "[Old tool result content cleared] read_file #m2"
        assert shown[-1] == output(3_009)


class TestCalibration:
    def test_a_provider_that_counts_more_leaves_less_room(self):
        """One of our tokens is one and a half of the provider's: what fits by our count does not by its own."""
        talk = overflowing(4)
        talk.add(user("and now?"))
        talk.context()
        talk.record(Usage(input=round(1.5 * talk.measurement.content.tokens)))
        talk.add(assistant("well"))
        assert talk.calibration.ratio == pytest.approx(1.5, abs=0.01)
        ask(talk, "q" * 3_000)
        assert written(talk)

    def test_the_reserve_is_5_percent(self):
        assert estimated(LIBRECHAT, window=10_000).measurement.reserve == 500
        talk = estimated(LIBRECHAT, window=10_000, reserve=changed("librechat", cut=LastTurns(2)).reserve)
        assert talk.measurement.reserve == 500
