import pytest

from refold.model.tokens import Prices, Usage, call_cost, growing_cost

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
