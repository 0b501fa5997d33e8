"""Conversations in a list, and messages by their words.

One idea: a search asks for everything first, and for anything only where nothing has it all; so a question in plain words
finds something, and a name finds only itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from refold.core.search_terms import Phrase, fragments, phrases
from refold.ports.store import Head, Hit, Listed
from refold.store import rows
from refold.store.reading import line
from refold.store.transactions import EVERYTHING, Dialect, Row, Transaction
from refold.store.words import CONSIDERED, spell_query, weigh, within


def conversations(owner: str, limit: int, words: str) -> Transaction[list[Listed]]:
    wanted = _spell(words.casefold().split())
    found = yield "find_conversations", {"owner": owner, "words": wanted, "limit": limit}
    if not found:
        return []
    described = yield "describe_conversation", [{"owner": owner, "id": row[0]} for row in found]
    return [rows.to_listed(row) for row in described]


def search(
    dialect: Dialect, owner: str, query: str, conversation: str, limit: int, branch: Head | None = None
) -> Transaction[list[Hit]]:
    links = (yield from line(branch, EVERYTHING)) if branch else []
    asking = _Asking(dialect, owner, conversation, [(link, end) for link, _, end in links])
    wanted = phrases(query)
    found = yield from asking.find(dict.fromkeys(wanted, 1.0), limit, every=True)
    if not found:
        parts = fragments(wanted)
        weighed = weigh(parts, (yield from asking.count(parts)))
        found = yield from asking.find(weighed, limit, every=False)
    return [rows.to_hit(row) for row in found]


def owners() -> Transaction[list[str]]:
    found = yield "list_owners", {}
    return [row[0] for row in found]


class _Asking:
    """Where a search looks, in the words of one database."""

    def __init__(
        self, dialect: Dialect, owner: str, conversation: str, line: Sequence[tuple[str, int]]
    ) -> None:
        """The `line` is the branches to look in, each with the number before which; none of them means all."""
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
