"""Search for sessions: by id, by their messages, and by the meaning of their summaries.

Messages and summaries give two ranked lists of the same sessions, and their scores cannot be compared. So the
lists are merged by rank: each list gives a session a share that shrinks with its rank, and a session in both
lists rises above one that is in only one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from msgspec import structs

from refold.core.search.query import parse_query
from refold.core.search.rank import fuse_sessions
from refold.core.search.vectors import read_vectors
from refold.engine.known_secrets import KnownSecrets, without_secrets
from refold.engine.message_search import (
    NearMessage,
    QueryVectors,
    TurnVectors,
    asked_words,
    has_meaning,
    name_failure,
    near_messages,
)
from refold.model.errors import ConfigError, Damaged
from refold.ports.models import Embedder
from refold.ports.records import Batch, Embedding, Session, SessionHit, StoredSummary
from refold.ports.store import Store
from refold.text_work import run_text_work

_log = logging.getLogger("refold")

PATIENCE_S = 3.0
"""Timeout for vectors: a table of words takes milliseconds and a provider half a second, and the conversation
waits meanwhile."""
MOST_AT_ONCE = 128
"""Sessions that get a missing vector in one sweep: so many take a fraction of a second."""
PAGE = 32
"""Texts in one request to the embedder: few enough for every provider."""
NOTHING: frozenset[str] = frozenset()
_NO_VECTOR = (
    "sessions without a vector: %d (%s). They are found by their words meanwhile, and get one when a program opens"
    " the store the next time"
)


class Meaning:
    """Embeds summaries and search words. The embedder may fail, or be missing: then search works by words."""

    def __init__(
        self, embedder: Embedder | None = None, *, turns: TurnVectors | None = None, is_quiet: bool = False
    ) -> None:
        self._embedder = embedder
        self.turns = turns
        """The vectors of messages; None if there is no embedder."""
        self._queries = turns.queries if turns else QueryVectors(embedder) if embedder else None
        self._is_quiet = is_quiet
        """True for the installed embedder in a store in memory: nobody chose it, and no program opens the store again, so
        a missing vector is no warning."""
        self._last: tuple[list[str], list[bytes]] = [], []
        """Cache of the last texts and vectors: after a conflict the same commit is tried again, with the same
        summary."""

    @property
    def name(self) -> str:
        return self._embedder.name if self._embedder else ""

    @property
    def least(self) -> float:
        return self._embedder.least if self._embedder else 1.0

    async def embedded(self, batch: Batch, known: Collection[str] = NOTHING) -> Batch:
        """Return the batch with the vectors of the sessions that it closes; `known` are the secrets of the
        conversation.
        """
        closing = [
            (change.summarises or change.compaction.base, change.written)
            for change in batch.changes
            if change.written is not None
            and (change.summarises or (change.opens is not None and change.compaction.kind == "summarise"))
        ]
        embeddings = await self.embed(closing, batch.at, known)
        return structs.replace(batch, embeddings=embeddings) if embeddings else batch

    async def embed(
        self, closing: Sequence[tuple[str, StoredSummary]], at: float, known: Collection[str] = NOTHING
    ) -> tuple[Embedding, ...]:
        """Return the vectors of sessions, given with their summaries; none if the embedder fails."""
        if self._embedder is None or not closing:
            return ()
        texts = [written.summary.text for _, written in closing]
        try:
            vectors = await self._vectors(
                await run_text_work(sum(map(len, texts)), _without_secrets, texts, known)
            )
        except Exception as error:  # noqa: BLE001 - an embedder may raise anything; the conversation goes on
            level = logging.DEBUG if self._is_quiet else logging.WARNING
            _log.log(level, _NO_VECTOR, len(texts), name_failure(error))
            return ()
        return tuple(
            Embedding(session=session, summary=written.id, name=self.name, vector=vector, at=at)
            for (session, written), vector in zip(closing, vectors, strict=False)
        )

    @property
    def problem(self) -> str:
        """Why searches go by words alone for now; empty if they do not."""
        return self._queries.problem if self._queries else ""

    async def embed_words(self, words: str) -> bytes:
        """Return the vector of search words; empty if the embedder fails."""
        return await self._queries.vector(words) if self._queries else b""

    async def _vectors(self, texts: list[str]) -> list[bytes]:
        """Return a vector for each text."""
        if self._embedder is not None and texts != self._last[0]:
            async with asyncio.timeout(PATIENCE_S):
                found = await self._embedder.embed(texts)
            self._last = texts, read_vectors(found, len(texts))
        return self._last[1]

    async def catch_up(self, store: Store, owner: str, at: float) -> int:
        """Embed sessions that were closed without a vector, the newest first, and return how many got one."""
        done = 0
        secrets = self.turns.secrets if self.turns else KnownSecrets(store, owner)
        lacking = await store.unembedded(owner, self.name, MOST_AT_ONCE) if self._embedder else []
        for first in range(0, len(lacking), PAGE):
            page = lacking[first : first + PAGE]
            written = {one.id: one for one in await _readable(store, owner, [row.summary for row in page])}
            closed = [(row.id, written[row.summary]) for row in page if row.summary in written]
            known = await _secrets_of(secrets, store, owner, page)
            embeddings = await self.embed(closed, at, known)
            if closed and not embeddings:
                break
            done += await store.embed(owner, embeddings)
        return done


def _without_secrets(texts: Sequence[str], known: Collection[str]) -> list[str]:
    return [without_secrets(text, known) for text in texts]


async def _secrets_of(secrets: KnownSecrets, store: Store, owner: str, closed: Sequence[Session]) -> set[str]:
    """Return the secrets of the conversations of some sessions, up to the end of each."""
    known = set[str]()
    for one in closed:
        for conversation, _ in await store.find_sessions(owner, one.id, 1):
            known |= await secrets.of(conversation, one.branch, one.last or 0)
    return known


async def _readable(store: Store, owner: str, ids: Sequence[str]) -> list[StoredSummary]:
    """Return summaries by id without the damaged ones: the rest can still be found, and the doctor reports
    the damage.
    """
    try:
        return await store.written(owner, ids)
    except Damaged:
        return [] if len(ids) == 1 else [one for each in ids for one in await _readable(store, owner, [each])]


SHORTEST_ID = 6
"""The shortest prefix that names a session: a shorter one is more likely a word."""
SESSIONS = 100
"""Sessions that are taken by words: more than anybody looks at, so that those in both lists can rise."""
NEAREST = 20
"""Sessions that are taken by meaning: twice as many as are shown, so that those in both lists can rise."""
DAMPING = 10
"""How slowly a share shrinks with its rank. The best of 24 ways to merge, with static vectors, 1,070
questions and 182 sessions. On questions that were not used for the choice, the right session is among the
first ten for 91 %, and for 83 % by words alone; it is the first one a little less often."""
MOST = 1 << 31
"""Upper bound of a limit: databases have smaller integers than Python."""

Named = tuple[str, Session]


async def find_sessions(
    store: Store, owner: str, meaning: Meaning, words: str, *, name: str = "", limit: int = 10
) -> list[Named]:
    """Return sessions, each with its conversation, best first: one that is named by its id, then those that
    match by words and meaning.
    """
    ids = await store.find_sessions(owner, words, limit) if _is_id(words) else []
    named = [one for one in ids if name in {"", one[0]}]
    hits = await store.search_sessions(owner, words, conversation=name, limit=SESSIONS)
    query, near_summaries = parse_query(words), await _by_meaning(store, owner, meaning, words, name)
    if query.has_conditions:  # a summary does not say whether the session meets them; its words do
        meeting = {hit.session.id for hit in hits}
        near_summaries = [one for one in near_summaries if one[1].id in meeting]
    ranked = merged([(hit.conversation, hit.session) for hit in hits], near_summaries)
    if (
        meaning.turns
        and has_meaning(query)
        and (query.takes_neighbours or not (hits or query.is_dated or query.role))
    ):
        found_near = await near_messages(store, owner, meaning.turns, words, conversation=name)
        if near := found_near.near or ([] if hits else found_near.likest()):
            ranked = [*await _with_near(store, owner, hits, near), *ranked]
    found = dict[str, Named]()
    for place, one in (*named, *ranked):
        found.setdefault(one.id, (place, one))
    return list(found.values())[:limit]


async def _with_near(
    store: Store, owner: str, hits: Sequence[SessionHit], near: Sequence[NearMessage]
) -> list[Named]:
    """Return sessions by their words and by the messages that are nearest in meaning."""
    known = {hit.session.id: (hit.conversation, hit.session) for hit in hits}
    messages, of_branch = list[tuple[str, float]](), dict[str, dict[str, Session]]()
    for session in await store.holding(owner, [one.place for one in near]):
        of_branch.setdefault(session.branch, {})[session.id] = session
    for one in near:
        branch, seq = one.place
        holder = next((session for session in of_branch.get(branch, {}).values() if session.holds(seq)), None)
        if holder is not None:
            known.setdefault(holder.id, (one.conversation, holder))
            messages.append((holder.id, one.score))
    return [known[which] for which in fuse_sessions({hit.session.id: hit.score for hit in hits}, messages)]


async def _by_meaning(store: Store, owner: str, meaning: Meaning, words: str, name: str) -> list[Named]:
    """Return closed sessions whose summaries are close in meaning; none for a query without words."""
    query = parse_query(words)
    if query.spans or not query.terms or not query.looks_in(name):
        return []
    vector = await meaning.embed_words(asked_words(query, words))
    if not vector:
        return []
    return await store.nearest(
        owner,
        meaning.name,
        vector,
        conversation=name or query.conversation,
        limit=NEAREST,
        least=meaning.least,
    )


def merged(*lists: Sequence[Named]) -> list[Named]:
    """Merge ranked lists (reciprocal rank fusion). Of two sessions with equal shares, the one of the earlier
    list comes first.
    """
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
    """Check a limit, and cap it to a number that every store takes.

    Raises:
        ConfigError: it is not a number of entries.
    """
    if not isinstance(limit, int) or limit < 0:
        raise ConfigError("a limit is a whole number, 0 or more", hint="leave it out for the usual one")
    return min(limit, MOST)
