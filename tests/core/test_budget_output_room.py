"""How far an output is lowered, and what is said about it."""

from __future__ import annotations

import pytest

from refold.core.budget import check_room, least_output, output_room
from refold.model.errors import BudgetError
from refold.model.tokens import Budget, Share


def test_the_output_is_lowered_until_messages_have_a_quarter():
    room = output_room(Budget(window=64_000, max_output=32_000), 28_800)
    assert room.is_tight
    assert (room.left, room.lowered) == (3_200, 19_200)
    assert room.arithmetic(32_000) == (
        "window 64,000 − instructions 28,800 − output 32,000 = 3,200 left for messages"
    )
    assert "output 19,200 (lowered from 32,000) = 16,000 left" in room.arithmetic(room.lowered)
    assert room.edit(room.lowered).before == 32_000


def test_messages_that_have_a_quarter_leave_the_output_alone():
    room = output_room(Budget(window=64_000, max_output=19_200), 28_800)
    assert not room.is_tight
    assert room.lowered == room.asked


@pytest.mark.parametrize(
    "window, thinking, least", [(200_000, 0, 4_096), (8_000, 0, 1_000), (64_000, 10_000, 11_024)]
)
def test_no_output_is_lowered_below_the_least(window, thinking, least):
    assert least_output(window, thinking) == least
    budget = Budget(window=window, max_output=window, thinking=thinking)
    assert output_room(budget, window).lowered == least


def test_a_smaller_output_than_the_least_stays():
    assert output_room(Budget(window=64_000, max_output=500), 63_000).lowered == 500


def test_instructions_that_fill_the_window_are_a_clear_error():
    budget = Budget(window=10_000, max_output=1_000, reserve=Share(0.1))
    check_room(budget, instructions=7_999)
    with pytest.raises(BudgetError, match="8,000 of the 8,000") as caught:
        check_room(budget, instructions=8_000)
    assert "window 10,000 − instructions 8,000 − output 1,000 = 1,000 left" in caught.value.hint


def test_a_thinking_budget_that_fills_the_window_is_a_clear_error():
    with pytest.raises(BudgetError, match="max_output"):
        check_room(Budget(window=8_000, max_output=8_192, thinking=7_500), instructions=0)


def test_where_nothing_is_lowered_an_output_that_fills_the_window_is_an_error():
    with pytest.raises(BudgetError, match="max_output"):
        check_room(Budget(window=8_000, max_output=8_192), instructions=0, lowers=False)
