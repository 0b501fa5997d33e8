"""The parts of a search that all stores share: words, scores and vectors.

Each database has its own rules for words, so `refold.core.search.terms` splits texts and queries into words,
and a database sees plain words with spaces between them. A query is never interpreted as a database's search
syntax. A match is scored from the message alone, and the rarity of a word from the owner's messages
alone: with statistics of the whole database, one owner's messages would change the order of another's results.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from heapq import nlargest
from operator import mul
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from refold.core.digest.facts import text_of
from refold.core.search.query import Query, Term
from refold.core.search.rank import Match, MessagePlace, rank_messages, rarity
from refold.model.errors import Damaged
from refold.model.message import Reasoning
from refold.ports.records import SearchHit, Session, read_body

CONSIDERED = 1_000
"""Messages that are ranked: those with the rarest terms. The rest of the terms only adds to their scores."""


class MatchSource(Protocol):
    """What a store knows about the messages in the scope of one search. The methods are transactions; a store without statements
    returns at once.
    """

    def count(self, terms: Sequence[Term]) -> Generator[Any, Any, list[int]]:
        """The number of messages that have a term, for each of the terms; an estimate if there are many."""
        ...

    def size(self) -> Generator[Any, Any, int]:
        """The number of all messages."""
        ...

    def find(self, chosen: Sequence[Term], others: Sequence[Term]) -> Generator[Any, Any, list[Match]]:
        """Messages that have one of the chosen terms, at most `CONSIDERED`, the newest, with the counts of all terms."""
        ...

    def findable(self, places: Sequence[MessagePlace]) -> Generator[Any, Any, set[MessagePlace]]:
        """Those of the places that are messages of a person or a model that a search may find."""
        ...


def find_matches(query: Query, source: MatchSource) -> Generator[Any, Any, tuple[list[Match], list[float]]]:
    """The messages that match a query, and the weights of the terms in their counts.

    A term that no message has is replaced by its parts, or by words one typing error away. The rarest terms choose the messages;
    all terms count in them.
    """
    counts = yield from source.count(query.terms)
    counted = [(count, term) for count, term in zip(counts, query.terms, strict=True) if count]
    lacking = [term for count, term in zip(counts, query.terms, strict=True) if not count]
    instead = [
        other for term in lacking if term.phrases[0] not in query.required for other in term.alternatives()
    ]
    if instead:
        counts = yield from source.count(instead)
        counted += [(count, term) for count, term in zip(counts, instead, strict=True) if count]
    if not counted:
        return [], []
    size = yield from source.size()
    counted.sort(key=lambda one: one[0])
    room, chosen = CONSIDERED, 0
    for count, _ in counted:
        if chosen and count > room:
            break
        room, chosen = room - count, chosen + 1
    terms = [term for _, term in counted]
    weights = [term.weight * rarity(count, size) for count, term in counted]
    matches = yield from source.find(terms[:chosen], terms[chosen:])
    return matches, weights


def find_messages(query: Query, source: MatchSource, limit: int) -> Generator[Any, Any, list[SearchHit]]:
    """The best messages of a search."""
    matches, weights = yield from find_matches(query, source)
    ranked = rank_messages(matches, weights, limit=2 * limit + 50 if matches else 0)
    beside = (
        {(one.branch, one.seq) for one in ranked if not one.is_match} if query.takes_neighbours else set()
    )
    kept = (yield from source.findable(sorted(beside))) if beside else set()
    return [
        SearchHit(
            conversation=one.conversation,
            branch=one.branch,
            seq=one.seq,
            score=one.score,
            is_whole=one.is_whole
            and len(weights) >= len(query.terms),  # a term that is nowhere has no weight
        )
        for one in ranked
        if one.is_match or (one.branch, one.seq) in kept
    ][:limit]


def session_holding(sessions: Iterable[Session], match: Match) -> str:
    """The id of the live session that holds a match; empty if none does."""
    held = [one for one in sessions if one.holds(match.seq)]
    return max(held, key=lambda one: one.first).id if held else ""


def said(wire: str, body: bytes) -> str:
    """The searchable text of a message: all but reasoning, after the name of the speaker if there is one; empty if its content is
    not stored. A damaged message is found by the words that its bytes still have.
    """
    if not body:
        return ""
    try:
        message = read_body(body, wire)
    except Damaged:
        return body.decode("utf-8", "replace")
    texts = [text_of(part) for part in message.parts if not isinstance(part, Reasoning)]
    return "\n".join([name, *texts] if (name := _speaker(body)) else texts)


class _Named(Struct):
    name: str = ""


_NAMED = msgspec.json.Decoder(_Named)


def _speaker(body: bytes) -> str:
    """The name of a participant, which the chat format has beside the role."""
    if b'"name"' not in body:
        return ""
    try:
        return _NAMED.decode(body).name
    except msgspec.MsgspecError:
        return ""


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
