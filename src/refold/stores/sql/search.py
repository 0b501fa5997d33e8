"""Search by words and by vectors, and the vectors of closed sessions.

A word search looks for messages with all words, and only if there are none for messages with any of them: a question in plain words
finds something, and a name finds only itself. A vector belongs to one summary: it is stored only for a closed session that has this
summary, and deleted when the session is opened again, so that no search finds a session by a summary it no longer has.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from refold.core.search_terms import Phrase, fragments, phrases
from refold.ports.records import Embedding, Head, SearchHit, Session
from refold.stores.search import CONSIDERED, Nearest, weigh, within
from refold.stores.sql import rows
from refold.stores.sql.conversations import line
from refold.stores.sql.queries import EVERYTHING, Row, SqlDialect, Transaction

PAGE = 1_000
"""Vectors that are in memory at a time: one to six megabytes."""


def search(
    dialect: SqlDialect, owner: str, query: str, conversation: str, limit: int, branch: Head | None = None
) -> Transaction[list[SearchHit]]:
    links = (yield from line(branch, EVERYTHING)) if branch else []
    asking = _Asking(dialect, owner, conversation, [(link, end) for link, _, end in links])
    wanted = phrases(query)
    found = yield from asking.find(dict.fromkeys(wanted, 1.0), limit, every=True)
    if not found:
        parts = fragments(wanted)
        weighed = weigh(parts, (yield from asking.count(parts)))
        found = yield from asking.find(weighed, limit, every=False)
    return [rows.to_hit(row) for row in found]


class _Asking:
    """The scope of a search, in the syntax of one database."""

    def __init__(
        self, dialect: SqlDialect, owner: str, conversation: str, line: Sequence[tuple[str, int]]
    ) -> None:
        """`line` lists the branches to search, each with the number at which its range ends; empty for all branches."""
        self.dialect, self.owner, self.conversation, self.line = dialect, owner, conversation, _spell(line)

    def find(self, weighed: dict[Phrase, float], limit: int, *, every: bool) -> Transaction[list[Row]]:
        if not weighed:
            return []
        spelt = [spell_query(self.dialect, [phrase], every=True) for phrase in weighed]
        asked = self._ask(list(weighed), every=every) | {"phrases": _spell(spelt), "limit": limit}
        return (yield "search_messages", asked | {"weights": _spell(list(weighed.values()))})

    def count(self, parts: Sequence[Phrase]) -> Transaction[list[int]]:
        if not parts:
            return []
        found = yield "count_matches", [self._ask([part], every=True) for part in parts]
        return [row[0] for row in found]

    def _ask(self, wanted: Sequence[Phrase], *, every: bool) -> dict[str, object]:
        match = spell_query(self.dialect, wanted, every=every)
        mark = within(self.owner, self.conversation)
        scoped = f"scope : {mark} AND text : ({match})" if self.dialect == "sqlite" else f"{mark} & ({match})"
        place = {"owner": self.owner, "conversation": self.conversation, "line": self.line}
        return {**place, "match": scoped, "considered": CONSIDERED}


def _spell(values: Sequence[object]) -> str:
    return json.encode(values).decode()


def spell_query(dialect: SqlDialect, wanted: Sequence[Phrase], *, every: bool) -> str:
    """Phrases in a database's search syntax. Words have only letters and digits, so no word can be taken for syntax."""
    if dialect == "sqlite":
        return (" AND " if every else " OR ").join(f'"{" ".join(phrase)}"' for phrase in wanted)
    return (" & " if every else " | ").join(f"({' <-> '.join(phrase)})" for phrase in wanted)


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


def unembedded(owner: str, name: str, limit: int = 100) -> Transaction[list[Session]]:
    found = yield "list_unembedded", {"owner": owner, "name": name, "limit": limit}
    return [rows.to_session(row) for row in found]


def nearest(
    owner: str,
    name: str,
    vector: bytes,
    *,
    conversation: str = "",
    limit: int = 20,
    least: float = -1.0,
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
