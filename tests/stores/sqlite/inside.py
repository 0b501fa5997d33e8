"""A look into a store that only tests take."""

from __future__ import annotations

import threading

import apsw

from refold.stores.sqlite.store import SqliteStore


def writer_of(store: SqliteStore) -> apsw.Connection:
    return store._file._writer.connection


def copying_of(store: SqliteStore) -> threading.Thread:
    """The thread that copies the log of large commits into the file."""
    return store._file._writer._copying
