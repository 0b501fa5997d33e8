import re

import pytest

from refold.core.policy import UserBoundaryAfter
from refold.model.message import Message, ToolCall, assistant, tool, user
from refold.model.summary import Summary
from refold.model.tokens import Tokens, Usage
from tests.core.preset_player import ask, changed, chat, estimated, tell, use_tool, written
from tests.engine.conversations import agent_turn, give_up, size_of

TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "too long"}}


def filled(turns: int = 8, *, window: int = 10_000, **settings):
    """So many turns of 1,000 tokens."""
    talk = chat("opal", window=window, **settings)
    for _ in range(turns):
        ask(talk, "q" * 898, reply="r" * 100)
    return talk


@pytest.mark.feature("O2")
class TestTrigger:
    @pytest.mark.parametrize("size, is_compacted", [(990, False), (991, True)])
    def test_80_percent_at_the_start_of_a_turn_compact(self, size, is_compacted):
        talk = filled(7)
        talk.add(user("q" * size))
        talk.context()
        assert talk.folded.branch.tokens.tokens + len("be kind") + 1 == 7_009 + size
        assert bool(written(talk)) is is_compacted

    def test_only_the_start_of_a_turn_is_looked_at(self):
        talk = filled(7)
        talk.add(user("go"))
        use_tool(talk, "x" * 1_500)
        talk.context()
        assert not written(talk)
        ask(talk, "next")
        assert written(talk)

    def test_after_a_compaction_the_old_report_counts_no_more(self):
        """Acceptance case D45: one report, one compaction."""
        talk = filled(6)
        ask(talk, "next", reported=8_500)
        talk.add(user("and now?"))
        for _ in range(3):
            talk.context()
        assert len(written(talk)) == 1
        ask(talk, "more")
        assert len(written(talk)) == 1


@pytest.mark.feature("O2")
class TestKeep:
    def test_a_quarter_of_the_window_is_kept_from_a_user_message_on(self):
        talk = filled(8)
        talk.add(user("next"))
        window = talk.context()
        assert [message.role for message in window.messages] == ["user", "assistant"] * 3 + ["user"]

    def test_an_explicit_number_of_tokens(self):
        talk = chat(changed("opal", cut=UserBoundaryAfter(Tokens(3_500))))
        for _ in range(8):
            ask(talk, "q" * 898, reply="r" * 100)
        talk.add(user("next"))
        assert len(talk.context().messages) == 9

    def test_a_compaction_that_was_asked_for_keeps_20_000_or_what_it_is_told(self):
        talk = filled(60, window=100_000)
        talk.add(user("next"))
        assert len(talk.compact().messages) == 2 * 20 + 1
        assert talk.undo()
        assert len(talk.compact(keep=5_000).messages) == 2 * 5 + 1

    def test_an_overflow_keeps_a_fifth_of_the_window(self):
        talk = filled(7)
        talk.add(user("next"))
        talk.context()
        window = talk.recover(400, TOO_LONG)
        assert len(window.messages) == 2 * 2 + 1
        assert size_of(window) < 2_200


