"""Transactions that maintain an SQLite file: the index of words, and the removal of deleted data from the file.

Neither delays a commit. A message that waits for the index, and a deletion whose data is still in the file, are recorded in the
transaction they belong to, so that any later program can finish the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.core.search_terms import spaced
from refold.stores.search_terms import said, scope
from refold.stores.sql import conversations
from refold.stores.sql.queries import Transaction

MOST_WORDS, MOST_BYTES = 128, 262_144
"""Messages, and bytes, that one transaction indexes: other writers wait for some milliseconds."""


def is_behind(by: int) -> Transaction[bool]:
    """True if more than this number of messages wait for the index."""
    return bool((yield "has_unindexed", {"more_than": by}))


def index_some() -> Transaction[bool]:
    """Index some of the waiting messages. Returns True if there are more."""
    found = yield "list_unindexed", {"limit": MOST_WORDS, "bytes": MOST_BYTES}
    if not found:
        return False
    spelt = [
        {"id": which, "scope": scope(owner, conversation), "words": words}
        for owner, conversation, which, wire, body in found
        if (words := spaced(said(wire, body)))
    ]
    yield "index_words", spelt
    # The last message of each branch: the rows are in the order of their branches.
    yield "note_indexed", list({row[2] >> 32: {"id": row[2]} for row in found}.values())
    return (yield from is_behind(0))


def merge(pages: int) -> Transaction[bool]:
    """Rewrite some pages of the index without deleted words. Returns True if there is more to do."""
    before = yield "count_changes", {}
    yield "merge_words", {"pages": pages}
    after = yield "count_changes", {}
    # As SQLite documents it: fewer than two changes say that nothing was left to merge.
    return bool(after[0][0] - before[0][0] >= 2)


def delete(owner: str, conversation: str) -> Transaction[int]:
    """Delete conversations, and record that the file still has to be cleared of their data."""
    deleted = yield from conversations.delete(owner, conversation)
    if deleted or not conversation:
        yield "note_deletion", {}
    return deleted


def expire(owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None) -> Transaction[int]:
    """Delete conversations that were not used for long, and record it in the same way."""
    deleted = yield from conversations.expire(owner, before, keep, limit)
    if deleted:
        yield "note_deletion", {}
    return deleted


def last_deletion() -> Transaction[int]:
    """The number of the last recorded deletion; 0 if the file is clear."""
    return (yield "last_deletion", {})[0][0] or 0


def forget_deletions(number: int) -> Transaction[None]:
    """Record that the file is clear of all deletions up to this number."""
    yield "forget_deletions", {"number": number}
