"""Computes the cost of a call, and the window size at which compaction pays.

Providers bill cached input at a fraction of the price, and changed input at a premium. A compaction
changes the prefix, so the whole remaining window is written to the cache again. So compactions should be
rare and deep. But a large window is read again by every call, so they should not be as rare as possible.
The best size follows from the prices.
"""

from __future__ import annotations

from math import sqrt

from msgspec import Struct

from refold.model.tokens import Usage

LEAST_GROWTH = 0.5
"""Share of the room between a compacted window and a full one. Compacting earlier saves little and loses much context."""
_MILLION = 1_000_000


class Prices(Struct, frozen=True):
    """Dollars per million tokens."""

    input: float
    output: float = 0.0
    cache_read: float | None = None
    """None if the provider has no cache: all input is read at the full price."""
    cache_write: float | None = None
    """None if writing to the cache costs nothing extra."""

    @property
    def read(self) -> float:
        return self.input if self.cache_read is None else self.cache_read

    @property
    def write(self) -> float:
        return self.input if self.cache_write is None else self.cache_write


def call_cost(usage: Usage, prices: Prices) -> float:
    """Dollars that the provider bills for a call."""
    billed = (
        usage.input * prices.input
        + usage.cache_read * prices.read
        + usage.cache_write * prices.write
        + usage.output * prices.output
    )
    return billed / _MILLION


def growing_cost(before: int, now: int, output: int, prices: Prices) -> float:
    """Dollars for a call if its prompt had only grown: the part sent before is read from the cache."""
    known = min(before, now)
    return (known * prices.read + (now - known) * prices.write + output * prices.output) / _MILLION


def rewrite_pays(now: int, then: int, *, calls: float, prices: Prices) -> bool:
    """Whether replacing a window of `now` tokens by one of `then` tokens saves more in the next `calls` calls
    than writing it to the cache again costs.
    """
    extra = max(0.0, prices.write - prices.read)
    return (now - then) * prices.read * max(0.0, calls) > then * extra


def fold_at(limit: int, *, level: int, growth: float, prices: Prices) -> int:
    """The window size at which compacting to `level` tokens is cheapest; at most `limit`.

    With `growth` tokens more in every call, there are (size - level) / growth calls between two
    compactions. Each of them reads half of the growth on average; each compaction writes `level` again.
    The sum is smallest if both are equal.
    """
    extra = max(0.0, prices.write - prices.read)
    if prices.read <= 0:
        return limit
    best = level + sqrt(2 * extra / prices.read * level * max(0.0, growth))
    least = level + LEAST_GROWTH * (limit - level)
    return int(min(limit, max(best, least)))