class TestSplitTurns:
    """Acceptance case B19."""

    def requests(self, calls: int):
        asked = []

        def summarise(request, folded, frame):
            asked.append(request)
            return tell(request, folded, frame)

        talk = chat("opal", summarise=summarise)
        ask(talk, "first question")
        talk.add(user("please look"))
        for _ in range(calls):
            use_tool(talk, "x" * (10_500 // calls))
        talk.context()
        return asked

    @pytest.mark.feature("O5")
    def test_a_cut_inside_a_long_turn_names_where_the_turn_began(self):
        (request,) = self.requests(6)
        assert request.turn_from == 2
        assert [item.message.role for item in request.kept[:2]] == ["user", "assistant"]
        assert request.last - request.turn_from >= 5

    @pytest.mark.feature("O5")
    def test_a_short_beginning_is_a_clean_cut(self):
        (request,) = self.requests(2)
        assert request.turn_from is None


@pytest.mark.feature("O10")
def test_the_summary_is_a_user_message_that_says_what_it_is():
    talk = filled(8)
    talk.add(user("next"))
    (lead,) = talk.context().summaries
    (summary,) = written(talk)
    assert lead == user(
        f"[Conversation summary — older messages were compacted: #m0 to #m9]\n\n{summary.text}"
    )
    assert (summary.first, summary.last) == (0, 10)


def test_the_next_summary_takes_the_place_of_the_one_before():
    talk = filled(8)
    while len(written(talk)) < 3:
        ask(talk, "q" * 898, reply="r" * 100)
    first, _, third = written(talk)
    assert third.first == 0
    assert talk.folded.summaries == (third,)
    assert first.text not in talk.folded.lead.messages[0].text


@pytest.mark.feature("O13")
@pytest.mark.parametrize("reported, is_compacted", [(9_000, False), (10_001, True)])
def test_more_input_than_the_window_holds_is_compacted_before_the_next_call(reported, is_compacted):
    talk = chat(changed("opal", measure="reported"))
    for _ in range(5):
        ask(talk, "q" * 898, reply="r" * 100)
    talk.add(user("go"))
    use_tool(talk, "x")
    talk.record(Usage(input=reported))
    use_tool(talk, "y")
    talk.context()
    assert bool(written(talk)) is is_compacted


class TestWithoutAModel:
    """What is written where the summariser has failed."""

    def after(self, cycles: int, summarise=give_up):
        talk = estimated("opal", window=4_000, summarise=summarise)
        number = 0
        while len(written(talk)) < cycles:
            talk.add(*agent_turn(number, size=1_000))
            talk.add(user(f"next {number}"))
            talk.context()
            talk.add(Message("assistant", (ToolCall(f"e{number}", "edit_file", path(number)),)))
            talk.add(tool(f"e{number}", "ok"), assistant("done"))
            number += 1
        return talk

    @pytest.mark.feature("O7")
    def test_it_says_who_said_how_much_and_which_files_and_keeps_the_summary_before(self):
        """Acceptance case C24: a failure does not cost what the summary before it said."""
        answers = iter(["What the model wrote."])

        def first_only(request, folded, frame):
            text = next(answers, None)
            return text and Summary(text, request.first, request.last, 20, "model", "cumulative")

        _, summary = written(self.after(2, first_only))
        assert summary.kind == "mechanical"
        assert re.match(r"\[Compacted messages: \d+ user, \d+ assistant, \d+ tool\]", summary.own_text)
        assert summary.text.startswith("Task #m0: question 0 ")
        assert "What the model wrote." in summary.text
        assert "src/f0.py" in summary.text

    @pytest.mark.feature("O7", "O11")
    def test_files_add_up_over_all_cycles_and_a_changed_file_is_no_longer_only_read(self):
        """Acceptance case C31."""
        talk = self.after(3)
        files = talk.folded.ledger
        count = len({*files.read, *files.modified})
        assert files.modified == tuple(f"src/f{number}.py" for number in range(0, count, 2))
        assert files.read == tuple(f"src/f{number}.py" for number in range(1, count, 2))
        assert set(written(talk)[-1].modified) <= set(files.modified)
        assert "src/f0.py" in written(talk)[-1].text

    @pytest.mark.feature("O7")
    def test_no_heading_comes_twice_and_the_size_is_bounded_after_many_cycles(self):
        """Acceptance case C32."""
        talk = self.after(20)
        for summary in written(talk):
            headings = [line for line in summary.text.splitlines() if line.startswith("## ")]
            assert len(headings) == len(set(headings))
            assert summary.text.count("[Compacted messages:") == 1
            assert summary.tokens <= 0.25 * 4_000

    @pytest.mark.feature("O10")
    def test_a_summary_knows_its_span_and_the_files(self):
        talk = self.after(2)
        first, second = written(talk)
        assert (first.first, second.first) == (0, 0)
        assert 0 < first.last < second.last
        assert (first.kind, first.modified[0], first.read[0]) == ("mechanical", "src/f0.py", "src/f1.py")


def path(number: int) -> str:
    """Every other file that was read is changed."""
    return f'{{"path": "src/f{number - number % 2}.py"}}'
