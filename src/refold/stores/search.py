"""The parts of a search that all stores share: words, scores and vectors.

Each database has its own rules for words, so `refold.core.search_terms` splits texts and queries into words,
and a database sees plain words with spaces between them. A query is never interpreted as a database's search
syntax. A match is scored from the message alone, and the rarity of a word from the owner's messages
alone: with statistics of the whole database, one owner's messages would change the order of another's results.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from heapq import nlargest
from math import log as ln
from operator import mul
from typing import Generic, TypeVar

from refold.core.digest.facts import text_of
from refold.core.search_terms import Phrase
from refold.model.errors import Damaged
from refold.model.message import Reasoning
from refold.ports.records import read_body

CONSIDERED = 2_000
"""Number of matching messages, newest first, that are ranked: if there are more, the words do not discriminate."""
_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 100
"""Usual number of words in a message."""


def weigh(parts: Sequence[Phrase], counts: Sequence[int]) -> dict[Phrase, float]:
    """The weight of each part of a query: rare parts weigh more. Parts that occur everywhere are left out, if there are others."""
    weighed, left = dict[Phrase, float](), CONSIDERED
    for count, part in sorted(zip(counts, parts, strict=True), key=lambda one: one[0]):
        if count and (left > 0 or not weighed):
            weighed[part] = ln(1 + CONSIDERED / count)
            left -= count
    return weighed


def worth(counts: Sequence[int], weights: Sequence[float], length: int) -> float:
    """The score of a message, from its number of words and the occurrences of each part."""
    damping = _SATURATION * (1 - _LENGTH + _LENGTH * length / _AVERAGE)
    return sum(
        weight * count / (count + damping) for count, weight in zip(counts, weights, strict=True) if count
    )


def said(wire: str, body: bytes) -> str:
    """The searchable text of a message: all but reasoning; empty if its content is not stored or damaged."""
    try:
        message = read_body(body, wire) if body else None
    except Damaged:
        message = None
    if message is None:
        return ""
    return "\n".join(text_of(part) for part in message.parts if not isinstance(part, Reasoning))


@lru_cache(maxsize=1_024)
def scope(owner: str, conversation: str = "") -> str:
    """The marks of a message's owner and conversation in an index; a mark is a word that no message can contain."""
    return f"{_mark('o', owner)} {_mark('c', owner, conversation)}"


def within(owner: str, conversation: str = "") -> str:
    """The mark that a search for one conversation, or for one owner, requires."""
    return scope(owner, conversation).split()[1 if conversation else 0]


def _mark(kind: str, *names: str) -> str:
    # In ASCII: a name may contain characters that are no letters, and different lists of names must give different marks.
    return kind + sha256(ascii(names).encode()).hexdigest()[:24]


# The nearest vectors to a given one. Vectors have length one, so a comparison is one dot product,
# and comparing all of them is fast enough: ten thousand take some milliseconds with numpy, and a
# tenth of a second without it. They are read page by page, and only the best are kept in memory.

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
