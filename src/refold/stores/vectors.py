"""The nearest vectors to a given one.

Vectors of length one are compared by one product each, so comparing all of them is quick enough: ten thousand take some milliseconds
with numpy, and a tenth of a second without it. They come page by page, and only the best are held.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from heapq import nlargest
from operator import mul
from typing import Generic, TypeVar

T = TypeVar("T")


class Nearest(Generic[T]):
    """The best so far; of two that are as near, the one that came first."""

    def __init__(self, vector: bytes, limit: int, least: float = -1.0) -> None:
        self._vector, self._limit, self._least = vector, limit, least
        self._best: list[tuple[float, T]] = []

    def take(self, page: Iterable[tuple[T, bytes]]) -> None:
        """Look at more of them; one that has not as many numbers is not compared."""
        rows = [(one, vector) for one, vector in page if vector and len(vector) == len(self._vector)]
        scored = zip(likeness(self._vector, [vector for _, vector in rows]), rows, strict=True)
        found = [*self._best, *((score, one) for score, (one, _) in scored if score >= self._least)]
        self._best = nlargest(self._limit, found, key=lambda pair: pair[0])

    @property
    def best(self) -> list[T]:
        return [one for _, one in self._best]


def likeness(vector: bytes, others: list[bytes]) -> list[float]:
    """How near each of the others is, from -1 to 1."""
    if not others:
        return []
    try:
        import numpy as np
    except ImportError:
        own = _numbers(vector)
        return [sum(map(mul, own, _numbers(other))) for other in others]
    table = np.frombuffer(b"".join(others), "<f4").reshape(len(others), -1)
    return [float(score) for score in table @ np.frombuffer(vector, "<f4")]


def _numbers(vector: bytes) -> array[float]:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
