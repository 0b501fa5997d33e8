import pytest

from refold.core.stages import Prune
from refold.model.dialect import ANTHROPIC
from refold.model.message import assistant, user
from refold.model.tokens import Usage
from tests.core.preset_player import ask, changed, chat, results, use_tool, work, written
from tests.engine.conversations import agent_turn, give_up


def filled(usage: Usage, *, size: int = 5_000):
    """A conversation after a call for which so much was reported."""
    talk = chat("lis")
    talk.add(user("x" * size))
    talk.context()
    talk.record(usage)
    talk.add(assistant("well"))
    return talk


@pytest.mark.parametrize(
    "usage, is_compacted",
    [
        (Usage(input=8_000), False),
        (Usage(input=8_001), True),
        (Usage(input=1, cache_read=8_000), True),
        (Usage(input=1, cache_read=4_000, cache_write=3_999), False),
    ],
)
def test_more_than_80_percent_reported_compact_and_80_percent_do_not(usage, is_compacted):
    """Acceptance case D38: what came from a cache counts, and counts once."""
    assert bool(written(filled(usage))) is is_compacted


def test_what_we_count_ourselves_does_not_matter_once_something_is_reported():
    assert not written(filled(Usage(input=7_999), size=9_500))
    assert written(filled(Usage(input=8_500), size=5_000))


def test_without_a_report_our_own_count_decides():
    """Acceptance case D39: nothing reported is not 0 %."""
    for nothing in (None, Usage()):
        talk = chat("lis")
        talk.add(user("x" * 8_200))
        talk.context()
        talk.record(nothing)
        talk.add(assistant("well"))
        assert written(talk)


def results_by_name(messages):
    """The texts of the results; those that were pruned without their handles."""
    return [text.partition(" #m")[0] for text in results(messages)]


@pytest.mark.feature("L7")
class TestPruning:
    def test_more_than_8_000_tokens_of_results_become_names_but_for_the_newest_2_000(self):
        talk = chat("lis", window=100_000)
        work(talk, "a" * 4_000, "b" * 2_500, "c" * 1_490)
        assert not talk.receipts
        work(talk, "d" * 500)
        shown = results_by_name(talk.folded.shown.messages())
        assert shown == ["read_file", "read_file", "c" * 1_490, "d" * 500]
        assert results(talk.folded.shown.messages())[0] == "read_file #m2"
        assert talk.receipts[-1].decision == "reduce"
        assert not written(talk)
        assert talk.recall("#m2").results[0].text == "a" * 4_000

    def test_the_prefix_stays_the_same_until_8_000_more_have_come(self):
        """Acceptance case G71, from call to call."""
        talk = chat("lis", window=100_000)
        sent, rewritten = (), 0
        for number in range(30):
            work(talk, f"{number:03d}" * 300)
            talk.add(user("next"))
            window = talk.context().messages
            talk.add(assistant("well"))
            if window[: len(sent)] != sent:
                rewritten += 1
            sent = window
        assert rewritten == len(talk.receipts)
        assert 2 <= rewritten <= 4

    def test_a_turn_that_is_running_is_not_pruned(self):
        talk = chat("lis", window=100_000)
        talk.add(user("please look"))
        for _ in range(5):
            use_tool(talk, "x" * 3_000)
        assert results_by_name(talk.context().messages) == ["x" * 3_000] * 5
        talk.add(assistant("done"))
        assert results_by_name(talk.folded.shown.messages()) == ["read_file"] * 5


