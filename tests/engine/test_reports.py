"""What a provider reports, and what it bills: how a conversation is measured by it."""

import pytest
from msgspec import structs

from refold.core.extractive_summary import summarise
from refold.core.presets import PRESETS
from refold.model.message import assistant, user
from refold.model.tokens import Prices, Share, Usage
from tests.engine.conversations import agent_turn, memory, size_of


def test_reported_usage_is_what_triggers_look_at():
    talk = memory("opal", window=10_000)
    for number in range(12):
        talk.add(*agent_turn(number))
    talk.add(user("next"))
    talk.context()
    talk.record(Usage(input=9_000))
    talk.add(assistant("well"), user("and now?"))
    assert talk.context().summaries
    assert "9,0" in talk.receipts[-1].reason


class TestMoney:
    PRICES = Prices(3.0, 15.0, 1.5, 3.75)

    def priced(self, **changes):
        policy = structs.replace(PRESETS["refold"], by_price=True, target=Share(0.4, "effective"), **changes)
        talk = memory(policy, window=40_000, summarise=summarise)
        talk.frame = structs.replace(talk.frame, prices=self.PRICES)
        return talk

    @pytest.mark.feature("N5")
    def test_where_reading_is_dear_it_folds_before_the_window_is_full(self):
        talk, sizes = self.priced(), []
        for number in range(120):
            talk.add(*agent_turn(number)[:3])
            sizes.append(size_of(talk.context()))
            talk.add(agent_turn(number)[3])
        folds = [receipt for receipt in talk.receipts if receipt.decision == "summarise"]
        assert folds
        assert "cost more to carry along" in folds[0].reason
        assert max(sizes) < 36_000

    @pytest.mark.feature("N5")
    def test_without_prices_it_waits_until_the_window_is_full(self):
        talk = self.priced()
        talk.frame = structs.replace(talk.frame, prices=None)
        for number in range(120):
            talk.add(*agent_turn(number))
        folds = [receipt for receipt in talk.receipts if receipt.decision == "summarise"]
        assert all("do not fit" in receipt.reason for receipt in folds)

    @pytest.mark.feature("N5")
    def test_saved_money_is_the_difference_of_two_bills(self):
        talk = self.priced()
        talk.add(user("go"))
        sent = size_of(talk.context())
        talk.record(Usage(input=sent, output=10))
        assert talk.bill.spent == pytest.approx((sent * 3.0 + 10 * 15.0) / 1e6)
        assert (talk.bill.without, talk.bill.saved) == (talk.bill.spent, 0), "everything was sent"
        for number in range(60):
            talk.add(*agent_turn(number))
        talk.add(user("and now?"))
        talk.compact()
        sent = size_of(talk.context())
        talk.record(Usage(input=sent, output=10))
        assert talk.bill.whole > sent
        assert talk.bill.saved == talk.bill.without - talk.bill.spent != 0


class TestReports:
    @pytest.mark.feature("O13")
    def test_a_report_larger_than_the_window_asks_for_a_compaction(self):
        talk = memory("opal", window=10_000)
        for number in range(8):
            talk.add(*agent_turn(number))
        talk.add(user("next"))
        sent = size_of(talk.context())
        assert not talk.receipts
        talk.record(Usage(input=10_001))
        talk.add(assistant("well"), user("and now?"))
        assert size_of(talk.context()) < sent
        assert talk.receipts[-1].decision == "summarise"

    def test_what_the_provider_counts_is_what_the_window_is_held_against(self):
        talk = memory("refold", window=20_000, summarise=summarise)
        for number in range(20):
            talk.add(*agent_turn(number)[:3])
            talk.record(Usage(input=2 * size_of(talk.context())))
            talk.add(agent_turn(number)[3])
        assert talk.calibration.ratio == pytest.approx(2.0, abs=0.1)
        for number in range(20, 60):
            talk.add(*agent_turn(number)[:3])
            sent = size_of(talk.context())
            assert 2 * sent <= 20_500
            talk.record(Usage(input=2 * sent))
            talk.add(agent_turn(number)[3])


def test_a_report_that_is_larger_than_our_count_is_what_must_fit():
    talk = memory("refold", window=10_000, summarise=summarise)
    for number in range(60):
        talk.add(*agent_turn(number)[:3])
        sent = size_of(talk.context())
        assert 1.5 * sent <= 10_500
        talk.record(Usage(input=int(1.5 * sent)))
        talk.add(agent_turn(number)[3])


def test_a_small_first_call_says_nothing_about_how_a_provider_counts():
    talk = memory("refold", window=8_000, summarise=summarise)
    talk.add(user("hi"))
    talk.context()
    talk.record(Usage(input=60))
    talk.add(assistant("hello"), user("x" * 2_500))
    assert talk.context().messages[-1].text == "x" * 2_500
