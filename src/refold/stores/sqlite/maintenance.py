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
"""Messages that the index takes up in one transaction, and bytes: some milliseconds, in which others wait to write."""


def is_behind(by: int) -> Transaction[bool]:
    """Whether more than so many messages wait for the index."""
    return bool((yield "has_unindexed", {"more_than": by}))


def index_some() -> Transaction[bool]:
    """Take up some of what waits; is there more?"""
    found = yield "list_unindexed", {"limit": MOST_WORDS, "bytes": MOST_BYTES}
    if not found:
        return False
    spelt = [
        {"id": which, "scope": scope(owner, conversation), "words": words}
        for owner, conversation, which, wire, body in found
        if (words := spaced(said(wire, body)))
    ]
    yield "index_words", spelt
    # The last of each branch: they come in the order of their branches.
    yield "note_indexed", list({row[2] >> 32: {"id": row[2]} for row in found}.values())
    return (yield from is_behind(0))


def merge(pages: int) -> Transaction[bool]:
    """Write some pages of the index anew, without what was deleted; is there more to do?"""
    before = yield "count_changes", {}
    yield "merge_words", {"pages": pages}
    after = yield "count_changes", {}
    # As SQLite documents it: fewer than two changes say that nothing was left to merge.
    return bool(after[0][0] - before[0][0] >= 2)


def delete(owner: str, conversation: str) -> Transaction[int]:
    """Delete, and note that the file is to be cleared of it."""
    deleted = yield from conversations.delete(owner, conversation)
    if deleted or not conversation:
        yield "note_deletion", {}
    return deleted


def expire(owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None) -> Transaction[int]:
    """Likewise, of what nothing happened in for long."""
    deleted = yield from conversations.expire(owner, before, keep, limit)
    if deleted:
        yield "note_deletion", {}
    return deleted


def last_deletion() -> Transaction[int]:
    """The number of the last deletion that the file is to be cleared of; 0 where there is none."""
    return (yield "last_deletion", {})[0][0] or 0


def forget_deletions(number: int) -> Transaction[None]:
    """Note that the file is clear of everything up to a deletion."""
    yield "forget_deletions", {"number": number}
