"""What closed sessions were about, as vectors.

One idea: a vector is that of one summary. It is put only to a closed session that has this summary, another summary of the same
session brings its own, and it goes when the session is opened again; so nothing is ever found by what no longer stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.ports.store import Embedding, Session
from refold.store import rows
from refold.store.nearness import Nearest
from refold.store.transactions import Transaction

PAGE = 1_000
"""Vectors that are held at once: one to six megabytes."""


def embed(owner: str, embeddings: Sequence[Embedding]) -> Transaction[int]:
    if not embeddings:
        return 0
    return len((yield "put_embedding", [rows.of_embedding(owner, one) for one in embeddings]))


def forget(owner: str, session: str) -> Transaction[None]:
    yield "delete_embeddings", {"owner": owner, "session": session}


def embeddings(owner: str, sessions: Sequence[str]) -> Transaction[list[Embedding]]:
    if not sessions:
        return []
    found = yield "get_embeddings", [{"owner": owner, "session": which} for which in sessions]
    return [rows.to_embedding(row) for row in found]


def unembedded(owner: str, name: str, limit: int) -> Transaction[list[Session]]:
    found = yield "list_unembedded", {"owner": owner, "name": name, "limit": limit}
    return [rows.to_session(row) for row in found]


def nearest(
    owner: str, name: str, vector: bytes, conversation: str, limit: int, least: float
) -> Transaction[list[tuple[str, Session]]]:
    statement = "list_embeddings" if conversation else "list_owner_embeddings"
    asked = {"owner": owner, "name": name, "conversation": conversation, "limit": PAGE}
    found, after = Nearest[tuple[str, str]](vector, limit, least), -1
    while page := (yield statement, {**asked, "after": after}):
        found.take(((place, which), other) for _, place, which, other in page)
        after = page[-1][0]
    if not found.best:
        return []
    best = {which: place for place, which in found.best}
    sessions = yield "get_session", [{"owner": owner, "id": which} for which in best]
    return [(best[one.id], one) for one in map(rows.to_session, sessions)]
