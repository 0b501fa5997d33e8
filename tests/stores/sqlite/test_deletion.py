"""What is deleted is gone from the disk too."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace

import apsw
import pytest
from msgspec import structs

from refold.model.errors import StoreError
from refold.ports.records import Batch
from refold.stores.sqlite import file
from refold.stores.sqlite import store as sqlite_store
from refold.stores.sqlite.store import WORDS_TOGETHER, SqliteStore
from tests.contract.talks import ANNA, BORIS, begin, embedding, fold, planned, read, say, summary
from tests.stores.sqlite.inside import writer_of


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


async def test_what_is_deleted_is_on_the_disk_no_more(store, tmp_path):
    secret, other = "kraken", "walrus"
    for number in range(80):
        head = await begin(store, f"{secret}{number}", title=f"about {secret}")
        head = await say(store, head, f"the {secret} number {number}", f"{secret} " * 900)
        await store.reserve(ANNA, f"key{number}", 1.0)
        await store.cache(ANNA, f"key{number}", summary(f"a {secret}"), 1.0)
    near = structs.replace(embedding(head.session, secret), vector=secret.encode())
    batch = Batch(at=3.0, changes=(fold(head, 1, secret),), embeddings=(near,), notes=b"about a kraken")
    head = await store.commit(head, batch)
    await store.plan(ANNA, planned(head, f"{secret}-plan"))
    await store.search(ANNA, secret)
    await say(store, await begin(store, "kept"), other)
    assert secret.encode() in bytes_on_disk(tmp_path)
    for number in range(80):
        assert await store.delete(ANNA, f"{secret}{number}") == 1

    left = bytes_on_disk(tmp_path)
    assert secret.encode() not in left
    assert other.encode() in left
    assert await store.search(ANNA, secret) == []
    assert [hit.conversation for hit in await store.search(ANNA, other)] == ["kept"]
    assert await store.check() == []


async def test_deleting_an_owner_leaves_nothing_of_them(store, tmp_path):
    head = await say(store, await begin(store), "kraken")
    await store.learn(ANNA, "limit", "kraken", b"kraken", 1.0)
    head = await store.commit(head, Batch(at=1.0, pins=(0,)))
    theirs = await say(store, await begin(store, owner=BORIS), "walrus")
    assert await store.delete(ANNA) == 1

    assert b"kraken" not in bytes_on_disk(tmp_path)
    assert await store.owners() == [BORIS]
    assert await read(store, theirs) == ["walrus"]
    tables = [
        name
        for (name,) in writer_of(store).execute("SELECT name FROM pragma_table_list WHERE type = 'table'")
        if any(row[1] == "owner" for row in writer_of(store).execute(f"PRAGMA table_info({name})"))
    ]
    assert len(tables) >= 10
    for table in tables:
        assert not list(writer_of(store).execute(f"SELECT 1 FROM {table} WHERE owner = ?", (ANNA,))), table


@pytest.mark.parametrize("seed", [2, 3])
async def test_rows_that_were_moved_to_other_pages_leave_nothing_behind(store, tmp_path, seed):
    chance, heads = random.Random(seed), [await begin(store, f"talk{number}") for number in range(6)]
    for _ in range(120):
        for number in chance.sample(range(6), 6):
            said = f"kraken{number} " * chance.choice([5, 20, 40, 60, 90, 100])
            heads[number] = await say(store, heads[number], said)

    for number in chance.sample(range(6), 5):
        await store.delete(ANNA, f"talk{number}")
        assert f"kraken{number} ".encode() not in bytes_on_disk(tmp_path)
    assert await store.check() == []


async def test_a_large_file_is_written_anew_when_it_is_asked_for(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "MOST_WIPED", 0)
    for number in range(30):
        await say(store, await begin(store, f"talk{number}"), "kraken " * 2_000)
    for number in range(29):
        await store.delete(ANNA, f"talk{number}")

    before, after = await store.vacuum()
    assert after < before / 2
    head = await store.head(ANNA, "talk29")
    assert await read(store, head) == ["kraken " * 2_000]
    assert [hit.seq for hit in await store.search(ANNA, "kraken")] == [0]
    await say(store, head, "and on")
    assert await store.check() == []


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Another program reads, so that the log cannot be emptied."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM message").fetchall()
    yield
    other.close()


async def indexed(store: SqliteStore) -> None:
    if store._indexing:
        await asyncio.wait({store._indexing})


async def test_a_file_that_others_keep_busy_is_not_said_to_be_written_anew(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "PATIENCE_MS", 20)
    await say(store, await begin(store), "kraken")
    with reading(tmp_path / "a.db"), pytest.raises(StoreError, match="locked"):
        await store.vacuum()


async def test_a_file_from_which_nothing_was_deleted_is_left_alone(store, monkeypatch):
    monkeypatch.setattr(SqliteStore, "_wipe", stopped)
    await say(store, await begin(store), "walrus")

    assert await store.delete(ANNA, "kraken") == 0
    assert await store.expire(ANNA, 0.0) == 0
    assert writer_of(store).execute("SELECT * FROM deletion").fetchall() == []


@pytest.mark.parametrize("ends", ["vacuum", "a message", "a deletion"])
async def test_what_a_program_that_was_stopped_has_left_is_cleared_by_the_next(
    store, tmp_path, monkeypatch, ends
):
    await say(store, await begin(store, "kraken"), "the kraken " * 900)
    await say(store, await begin(store), "walrus")
    await store.search(ANNA, "kraken")
    await indexed(store)  # or it completes the deletion by itself
    monkeypatch.setattr(SqliteStore, "_wipe", stopped)
    with pytest.raises(asyncio.CancelledError):
        await store.delete(ANNA, "kraken")
    monkeypatch.undo()
    await store.close()
    assert b"kraken" in bytes_on_disk(tmp_path), "its words are in the index still"

    later = await SqliteStore.open(tmp_path / "a.db")
    if ends == "vacuum":
        await later.vacuum()
    elif ends == "a message":
        await say(later, await later.head(ANNA, "talk"), "and on")
        await indexed(later)
    else:
        await later.delete(ANNA, "talk")
    assert b"kraken" not in bytes_on_disk(tmp_path)
    assert writer_of(later).execute("SELECT * FROM deletion").fetchall() == []
    await later.close()


COPYING = """
import fcntl, sys
log = open(sys.argv[1], "r+b")
fcntl.lockf(log, fcntl.LOCK_EX, 1, 121)  # the lock that SQLite takes for a copy of the log
print("holds it", flush=True)
sys.stdin.read()
"""


@contextmanager
def copying(file: Path) -> Iterator[Popen[bytes]]:
    """Another program copies the log until its input ends."""
    with Popen([sys.executable, "-c", COPYING, f"{file}-shm"], stdin=PIPE, stdout=PIPE) as copier:
        assert copier.stdout.readline() == b"holds it\n"
        yield copier


async def test_a_deletion_waits_for_another_copy_of_the_log(store, tmp_path, monkeypatch, caplog):
    """SQLite's own wait is for readers only: a copy by another thread or program would leave the deleted text in the log."""
    await say(store, await begin(store, "kraken"), "the kraken " * 900)
    await indexed(store)
    with copying(tmp_path / "a.db") as copier:
        pauses = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: copier.communicate())
        monkeypatch.setattr(file, "time", pauses)
        assert await store.delete(ANNA, "kraken") == 1
        assert copier.poll() == 0
    assert caplog.text == ""
    assert b"kraken" not in bytes_on_disk(tmp_path)


async def stopped(_: SqliteStore) -> None:
    raise asyncio.CancelledError


async def test_what_others_still_read_is_cleared_when_they_are_done(store, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sqlite_store, "PATIENCE_MS", 20)
    await say(store, await begin(store, "kraken"), "the kraken " * 900)
    head = await say(store, await begin(store), "walrus")
    await indexed(store)  # or it clears the file as soon as it can
    with reading(tmp_path / "a.db"):
        assert await store.delete(ANNA, "kraken") == 1
    assert "some of it is still in the file (BusyError)" in caplog.text
    assert b"kraken" in bytes_on_disk(tmp_path)

    await say(store, head, *(f"walrus {number}" for number in range(WORDS_TOGETHER)))
    await indexed(store)
    assert b"kraken" not in bytes_on_disk(tmp_path)
