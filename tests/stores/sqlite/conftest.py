"""An SQLite store in a file of its own."""

from __future__ import annotations

import pytest

from refold.stores.sqlite.store import SqliteStore


@pytest.fixture
async def store(tmp_path):
    opened = await SqliteStore.open(tmp_path / "a.db")
    yield opened
    await opened.close()
