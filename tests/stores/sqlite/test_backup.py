"""Backups: whole while others write, and never in the place of a file."""

from __future__ import annotations

import asyncio

import apsw
import pytest

from refold.model.errors import StoreError
from refold.stores.sqlite import file
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import ANNA, begin, read, say


async def test_a_backup_is_whole_while_others_go_on_writing(store, tmp_path):
    head = await say(store, await begin(store), *(f"{number} {'x' * 3_000}" for number in range(50)))
    talking = True

    async def talk() -> None:
        nonlocal head
        while talking:
            head = await say(store, head, "more")

    task = asyncio.create_task(talk())
    for number in range(3):
        await store.backup(tmp_path / f"copy{number}.db")
    talking = False
    await task
    for number in range(3):
        path = tmp_path / f"copy{number}.db"
        assert path.stat().st_mode & 0o777 == 0o600
        copy = await SqliteStore.open(path)
        found = await copy.head(ANNA, "talk")
        texts = await read(copy, found)
        assert len(texts) == found.next_seq >= 50
        assert texts[50:] == ["more"] * (found.next_seq - 50)
        assert await copy.check() == []
        await copy.close()
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


async def test_a_backup_never_takes_the_place_of_a_file(store, tmp_path):
    await begin(store)
    (tmp_path / "there.db").write_bytes(b"precious")
    with pytest.raises(StoreError, match="already"):
        await store.backup(tmp_path / "there.db")
    with pytest.raises(StoreError, match="cannot be written"):
        await store.backup(tmp_path / "none" / "copy.db")

    assert (tmp_path / "there.db").read_bytes() == b"precious"


async def test_a_backup_that_fails_leaves_no_file(store, tmp_path, monkeypatch):
    await begin(store)

    def fail(*_):
        raise apsw.FullError

    monkeypatch.setattr(file, "_copy", fail)
    with pytest.raises(StoreError, match="cannot be written"):
        await store.backup(tmp_path / "copy.db")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "a.db-shm", "a.db-wal"]
