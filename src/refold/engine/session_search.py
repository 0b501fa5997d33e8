"""Sessions that somebody looks for: by id, by words that were said in them, by what they were about.

One idea: words and meaning are two lists of the same sessions, and their scores cannot be compared. So places count: each list
gives a session a share that shrinks with its place, and what stands in both rises above what stands in one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from msgspec import structs

from refold.core.secrets.redact import redact, values_of
from refold.model.errors import ConfigError, Damaged
from refold.model.message import user
from refold.ports.embedder import Embedder
from refold.ports.records import Batch, Embedding, Session, StoredSummary
from refold.ports.store import CompactionRows, Store
from refold.text_work import run_text_work

# What a closed session was about, for whoever looks for it in other words.

_log = logging.getLogger("refold")

PATIENCE_S = 3.0
"""For vectors: a table of words takes milliseconds and a provider half a second; whoever is talking waits meanwhile."""
MOST_AT_ONCE = 128
"""Sessions that get a vector later, each time there is an occasion: so many take a fraction of a second."""
PAGE = 32
"""Texts of one question: few enough for every provider."""
NOTHING: frozenset[str] = frozenset()
_CLOSED = (
    "sessions without a vector: %d (%s). They are found by their words meanwhile, and get one when a program opens"
    " the store the next time"
)
_SOUGHT = "this search goes by words and not by meaning (%s). The next one tries again"


class Meaning:
    """An embedder that may fail, or none at all."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._embedder = embedder
        self._last: tuple[list[str], list[bytes]] = [], []
        """An act that another process got ahead of is done again, with the same summary."""

    @property
    def name(self) -> str:
        return self._embedder.name if self._embedder else ""

    @property
    def least(self) -> float:
        return self._embedder.least if self._embedder else 1.0

    async def embedded(self, batch: Batch, known: Collection[str] = NOTHING) -> Batch:
        """A batch with the vectors of the sessions that it closes; `known` are secrets of the conversation."""
        closing = [
            (change.compaction.base, change.written)
            for change in batch.changes
            if change.opens is not None
            and change.written is not None
            and change.compaction.kind == "summarise"
        ]
        embeddings = await self.embed(closing, batch.at, known)
        return structs.replace(batch, embeddings=embeddings) if embeddings else batch

    async def embed(
        self, closing: Sequence[tuple[str, StoredSummary]], at: float, known: Collection[str] = NOTHING
    ) -> tuple[Embedding, ...]:
        """The vectors of sessions, given with the summaries that they have; none where there are none to be had."""
        if self._embedder is None or not closing:
            return ()
        texts = [written.summary.text for _, written in closing]
        try:
            vectors = await self._vectors(
                await run_text_work(sum(map(len, texts)), _without_secrets, texts, known)
            )
        except Exception as error:  # noqa: BLE001 - whatever an embedder may raise, the conversation goes on
            _log.warning(_CLOSED, len(texts), type(error).__name__)
            return ()
        return tuple(
            Embedding(session=session, summary=written.id, name=self.name, vector=vector, at=at)
            for (session, written), vector in zip(closing, vectors, strict=False)
        )

    async def sought(self, words: str) -> bytes:
        """The vector of what somebody looks for; empty where there is none to be had."""
        if self._embedder is None:
            return b""
        try:
            (vector,) = await self._vectors([words])
        except Exception as error:  # noqa: BLE001 - words find something all the same
            _log.warning(_SOUGHT, type(error).__name__)
            return b""
        return vector

    async def _vectors(self, texts: list[str]) -> list[bytes]:
        """A vector for each of the texts."""
        if self._embedder is not None and texts != self._last[0]:
            async with asyncio.timeout(PATIENCE_S):
                found = await self._embedder.embed(texts)
            if len(found) != len(texts):
                raise ValueError  # as if it had failed
            self._last = texts, found
        return self._last[1]

    async def catch_up(self, store: Store, owner: str, at: float) -> int:
        """Give vectors to sessions that were closed without, the newest first. How many got one."""
        done = 0
        lacking = await store.unembedded(owner, self.name, MOST_AT_ONCE) if self._embedder else []
        for first in range(0, len(lacking), PAGE):
            page = lacking[first : first + PAGE]
            known = {one.id: one for one in await _readable(store, owner, [row.summary for row in page])}
            closed = [(row.id, known[row.summary]) for row in page if row.summary in known]
            embeddings = await self.embed(closed, at)
            if closed and not embeddings:
                break
            done += await store.embed(owner, embeddings)
        return done


