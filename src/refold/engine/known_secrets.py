"""The secrets of stored conversations, for texts that are given to an embedder.

A secret is often recognised only where it is introduced ("password=..."), and said again without that. So a text is searched for the
secrets of its branch, those of tool results and sensitive messages included, and not only for what looks like one by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from refold.core.digest.shorten import searchable
from refold.core.secrets import holds_secret, redact, values_of
from refold.model.errors import Damaged
from refold.model.message import user
from refold.ports.records import StoredMessage, read_body
from refold.ports.store import Store
from refold.text_work import run_text_work

PAGE = 64
"""Messages that are read and searched together."""
MOST_BRANCHES = 1_000
"""Branches whose secrets stay in memory. Most have none."""


class _Searched(Struct):
    """The secrets of the messages that a branch holds itself."""

    session: str
    """The session that the branch began with. A conversation that is deleted and begun again has the same branch, and another session."""
    last: int
    """The number of the first message that was not searched."""
    found: dict[int, frozenset[str]]
    """The secrets by the number of their message."""


class KnownSecrets:
    """The secrets of one owner's branches. Each message is read and searched once, as long as its branch stays in memory."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store, self._owner = store, owner
        self._branches: dict[str, _Searched] = {}

    async def of(self, conversation: str, branch: str, last: int) -> frozenset[str]:
        """The secrets of a branch up to, not including, the message `last`, with those of the messages that it shares."""
        values, name = set[str](), branch
        while name and (head := await self._store.head(self._owner, conversation, name)) is not None:
            sessions = await self._store.holding(self._owner, [(name, head.base_seq)])
            began = sessions[0].id if sessions else ""
            searched = self._branches.pop(name, None)
            if searched is None or searched.session != began:
                searched = _Searched(began, head.base_seq, {})
            self._branches[name] = searched  # the last one used
            while searched.last < last:
                first, end = searched.last, min(searched.last + PAGE, last)
                rows = await self._store.messages(head, first, end)
                size = sum(len(row.body) for row in rows)
                searched.found |= await run_text_work(size, _values_by_number, rows)
                searched.last = max(searched.last, end)  # another task may search the same branch
            values.update(*(found for seq, found in searched.found.items() if seq < last))
            name, last = head.base, min(last, head.base_seq)
        while len(self._branches) > MOST_BRANCHES:
            del self._branches[next(iter(self._branches))]
        return frozenset(values)


def _values_by_number(rows: Sequence[StoredMessage]) -> dict[int, frozenset[str]]:
    found = dict[int, frozenset[str]]()
    for row in rows:
        try:
            values = values_of(searchable(read_body(row.body, row.format))) if row.body else frozenset[str]()
        except Damaged:
            continue
        if values:
            found[row.seq] = values
    return found


def without_secrets(text: str, known: Collection[str]) -> str:
    """Return a text with placeholders for its secrets; `known` are those of its conversation."""
    return redact(text, known={*known, *values_of(user(text))}) if holds_secret(text, known) else text
