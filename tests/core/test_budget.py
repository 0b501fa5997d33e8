from fractions import Fraction

import pytest

from refold.core.budget import (
    anatomy,
    history_budget,
    input_limit,
    is_over_budget,
    tokens_of,
    window_for_output,
)
from refold.model.budget import Budget, Messages, Share, Tokens, Turns
from refold.model.errors import BudgetError


@pytest.mark.feature("P1")
def test_history_gets_what_the_other_regions_leave():
    assert (
        history_budget(window=128_000, system=3_000, summary=1_000, tools=4_000, max_output=8_000) == 112_000
    )
    assert history_budget(window=8_000, system=3_000, summary=0, tools=4_000, max_output=8_000) == -7_000


@pytest.mark.feature("P1")
@pytest.mark.parametrize("messages, over", [(699, False), (700, False), (701, True)])
def test_to_fill_the_window_exactly_is_not_over_it(messages, over):
    assert is_over_budget(messages=messages, tools=100, max_output=200, window=1_000) is over


@pytest.mark.feature("P2")
def test_window_and_output_are_separate_and_an_unset_window_is_four_outputs():
    assert window_for_output(32_768) == 131_072
    budget = Budget(window=200_000, max_output=64_000)
    assert (budget.window, budget.max_output, input_limit(budget)) == (200_000, 64_000, 136_000)
    assert input_limit(Budget(window=200_000, limit=100_000, max_output=64_000)) == 36_000


@pytest.mark.feature("C2")
class TestAnatomy:
    def test_window_minus_reserve_minus_instructions(self):
        parts = anatomy(100_000, instructions=15_000)
        assert (parts.reserve, parts.pruning_budget, parts.effective) == (5_000, 95_000, 80_000)

    @pytest.mark.parametrize("window, reserve", [(10, 1), (30, 2), (50, 3), (90, 5), (130, 7)])
    def test_the_reserve_is_rounded_half_up(self, window, reserve):
        assert anatomy(window, instructions=0).reserve == reserve

    def test_pressure_counts_instructions_too(self):
        assert anatomy(100_000, instructions=19_000).pressure(57_000) == Fraction(80, 100)
        assert anatomy(100_000, instructions=0).pressure(0) == 0

    @pytest.mark.parametrize("share", [0, 1, -0.2, 1.5])
    def test_a_reserve_share_out_of_range_reserves_nothing(self, share):
        assert anatomy(1_000, instructions=0, reserve_share=share).reserve == 0

    def test_instructions_larger_than_the_window_leave_nothing_and_full_pressure(self):
        assert anatomy(1_000, instructions=2_000).effective == 0
        assert anatomy(1_000, instructions=2_000).pressure(0) > 1


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
