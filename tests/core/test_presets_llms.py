import pytest

from refold.model.message import assistant, user
from refold.model.tokens import Usage
from tests.core.preset_player import ask, chat, tell, use_tool, written


def filled(reported: int):
    """A conversation after a call for which so much was reported."""
    talk = chat("llms")
    ask(talk, "q" * 2_000, reply="r" * 2_000)
    ask(talk, "q" * 1_000, reported=reported, reply="the last answer")
    return talk


@pytest.mark.feature("X7")
class TestFilter:
    def test_a_summary_as_assistant_and_the_last_two_messages_after_the_system_prompt(self):
        talk = filled(8_000)
        talk.add(user("and now?"))
        window = talk.context()
        (summary,) = written(talk)
        assert window.system == talk.frame.fixed.system
        lead = assistant(f"[Context Summary] #m0 to #m2\n\n{summary.text}")
        assert window.summaries == (lead, user("continue"))  # no two messages of the assistant in a row
        assert window.messages == (assistant("the last answer"), user("and now?"))

    @pytest.mark.parametrize("reported, is_compacted", [(7_999, False), (8_000, True)])
    def test_80_percent_are_enough(self, reported, is_compacted):
        talk = filled(reported)
        ask(talk, "and now?")
        assert bool(written(talk)) is is_compacted

    def test_it_is_noted_after_the_call_and_done_at_the_next_request(self):
        talk = filled(9_000)
        assert not talk.receipts
        assert len(talk.folded.shown) == 4
        ask(talk, "and now?")
        assert "9,000 tokens >= 80 %" in talk.receipts[-1].reason

    def test_a_reply_that_calls_tools_is_looked_at_too(self):
        talk = chat("llms")
        ask(talk, "q" * 4_000, reply="r" * 1_000)
        talk.add(user("go"))
        talk.context()
        talk.record(Usage(input=8_000))
        use_tool(talk, "x")
        assert not written(talk)
        window = talk.context()
        assert written(talk)
        assert [message.role for message in window.messages] == ["assistant", "user", "assistant", "tool"][1:]

    def test_once_is_enough_for_one_report(self):
        talk = filled(9_000)
        ask(talk, "and now?")
        ask(talk, "and then?")
        assert len(written(talk)) == 1


def test_without_a_summary_everything_is_sent_and_the_next_request_tries_again():
    tries = []

    def fail_once(request, folded, frame):
        tries.append(request)
        return None if len(tries) == 1 else tell(request, folded, frame)

    talk = chat("llms", summarise=fail_once)
    ask(talk, "q" * 5_000, reply="r" * 1_000)
    ask(talk, "next", reported=8_500)
    assert len(ask(talk, "and now?").messages) == 5
    assert written(talk) == []
    assert len(ask(talk, "and then?").messages) == 2
    assert len(tries) == 2


def test_everything_is_summarised_again_from_the_start():
    talk = chat("llms")
    while len(written(talk)) < 3:
        ask(talk, "q" * 1_000, reply="r" * 1_000)
    assert [summary.first for summary in written(talk)] == [0, 0, 0]
    assert len(talk.folded.summaries) == 1
