"""The parts of a search that all stores share: words, scores and vectors.

Each database has its own rules for words, so `refold.core.search.query` splits texts and queries into words,
and a database sees plain words with spaces between them. A query is never interpreted as a database's search
syntax. A match is scored from the message alone, and the rarity of a word from the owner's messages
alone: with statistics of the whole database, one owner's messages would change the order of another's results.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from heapq import nlargest
from operator import mul
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from refold.core.digest.facts import text_of
from refold.core.search.query import Query, Term
from refold.core.search.rank import Match, MessagePlace, rank_messages, rank_sessions, rarity
from refold.core.tool_use import is_recall
from refold.model.errors import Damaged
from refold.model.message import Message, Reasoning
from refold.ports.records import SearchHit, Session, read_body

CONSIDERED = 1_000
"""Messages that are ranked: those with the rarest terms. The rest of the terms only adds to their scores."""

MOST_TYPOS = 8
"""Misspelt words of a query that are corrected, the first ones: each is looked for in hundreds of spellings."""


class DatedMessage(Struct, frozen=True, order=True):
    """A message of a time. Later ones are greater."""

    at: float
    seq: int
    conversation: str
    branch: str


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

    def newest(
        self, spans: Sequence[tuple[float, float]], limit: int
    ) -> Generator[Any, Any, list[DatedMessage]]:
        """The newest messages of each of some times, at most so many of each, that the fields of the query allow."""
        ...

    def findable(self, places: Sequence[MessagePlace]) -> Generator[Any, Any, set[MessagePlace]]:
        """Those of the places that are messages of a person or a model that a search may find."""
        ...


class FoundMatches(Struct, frozen=True):
    """The messages that match a query, and the weights of the terms in their counts."""

    matches: Sequence[Match] = ()
    weights: Sequence[float] = ()
    has_every_term: bool = False
    """Whether each term of the query, or what was looked for instead, is in some message."""


def find_matches(query: Query, source: MatchSource) -> Generator[Any, Any, FoundMatches]:
    """The messages that match a query.

    A term that no message has is replaced by its parts, or by words one typing error away, at most `MOST_TYPOS` of these. The rarest terms choose the messages;
    all terms count in them. A word may belong to two terms, such as the right spelling of one that was also typed with an error: it
    counts for both.
    """
    counts = yield from source.count(query.terms)
    counted = [(count, term) for count, term in zip(counts, query.terms, strict=True) if count]
    lacking = [term for count, term in zip(counts, query.terms, strict=True) if not count]
    others, typos = list[tuple[Term, ...]](), 0
    for term in lacking:
        is_word = len(term.phrases[0]) == 1
        is_left = term.phrases[0] in query.required or (is_word and typos == MOST_TYPOS)
        others.append(() if is_left else term.alternatives())
        typos += is_word and bool(others[-1])
    instead = [other for each in others for other in each]
    counts = (yield from source.count(instead)) if instead else []
    counted += [(count, term) for count, term in zip(counts, instead, strict=True) if count]
    if not counted:
        return FoundMatches()
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
    return FoundMatches(matches, weights, has_every_term=all(others) and all(counts))


def find_newest(query: Query, source: MatchSource, limit: int) -> Generator[Any, Any, list[DatedMessage]]:
    """The messages that a query without words lists, the newest first."""
    found = (yield from source.newest(query.spans, limit)) if query.spans and limit else []
    return sorted(set(found), reverse=True)[:limit]


def find_messages(query: Query, source: MatchSource, limit: int) -> Generator[Any, Any, list[SearchHit]]:
    """The best messages of a search; for a query without words, those of its time, the newest first."""
    found = yield from find_matches(query, source)
    ranked = rank_messages(found.matches, found.weights, limit=2 * limit + 50 if found.matches else 0)
    beside = (
        {(one.branch, one.seq) for one in ranked if not one.is_match} if query.takes_neighbours else set()
    )
    kept = (yield from source.findable(sorted(beside))) if beside else set()
    hits = [
        SearchHit(
            conversation=one.conversation,
            branch=one.branch,
            seq=one.seq,
            score=one.score,
            is_whole=one.is_whole and found.has_every_term,  # a term that is nowhere has no weight
        )
        for one in ranked
        if one.is_match or (one.branch, one.seq) in kept
    ][:limit]
    known = {(hit.branch, hit.seq) for hit in hits}
    newest = yield from find_newest(query, source, limit)
    others = [one for one in newest if (one.branch, one.seq) not in known]
    hits += [
        SearchHit(conversation=one.conversation, branch=one.branch, seq=one.seq, score=0.0) for one in others
    ]
    return hits[:limit]


def rank_found(
    found: FoundMatches, newest: Sequence[DatedMessage], live: Mapping[str, Sequence[Session]]
) -> list[tuple[str, float]]:
    """The ids of live sessions, given by branch, with their scores: those of matches, best first and of equals the newest, then those
    of a time that a query without words lists, the newest first.
    """
    begun_at = {one.id: one.at for held in live.values() for one in held}

    def holder(branch: str, seq: int) -> str:
        held = [one for one in live.get(branch, ()) if one.holds(seq)]
        return max(held, key=lambda one: one.first).id if held else ""

    holders = [holder(one.branch, one.seq) for one in found.matches]
    scored = rank_sessions(found.matches, found.weights, holders)
    ranked = dict(sorted(scored, key=lambda one: (-one[1], -begun_at.get(one[0], 0.0), one[0])))
    for one in newest:
        ranked.setdefault(holder(one.branch, one.seq), 0.0)
    return [(which, score) for which, score in ranked.items() if which]


def said(wire: str, body: bytes | memoryview) -> str:
    """The searchable text of a message: all but reasoning and recalls, which repeat other messages, after the name of the speaker if there is one; empty if its content is
    not stored. A damaged message is found by the words that its bytes still have.
    """
    if not body:
        return ""
    try:
        message = read_body(body if isinstance(body, bytes) else Raw(body), wire)
    except Damaged:
        return str(body, "utf-8", "replace")
    return said_in(message, body)


def said_in(message: Message, body: bytes | memoryview) -> str:
    """The searchable text of a message that was decoded from these bytes."""
    texts = [
        text_of(part) for part in message.parts if not isinstance(part, Reasoning) and not is_recall(part)
    ]
    if not texts:
        return ""
    return "\n".join([name, *texts] if (name := _speaker(body)) else texts)


class _Named(Struct):
    name: str = ""


_NAMED = msgspec.json.Decoder(_Named)


def _speaker(body: bytes | memoryview) -> str:
    """The name of a participant, which the chat format has beside the role."""
    if isinstance(body, bytes) and b'"name"' not in body:
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
