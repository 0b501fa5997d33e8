"""The nearest vectors to a given one.

Vectors have length one, so a comparison is one dot product, and comparing all of them is fast enough: ten thousand take some
milliseconds with numpy, and a tenth of a second without it. They are read page by page, and only the best are kept in memory.
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
    """The nearest vectors so far; of two at the same distance, the one that was read first."""

    def __init__(self, vector: bytes, limit: int, least: float = -1.0) -> None:
        self._vector, self._limit, self._least = vector, limit, least
        self._best: list[tuple[float, T]] = []

    def take(self, page: Iterable[tuple[T, bytes]]) -> None:
        """Compare more vectors; vectors of another dimension are skipped."""
        rows = [(one, vector) for one, vector in page if vector and len(vector) == len(self._vector)]
        scored = zip(likeness(self._vector, [vector for _, vector in rows]), rows, strict=True)
        found = [*self._best, *((score, one) for score, (one, _) in scored if score >= self._least)]
        self._best = nlargest(self._limit, found, key=lambda pair: pair[0])

    @property
    def best(self) -> list[T]:
        return [one for _, one in self._best]


def likeness(vector: bytes, others: list[bytes]) -> list[float]:
    """The cosine of each of the other vectors, from -1 to 1."""
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
