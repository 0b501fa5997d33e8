"""Sessions that somebody looks for: by id, by words that were said in them, by what they were about.

One idea: words and meaning are two lists of the same sessions, and their scores cannot be compared. So places count: each list
gives a session a share that shrinks with its place, and what stands in both rises above what stands in one.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.engine.meaning import Meaning
from refold.model.errors import ConfigError
from refold.ports.store import Session, Store

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
