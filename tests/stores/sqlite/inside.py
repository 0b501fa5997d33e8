"""A look into a store that only tests take."""

from __future__ import annotations

import apsw

from refold.stores.sqlite.store import SqliteStore


def writer_of(store: SqliteStore) -> apsw.Connection:
    return store._file._writer.connection
