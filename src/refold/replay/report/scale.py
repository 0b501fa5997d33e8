"""From values to places on paper.

One idea: an axis is told by a few round numbers. They are found first, and what is drawn lies between the outermost two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

_ROUND = (1.0, 2.0, 5.0, 10.0)
_WIDE, _WIDEST = 6, 1_000
"""A range whose end is so many times its beginning is told by factors: else one far point hides the others. Beyond that the
beginning is next to nothing, and may as well be nothing."""


_LEAST = 1e-9
"""A smaller range is drawn as if it were this large: nothing here is told as finely."""


class Scale(Struct, frozen=True):
    """Values from the first tick to the last one, between two places."""

    ticks: tuple[float, ...]
    start: float
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high = self._level(self.ticks[0]), self._level(self.ticks[-1])
        share = (self._level(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def _level(self, value: float) -> float:
        return math.log(value) if self.is_logarithmic else value


def fit(values: Sequence[float], start: float, end: float, *, most: float = math.inf) -> Scale:
    """A scale of steps that shows all the values, and nothing above the most that there can be."""
    return Scale(_by_steps(min(values), max(values), most), start, end)


def fit_wide(values: Sequence[float], start: float, end: float) -> Scale:
    """A scale that shows all the values, by factors where they are far apart."""
    low, high = min(values), max(values)
    if low > 0 and _WIDE * low < high < _WIDEST * low:
        return Scale(_by_factors(low, high), start, end, is_logarithmic=True)
    return fit(values, start, end)


def _by_steps(low: float, high: float, most: float) -> tuple[float, ...]:
    """From a bit below the lowest, but not below nothing, to a bit above the highest."""
    margin = max(high - low or high or 1, _LEAST) * 0.08
    low, high = max(low - margin, 0.0), min(high + margin, most)
    step = _round_up((high - low) / 5)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def _by_factors(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … from below the lowest to above the highest."""
    power = 10.0 ** (math.floor(math.log10(low)) - 1)
    ticks = [factor * power * 10**more for more in range(8) for factor in _ROUND[:-1]]
    first = max(at for at, tick in enumerate(ticks) if tick < low)
    last = next(at for at, tick in enumerate(ticks) if tick > high)
    return tuple(ticks[first : last + 1])


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor for factor in _ROUND if factor * power >= step - 1e-12) * power