def _without_secrets(texts: Sequence[str], known: Collection[str]) -> list[str]:
    return [redact(text, known={*known, *values_of(user(text))}) for text in texts]


async def _readable(store: CompactionRows, owner: str, ids: Sequence[str]) -> list[StoredSummary]:
    """Summaries by id. One that is damaged is left out: others can be found all the same, and the doctor tells of it."""
    try:
        return await store.written(owner, ids)
    except Damaged:
        return [] if len(ids) == 1 else [one for each in ids for one in await _readable(store, owner, [each])]


SHORTEST_ID = 6
"""Characters by which a session can be named: fewer are more likely a word."""
HITS = 200
"""Messages that are looked at to find sessions: the best ones mostly stand in a few."""
NEAREST = 20
"""Sessions that are taken for their meaning: twice as many as are shown, so that those in both lists can rise."""
DAMPING = 10
"""How slowly a share shrinks with its place: the best of 24 ways to merge, with static vectors, 1,070 questions and 182 sessions. The
right one is then among the first ten for 91 % of questions that the choice was not made on, and for 83 % by words alone; it is the
first a little less often."""
MOST = 1 << 31
"""Entries of a list, which no list reaches: databases cannot count as far as Python."""

Named = tuple[str, Session]


async def find_sessions(
    store: Store, owner: str, meaning: Meaning, words: str, *, name: str = "", limit: int = 10
) -> list[Named]:
    """Sessions, each with its conversation, best first: one that is named by its id, then what fits words and meaning."""
    ids = await store.find_sessions(owner, words, limit) if _is_id(words) else []
    named = [one for one in ids if name in {"", one[0]}]
    told = await _told(store, owner, words, name)
    near = await _near(store, owner, meaning, words, name)
    found = {one.id: (place, one) for place, one in (*named, *merged(told, near))}
    return list(found.values())[:limit]


async def _told(store: Store, owner: str, words: str, name: str) -> list[Named]:
    """Sessions in which the words were said."""
    hits = await store.search(owner, words, conversation=name, limit=HITS)
    places = {hit.branch: hit.conversation for hit in hits}
    found = await store.holding(owner, [(hit.branch, hit.seq) for hit in hits])
    return [(places[one.branch], one) for one in found]


async def _near(store: Store, owner: str, meaning: Meaning, words: str, name: str) -> list[Named]:
    """Closed sessions whose summaries mean something like it."""
    vector = await meaning.sought(words)
    if not vector:
        return []
    return await store.nearest(
        owner, meaning.name, vector, conversation=name, limit=NEAREST, least=meaning.least
    )


def merged(*lists: Sequence[Named]) -> list[Named]:
    """Several lists as one (reciprocal rank fusion); of two that count the same, the one of the earlier list first."""
    shares: dict[str, float] = {}
    known: dict[str, Named] = {}
    for found in lists:
        once = {one.id: (place, one) for place, one in found}
        for rank, which in enumerate(once):
            shares[which] = shares.get(which, 0.0) + 1 / (DAMPING + rank)
        known = once | known
    return [known[which] for which in sorted(shares, key=shares.__getitem__, reverse=True)]


def _is_id(words: str) -> bool:
    return len(words) >= SHORTEST_ID and words.isalnum()


def checked(limit: object) -> int:
    """How many of a list are wanted, as every store understands it.

    Raises:
        ConfigError: it is no number of entries.
    """
    if not isinstance(limit, int) or limit < 0:
        raise ConfigError("a limit is a whole number, 0 or more", hint="leave it out for the usual one")
    return min(limit, MOST)
