"""Refusals: what is tried next, how often, and what is remembered of it."""

import pytest

from refold.core.extractive_summary import summarise
from refold.core.presets import PRESETS
from refold.model.dialect import CHAT
from refold.model.errors import InvalidWindow, Overflow, RecoverySpent
from refold.model.message import assistant, tool, user
from refold.model.tokens import Usage
from tests.engine.conversations import agent_turn, memory, size_of

TOO_LONG = {"error": {"message": "prompt is too long: 2500 tokens > 2000 maximum"}}


class TestRecovery:
    def full(self):
        talk = memory("opal", window=3_600)
        for number in range(10):
            talk.add(*agent_turn(number))
        talk.add(user("and now?"))
        return talk

    def test_a_refusal_leads_to_a_smaller_window(self):
        talk = self.full()
        first = talk.context()
        second = talk.recover(400, TOO_LONG)
        assert size_of(second) <= 1_900
        assert size_of(second) < size_of(first)

    def test_at_most_two_and_each_strictly_smaller(self):
        talk = memory("opal", window=20_000)
        for number in range(40):
            talk.add(*agent_turn(number))
        talk.add(user("and now?"))
        sizes = [size_of(talk.context())]
        sizes += [
            size_of(talk.recover(400, {"error": {"code": "context_length_exceeded"}})) for _ in range(2)
        ]
        assert sizes == sorted(set(sizes), reverse=True)
        with pytest.raises(RecoverySpent):
            talk.recover(400, TOO_LONG)

    def test_a_reply_gives_new_tries(self):
        talk = self.full()
        talk.context()
        talk.record(Usage(input=size_of(talk.recover(400, TOO_LONG))))
        talk.add(assistant("well"), *agent_turn(20), user("more"))
        talk.context()
        assert talk.recover(400, {"error": {"code": "context_length_exceeded"}})

    def test_other_refusals_are_not_overflow(self):
        talk = self.full()
        talk.context()
        with pytest.raises(RecoverySpent):
            talk.recover(429, {"error": {"message": "Rate limit reached"}})

    @pytest.mark.feature("O12")
    def test_what_was_found_in_a_refusal_before_counts_like_the_refusal(self):
        talk = self.full()
        talk.context()
        found = Overflow("input_too_long", limit=2_000, prompt=2_500)
        assert talk.recover(None, found) == self.recovered()
        with pytest.raises(RecoverySpent):
            talk.recover(None, Overflow("rate_limit"))

    def recovered(self):
        talk = self.full()
        talk.context()
        return talk.recover(400, TOO_LONG)

    @pytest.mark.feature("O12")
    def test_a_refusal_without_a_word_is_an_overflow_where_the_window_was_nearly_full(self):
        talk = memory("refold", window=4_000)
        while talk.measurement.content.tokens < 3_300:
            talk.add(*agent_turn(len(talk.folded.branch)))
        talk.add(user("and now?"))
        first = talk.context()
        assert size_of(talk.recover(400, b"")) < size_of(first)
        roomy = memory("refold", window=40_000)
        roomy.add(*agent_turn(0), user("and now?"))
        roomy.context()
        with pytest.raises(RecoverySpent):
            roomy.recover(400, b"")

    def test_a_policy_that_is_off_does_nothing_at_all(self):
        from msgspec import structs

        talk = memory(structs.replace(PRESETS["opal"], enabled=False), window=3_000, dialect=CHAT)
        for number in range(20):
            talk.add(*agent_turn(number))
        talk.add(user("and now?"))
        assert len(talk.context().messages) == 81
        with pytest.raises(RecoverySpent):
            talk.recover(400, TOO_LONG)


def test_a_window_that_was_stated_holds_from_then_on():
    talk = memory("refold", window=20_000, source="catalogue", summarise=summarise)
    for number in range(12):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    talk.context()
    talk.recover(400, TOO_LONG)
    talk.add(assistant("done"))
    for number in range(100, 112):
        talk.add(*agent_turn(number))
    talk.add(user("more"))
    assert size_of(talk.context()) <= 2_000


def test_what_was_too_much_without_a_number_is_remembered_for_the_turn():
    talk = memory("refold", window=20_000, summarise=summarise)
    for number in range(12):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    refused = size_of(talk.context())
    assert size_of(talk.recover(400, {"error": {"code": "context_length_exceeded"}})) <= 0.7 * refused
    sizes = []
    for number in range(100, 130):
        talk.add(*agent_turn(number)[1:3])
        sizes.append(size_of(talk.context()))
    assert 0.7 * refused < max(sizes) <= 0.95 * refused
    for number in range(130, 150):
        talk.add(*agent_turn(number))
    talk.add(user("and now?"))
    assert size_of(talk.context()) > refused


@pytest.mark.parametrize("messages", [[], [tool("nobody", "x")]], ids=["empty", "mended away"])
def test_nothing_to_compact_is_a_clear_error(messages):
    talk = memory("refold", window=4_000)
    talk.add(*messages)
    with pytest.raises(InvalidWindow):
        talk.compact()
    with pytest.raises(RecoverySpent):
        talk.recover(400, TOO_LONG)
    talk.add(user("hello"), assistant("well"), user("and now?"))
    assert len(talk.context().messages) == 3


def test_a_reply_gives_new_tries_though_no_usage_is_reported():
    talk = memory("opal", window=20_000)
    for number in range(40):
        talk.add(*agent_turn(number))
        talk.add(user("and now?"))
        talk.context()
        if number % 10 == 9:
            assert talk.recover(400, {"error": {"code": "context_length_exceeded"}})
        talk.add(assistant("well"))


@pytest.mark.parametrize("window, reads_all", [(1_000_000, False), (16_000, True)])
def test_an_action_reads_the_new_text_alone_while_nothing_can_be_due(window, reads_all):
    """Otherwise every small message of a long conversation would be sent through a thread."""
    talk = memory("refold", window=window)
    for number in range(40):
        talk.add(*agent_turn(number))
    state = talk.state
    assert (state.text_read(100) >= state.text_size) is reads_all
