import pytest

from refold.engine.state import Bill
from refold.model.tokens import Prices, Usage

PRICES = Prices(input=2.0, output=8.0, cache_read=0.5)


def test_saved_is_the_difference_of_two_bills_for_the_same_calls():
    bill = Bill()
    bill = bill.add(Usage(input=1_000, output=100), PRICES, sent=1_000, whole=1_000)
    assert bill.spent == pytest.approx((1_000 * 2 + 100 * 8) / 1e6)
    assert bill.saved == 0

    # Then 800 of 4,000 are sent, by our count; the provider counts 1,000, so the 4,000 would have been 5,000.
    bill = bill.add(Usage(input=500, cache_read=500, output=100), PRICES, sent=800, whole=4_000)

    assert bill.whole == 5_000
    assert bill.spent == pytest.approx(0.0028 + (500 * 2 + 500 * 0.5 + 100 * 8) / 1e6)
    assert bill.without == pytest.approx(0.0028 + (1_000 * 0.5 + 4_000 * 2 + 100 * 8) / 1e6)
    assert bill.saved == pytest.approx(0.00725)


def test_a_call_that_sent_everything_saves_nothing_and_loses_nothing():
    """The provider's cache may miss: that is no loss by Refold."""
    bill = Bill()
    for size in (1_000, 2_000, 3_000):
        bill = bill.add(Usage(input=size, output=100), PRICES, sent=size, whole=size)
        assert bill.saved == 0


def test_without_prices_nothing_is_made_up():
    bill = Bill().add(Usage(input=1_000, output=100), None, sent=1, whole=9)

    assert (bill.spent, bill.without, bill.saved) == (0, 0, 0)


def test_the_bill_is_for_all_turns_of_a_call_and_the_window_is_that_of_the_last():
    usage = Usage(input=3_000, output=100, last_prompt=1_000)

    bill = Bill().add(usage, PRICES, sent=500, whole=1_000)

    assert bill.spent == pytest.approx((3_000 * 2 + 100 * 8) / 1e6)
    assert bill.whole == 2_000


def test_a_window_that_held_nothing_is_no_reason_to_fail():
    assert Bill().add(Usage(), PRICES, sent=0, whole=0).saved == 0
