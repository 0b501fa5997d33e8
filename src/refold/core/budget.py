"""The arithmetic of a window: what is taken, what is left.

One idea: every formula is a pure function of numbers. Nothing here builds or changes a message; the assembler does that.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import log2

from refold.model.budget import Budget, Share, Tokens

SMALL_WINDOW = 8_000
"""Shares that sink with the window are given for one of this size, and hold for all that are smaller."""


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
