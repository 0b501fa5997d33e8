"""What a call costs, and when it pays to fold.

One idea: providers bill what they have seen before at a fraction, and what changed at a premium. Every fold is a change: all
that is left is written anew. So folds should be rare and deep, but not as rare as can be: what is carried along is read again
by every call. Between the two there is a best moment, and it follows from the prices.
"""

from __future__ import annotations

from math import sqrt

from msgspec import Struct

from refold.model.tokens import Usage

LEAST_GROWTH = 0.5
"""Of the room between a folded window and a full one: folding sooner than this saves little and forgets a lot."""
_MILLION = 1_000_000


class Prices(Struct, frozen=True):
    """Dollars per million tokens."""

    input: float
    output: float = 0.0
    cache_read: float | None = None
    """None where the provider has no cache: everything is read at the full price then."""
    cache_write: float | None = None
    """None where writing to the cache costs nothing extra."""

    @property
    def read(self) -> float:
        return self.input if self.cache_read is None else self.cache_read

    @property
    def write(self) -> float:
        return self.input if self.cache_write is None else self.cache_write


def call_cost(usage: Usage, prices: Prices) -> float:
    """What the provider bills for a call."""
    billed = (
        usage.input * prices.input
        + usage.cache_read * prices.read
        + usage.cache_write * prices.write
        + usage.output * prices.output
    )
    return billed / _MILLION


def growing_cost(before: int, now: int, output: int, prices: Prices) -> float:
    """What a call would cost whose prompt only ever grew: the part sent before is read from the cache."""
    known = min(before, now)
    return (known * prices.read + (now - known) * prices.write + output * prices.output) / _MILLION


def fold_at(limit: int, *, level: int, growth: float, prices: Prices) -> int:
    """The size at which a window that shrinks to `level` when folded is best folded; at most `limit`.

    With `growth` tokens more in every call, the calls between two folds are (size - level) / growth. Each of them reads half
    of what has grown, on average; each fold writes `level` anew. The sum is least where both are equal.
    """
    extra = max(0.0, prices.write - prices.read)
    if prices.read <= 0:
        return limit
    best = level + sqrt(2 * extra / prices.read * level * max(0.0, growth))
    least = level + LEAST_GROWTH * (limit - level)
    return int(min(limit, max(best, least)))
