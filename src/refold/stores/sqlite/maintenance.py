"""Maintenance of an SQLite file: the index of words, the removal of deleted data, backup, and the check for damage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

import apsw

from refold.core.search_terms import spaced
from refold.model.errors import StoreError
from refold.stores.search import said, scope
from refold.stores.sql import conversations
from refold.stores.sql.queries import Transaction
from refold.stores.sqlite.file import open_reader

# Transactions that maintain an SQLite file: the index of words, and the removal of deleted data
# from the file. Neither delays a commit. A message that waits for the index, and a deletion whose
# data is still in the file, are recorded in the transaction they belong to, so that any later
# program can finish the work.

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


# Back up an SQLite database while it is in use, and check it for damage. A database in use consists
# of several files, which must not be copied by hand. SQLite copies a snapshot page by page into a
# temporary file, which is renamed when all of it is on the disk.

MOST_FAULTS = 100
"""Faults that are listed for each kind: enough to recognise the damage."""


def copy_to(path: Path, source: apsw.Connection) -> None:
    """Write a copy to a path that does not exist yet.

    Raises:
        StoreError: the path exists, or the copy cannot be written.
    """
    try:
        _make_empty(path)
    except FileExistsError:
        raise StoreError(
            "there is a file of this name already", hint="choose another name", location=str(path)
        ) from None
    except OSError as error:
        raise _unwritable(path) from error
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _make_empty(partial)
        _copy(source, partial)
        partial.replace(path)
        _sync_folder(path.parent)
    except (OSError, apsw.Error) as error:
        path.unlink(missing_ok=True)
        raise _unwritable(path) from error
    finally:
        partial.unlink(missing_ok=True)


def find_faults(path: Path) -> list[str]:
    """The faults of a database, one sentence each, without content of messages."""
    # A new connection: one that has searched before caches an index that other programs may have changed.
    connection = open_reader(path)
    try:
        return [fault for look in (_structure, _references, _messages) for fault in _found(look(connection))]
    finally:
        connection.close()


def _structure(connection: apsw.Connection) -> Iterator[str]:
    for (text,) in connection.execute(f"PRAGMA integrity_check({MOST_FAULTS})"):
        if text != "ok":
            yield str(text)


def _references(connection: apsw.Connection) -> Iterator[str]:
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield f"row {row} of table {table} refers to a row of {parent} that is not there"


def _messages(connection: apsw.Connection) -> Iterator[str]:
    messages = connection.execute(
        """SELECT branch.owner, branch.id, message.seq, message.body, message.digest
        FROM message LEFT JOIN branch ON branch.ordinal = message.branch ORDER BY message.id"""
    )
    for owner, branch, seq, body, digest in messages:
        if branch is None:
            yield f"message {seq} is of a branch that is not there"
        elif sha256(body).digest() != digest:
            yield f"message {seq} of branch {branch} of owner {owner} is not what it was when it came"


def _found(faults: Iterator[str]) -> Iterator[str]:
    """The faults that a check finds before it fails."""
    try:
        yield from islice(faults, MOST_FAULTS)
    except apsw.Error as error:
        yield f"not everything can be read ({type(error).__name__})"


def _copy(source: apsw.Connection, path: Path) -> None:
    target = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with target.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step()
        # One file, without a log beside it, until it is opened as a store.
        target.pragma("journal_mode", "delete")
    finally:
        target.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _make_empty(path: Path) -> None:
    """Create a file that only its owner can read, under an unused name."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _sync_folder(folder: Path) -> None:
    """Flush a new name to the disk, on systems that can open folders for that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unwritable(path: Path) -> StoreError:
    return StoreError(
        "the backup cannot be written", hint="see that its folder is there and has room", location=str(path)
    )
