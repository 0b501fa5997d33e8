import pytest

from refold.core.cost import Prices, call_cost, fold_at, growing_cost
from refold.model.tokens import Usage

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


def cost_per_call(size: int, level: int, growth: int, prices: Prices) -> float:
    """What a call costs on average when every fold at `size` leaves `level`: told call by call."""
    total, calls, sent, cached = 0.0, 0, level, 0
    for _ in range(20_000):
        total += growing_cost(cached, sent, 0, prices)
        calls, cached, sent = calls + 1, sent, sent + growth
        if sent > size:
            sent, cached = level, 0
    return total / calls


@pytest.mark.feature("N5")
def test_the_best_moment_is_cheaper_than_sooner_and_later():
    level, limit, growth = 100_000, 200_000, 2_000
    best = fold_at(limit, level=level, growth=growth, prices=CACHED)
    assert level + (limit - level) // 2 < best < limit
    at_best = cost_per_call(best, level, growth, CACHED)
    assert at_best < cost_per_call(limit, level, growth, CACHED)
    assert at_best < cost_per_call(level + 20_000, level, growth, CACHED)


@pytest.mark.feature("N5")
def test_dear_reads_fold_sooner_and_free_ones_never():
    assert fold_at(200_000, level=50_000, growth=2_000, prices=Prices(3.0, cache_read=0.0)) == 200_000
    cheap = fold_at(
        1_000_000, level=500_000, growth=20_000, prices=Prices(3.0, cache_read=0.03, cache_write=3.75)
    )
    dear = fold_at(
        1_000_000, level=500_000, growth=20_000, prices=Prices(3.0, cache_read=1.5, cache_write=3.75)
    )
    assert dear < cheap
    assert dear >= 750_000  # half of the room between the two is used in any case


@pytest.mark.feature("N5")
def test_a_small_window_is_used_to_the_full():
    assert fold_at(8_000, level=5_000, growth=400, prices=CACHED) == 8_000