@pytest.mark.feature("L8")
class TestPolicyForToolOutput:
    def test_keep_all_prunes_only_when_the_conversation_is_compacted(self):
        """Acceptance case G74."""
        policy = changed("lis", stages=(Prune(policy="keep_all"),))
        talk = chat(policy, window=20_000, summarise=give_up)
        work(talk, "a" * 9_000)
        assert results_by_name(talk.folded.shown.messages()) == ["a" * 9_000]
        work(talk, "b" * 8_000)
        assert results_by_name(talk.folded.shown.messages()) == ["read_file", "read_file"]

    def test_keep_none_keeps_no_result_when_it_prunes(self):
        talk = chat(changed("lis", stages=(Prune(policy="keep_none"),)), window=100_000)
        work(talk, "a" * 8_000, "b" * 100)
        assert results_by_name(talk.folded.shown.messages()) == ["read_file", "read_file"]

    def test_a_tool_that_is_summarised_stays_whole_until_its_summary_is_written(self):
        requests = []

        def summarise(request, folded, frame):
            requests.append(request)

        policy = changed("lis", stages=(Prune(rules={"read_book": "summarise"}),))
        talk = chat(policy, window=20_000, summarise=summarise)
        work(talk, "a" * 4_000)
        work(talk, "b" * 9_000, name="read_book")
        work(talk, "c" * 8_000)
        assert results_by_name(item.message for item in requests[0].items) == ["read_file", "b" * 9_000]


def test_4_000_tokens_are_kept_by_message():
    talk = chat("lis", window=20_000)
    for _ in range(30):
        ask(talk, "q" * 500, reply="r" * 79)
        if written(talk):
            break
    kept = talk.folded.shown.tokens.tokens
    assert 4_000 - 501 < kept <= 4_000


def test_in_a_small_window_half_of_the_room_is_kept():
    talk = chat("lis", window=4_000)
    for _ in range(8):
        ask(talk, "q" * 400, reply="r" * 79)
        if written(talk):
            break
    assert 1_400 < talk.folded.shown.tokens.tokens <= 2_000


@pytest.mark.feature("L4")
class TestLineage:
    def talk(self, compactions: int):
        talk = chat("lis", window=6_000)
        while len(written(talk)) < compactions:
            ask(talk, "q" * 500, reply="r" * 79)
        return talk

    def test_each_summary_stands_for_its_own_messages_and_none_is_merged(self):
        first, second, third = written(self.talk(3))
        assert (first.first, first.last) == (0, second.first)
        assert second.last == third.first
        assert "from 0" not in third.text

    def test_the_newest_is_shown_whole_and_those_before_it_as_a_line_each(self):
        talk = self.talk(3)
        first, second, third = written(talk)
        talk.add(user("and now?"))
        (lead,) = talk.context().summaries
        assert lead.role == "assistant"
        opening, parent, heading, *lines = lead.text.splitlines()
        assert opening.startswith("Here is context from the previous conversation session (#m")
        assert parent == third.text
        assert lines == [f"#s1 {second.text} …", f"#s0 {first.text} …"]
        assert heading == "## Before that"
        assert talk.recall("#s0") == first

    def test_lines_about_ancestors_stay_within_their_share(self):
        talk = self.talk(12)
        talk.add(user("and now?"))
        (lead,) = talk.context().summaries
        lines = [line for line in lead.text.splitlines() if line.startswith("#s")]
        assert lines[0].startswith("#s10 ")
        assert 0 < sum(map(len, lines)) <= 0.03 * 6_000
        assert [talk.recall(f"#s{number}") for number in range(12)] == written(talk)


def test_where_the_user_must_speak_first_a_line_stands_before_the_summary():
    talk = chat("lis", window=6_000, dialect=ANTHROPIC)
    while not written(talk):
        talk.add(*agent_turn(len(talk.folded.branch)))
    talk.add(user("and now?"))
    bridge, lead, *between = talk.context().summaries
    assert (bridge.role, lead.role) == ("user", "assistant")
    assert [one.role for one in between] in ([], ["user"])


def test_without_a_summary_the_history_stays_and_it_is_tried_again():
    tries = []

    def fail(request, folded, frame):
        tries.append(request)

    talk = chat("lis", summarise=fail)
    for _ in range(2):
        ask(talk, "x" * 4_100)
    ask(talk, "and?")
    assert len(tries) == 2
    assert len(talk.folded.shown) == 6
    assert talk.folded.summaries == ()
