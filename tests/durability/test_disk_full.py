"""A full disk refuses what is new and harms nothing; as soon as there is room, the same program goes on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold.model.errors import StoreError
from refold.stores.sqlite.store import SqliteStore
from tests.durability.conversations import compacted, engine, names, turn
from tests.durability.notes import OWNER


@contextmanager
def few_pages(store: SqliteStore, path: Path) -> Iterator[None]:
    """As SQLite sees it: not a page more than these."""
    connection = store._file._writer.connection
    most = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count") + 25)
    yield
    connection.pragma("max_page_count", most)


@contextmanager
def small_files(store: SqliteStore, path: Path) -> Iterator[None]:
    """As the system sees it: no file grows beyond this, in the middle of a write if need be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = path.with_name(path.name + "-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(path.stat().st_size, log.stat().st_size) + 60_001, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def until_full(talk, said: list[str], number: int = 10) -> None:
    """Talk on and on, and compact now and then; all that is acknowledged is noted."""
    while True:
        messages = turn(number)
        await talk.add(*messages)
        said += names(messages)
        if number % 7 == 0:
            await compacted(talk)
        number += 1
        assert number < 3_000


@pytest.mark.parametrize("limited", [few_pages, small_files])
async def test_what_was_acknowledged_is_there_and_the_next_act_works_when_there_is_room(tmp_path, limited):
    path, said = tmp_path / "talks.db", list[str]()
    store = await SqliteStore.open(path)
    talk = await engine(store).conversation("talk")
    for number in range(10):
        await talk.add(*turn(number))
        said += names(turn(number))
    with limited(store, path):
        with pytest.raises(StoreError) as full:
            await until_full(talk, said)
        assert full.value.hint
        with pytest.raises(StoreError):
            await until_full(talk, said, 1_000)
    await talk.add(*turn(5_000))
    said += names(turn(5_000))
    await compacted(talk)

    head = await store.head(OWNER, "talk")
    assert [
        f"{one.body.decode().partition('<')[2].partition('>')[0]}" for one in await store.messages(head)
    ] == [name.strip("<>") for name in said]
    assert await engine(store).examine("talk") == []
    assert await store.check() == []
    assert (await talk.recall(f"#m{len(said) - 1}"))["content"].startswith("<a5000>")
    await store.close()
