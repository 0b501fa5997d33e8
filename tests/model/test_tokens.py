import pytest

from refold.model.errors import BudgetError
from refold.model.tokens import (
    Budget,
    Messages,
    Prices,
    Share,
    Tokens,
    Turns,
    Usage,
    call_cost,
    growing_cost,
    input_limit,
    tokens_of,
)

CACHED = Prices(3.0, 15.0, 0.3, 3.75)
"""A read at a tenth of the input, a write at a quarter more."""


@pytest.mark.feature("N5")
def test_a_call_costs_what_each_kind_of_token_costs():
    usage = Usage(input=1_000, cache_read=10_000, cache_write=2_000, output=500)
    assert call_cost(usage, CACHED) == pytest.approx(0.003 + 0.003 + 0.0075 + 0.0075)
    assert call_cost(usage, Prices(3.0, 15.0)) == pytest.approx(0.003 + 0.030 + 0.006 + 0.0075)


@pytest.mark.feature("N5")
def test_a_prompt_that_only_grew_is_read_up_to_where_it_was():
    assert growing_cost(10_000, 12_000, 100, CACHED) == pytest.approx((3_000 + 7_500 + 1_500) / 1e6)
    assert growing_cost(12_000, 10_000, 0, CACHED) == pytest.approx(3_000 / 1e6)


def test_the_input_gets_what_the_output_leaves_and_at_most_the_limits():
    assert input_limit(Budget(window=200_000, max_output=64_000)) == 136_000
    assert input_limit(Budget(window=200_000, limit=100_000, max_output=64_000)) == 100_000
    assert input_limit(Budget(window=200_000, limit=150_000, max_output=64_000)) == 136_000
    assert input_limit(Budget(window=200_000, max_input=90_000, max_output=64_000)) == 90_000


def test_sizes():
    budget = Budget(window=1_000, limit=500)
    assert tokens_of(Tokens(70), budget) == 70
    assert tokens_of(Share(0.55), budget) == 550
    assert tokens_of(Share(0.55, "limit"), budget) == 275
    assert tokens_of(Share(0.5, "effective"), budget, effective=90) == 45


def test_a_share_is_the_decimal_that_was_written():
    assert tokens_of(Share(0.29), Budget(window=100)) == 29
    assert int(0.29 * 100) == 28


@pytest.mark.parametrize(
    "make",
    [
        lambda: Share(95),
        lambda: Share(-0.1),
        lambda: Tokens(-1),
        lambda: Messages(-1),
        lambda: Turns(-1),
        lambda: Budget(window=0),
        lambda: Budget(window=100, limit=101),
        lambda: Budget(window=100, max_output=-1),
        lambda: Budget(window=100, reserve=Share(0.1, "effective")),
    ],
)
def test_a_size_out_of_range_is_refused_where_it_is_made(make):
    with pytest.raises(BudgetError):
        make()


def test_a_percentage_can_never_be_read_as_tokens():
    with pytest.raises(BudgetError, match=r"0\.8 for 80 %"):
        Share(80)


@pytest.mark.parametrize(
    "window, tokens", [(4_000, 2_800), (8_000, 5_600), (16_000, 9_600), (32_000, 16_000), (128_000, 57_600)]
)
def test_a_share_may_sink_as_the_window_grows(window, tokens):
    assert tokens_of(Share(0.7, sinks=0.1, least=0.45), Budget(window=window)) == tokens
