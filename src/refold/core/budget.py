"""The arithmetic of a window: what is taken, what is left.

One idea: every formula is a pure function of numbers. Nothing here builds or changes a message; the assembler does that.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import log2

from msgspec import Struct

from refold.model.budget import Budget, Share, Tokens

SMALL_WINDOW = 8_000
"""Shares that sink with the window are given for one of this size, and hold for all that are smaller."""
RESERVE_SHARE = 0.05
"""Headroom of the pressure anatomy: provider counts differ from local ones by a few percent."""


@lru_cache(maxsize=256)
def exact(share: float) -> Fraction:
    """The decimal that was written: 0.55 of 100 is 55, not 55.00000000000001."""
    return Fraction(str(share))


def tokens_of(size: Tokens | Share, budget: Budget, *, effective: int = 0) -> int:
    """A size in tokens, rounded down. `effective` is what the instructions leave, for shares of it."""
    if isinstance(size, Tokens):
        return size.tokens
    whole = {"window": budget.window, "limit": limit_of(budget), "effective": effective}[size.of]
    return share_of(fraction_of(size, budget.window), whole)


def share_of(share: float, whole: int) -> int:
    """So much of the whole, rounded down."""
    fraction = exact(share)
    # many times quicker than to multiply the fraction
    return fraction.numerator * whole // fraction.denominator


def fraction_of(share: Share, window: int) -> float:
    """The share in a window of this size."""
    if not share.sinks:
        return share.fraction
    doublings = max(0.0, log2(window / SMALL_WINDOW))
    return max(share.least, round(share.fraction - share.sinks * doublings, 4))


def limit_of(budget: Budget) -> int:
    return budget.limit or budget.window


def input_limit(budget: Budget, output: int | None = None) -> int:
    """The most that a request may hold, so that the output and the reserve still fit; `output` is the budget's unless given."""
    output = budget.max_output if output is None else output
    return limit_of(budget) - output - tokens_of(budget.reserve, budget)


def history_budget(*, window: int, system: int, summary: int, tools: int, max_output: int) -> int:
    """What is left for history; negative where the rest is already too much."""
    return window - system - summary - tools - max_output


def is_over_budget(*, messages: int, tools: int, max_output: int, window: int) -> bool:
    """Do messages, tools and output pass the window? To fill it exactly is still fine."""
    return messages + tools + max_output > window


def window_for_output(max_output: int) -> int:
    """The window to assume where only the output size was set."""
    return 4 * max_output


class Anatomy(Struct, frozen=True):
    """A window taken apart: window − reserve = pruning budget; − instructions = effective."""

    window: int
    reserve: int
    instructions: int

    @property
    def pruning_budget(self) -> int:
        return self.window - self.reserve

    @property
    def effective(self) -> int:
        """What is there for messages."""
        return max(0, self.pruning_budget - self.instructions)

    def pressure(self, messages: int) -> Fraction:
        """How full the window is, instructions included: they take room as messages do."""
        if self.pruning_budget <= 0:
            return Fraction(1)
        return Fraction(self.instructions + messages, self.pruning_budget)


def anatomy(window: int, *, instructions: int, reserve_share: float = RESERVE_SHARE) -> Anatomy:
    """Take a window apart. The reserve is rounded half up; a share outside of 0 to 1 reserves nothing."""
    reserve = int(exact(reserve_share) * window + Fraction(1, 2)) if 0 < reserve_share < 1 else 0
    return Anatomy(window, reserve, instructions)
