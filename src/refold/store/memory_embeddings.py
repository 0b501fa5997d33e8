"""Vectors of closed sessions in memory: the part of `MemoryStore` that looks at all of them.

One idea: without a database there is nothing to page through, so what is nearest is found in one look.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.ports.store import Embedding, Session
from refold.store.nearness import Nearest
from refold.store.shelf import Shelf


class MemoryEmbeddings:
    """What closed sessions were about."""

    _shelves: dict[str, Shelf]

    def _shelf(self, owner: str) -> Shelf:
        """The owner's shelf, or an empty one to look at."""
        return self._shelves.get(owner) or Shelf()

    async def embed(self, owner: str, embeddings: Sequence[Embedding]) -> int:
        return self._shelf(owner).embed(embeddings)

    async def embeddings(self, owner: str, sessions: Sequence[str]) -> list[Embedding]:
        known = self._shelf(owner).embeddings
        return [one for which in sessions for _, one in sorted(known.get(which, {}).items())]

    async def unembedded(self, owner: str, name: str, limit: int = 100) -> list[Session]:
        shelf = self._shelf(owner)
        closed = [row for row in shelf.sessions.values() if row.state == "live" and row.last is not None]
        lacking = [row for row in closed if row.summary and name not in shelf.embeddings.get(row.id, {})]
        return lacking[::-1][:limit]

    async def nearest(
        self,
        owner: str,
        name: str,
        vector: bytes,
        *,
        conversation: str = "",
        limit: int = 20,
        least: float = -1.0,
    ) -> list[tuple[str, Session]]:
        shelf, found = self._shelf(owner), Nearest[tuple[str, Session]](vector, limit, least)
        kept = [(row, shelf.embeddings.get(row.id, {}).get(name)) for row in shelf.sessions.values()]
        named = [(shelf.heads[row.branch].conversation, row, one.vector) for row, one in kept if one]
        found.take(((place, row), one) for place, row, one in named if conversation in {"", place})
        return found.best
