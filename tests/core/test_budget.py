from refold.core.budget import arithmetic
from refold.model.tokens import Budget, Share


def test_the_limit_of_the_input_is_shown_as_a_sum():
    budget = Budget(window=8_000, max_output=1_000, reserve=Share(0.01))
    assert arithmetic(budget) == "window 8,000 − output 1,000 − reserve 80 = 6,920"
    limited = Budget(window=8_000, max_output=1_000, limit=5_000, max_input=6_000)
    assert arithmetic(limited) == (
        "window 8,000 − output 1,000 − reserve 0 = 7,000, at most 6,000 as the model's input, limited to 5,000"
    )
