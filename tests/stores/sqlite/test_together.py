"""Transactions that go to the disk together: what is told to whoever waits is what is there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import apsw
import pytest

from refold.model.errors import StoreError
from refold.ports.records import Head
from refold.stores.sqlite.store import SqliteStore
from refold.stores.sqlite.writer import MOST_TOGETHER
from tests.contract.talks import ANNA, begin, read, say
from tests.stores.sqlite.inside import writer_of

SPEAKERS = """
import asyncio, sys
from pathlib import Path
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import begin, say
from tests.stores.sqlite.test_together import held_up

async def main(path, *words):
    store = await SqliteStore.open(Path(path))
    heads = [await begin(store, f"talk{number}") for number in range(8)]

    async def speak(head):
        await say(store, head, *words)
        print(head.conversation, flush=True)

    with held_up(store):
        waiting = asyncio.gather(*map(speak, heads))
        await asyncio.sleep(0)
    await waiting

asyncio.run(main(*sys.argv[1:]))
"""
MANY = 2 * MOST_TOGETHER + 3
"""More than go together at once."""


@contextmanager
def held_up(store: SqliteStore) -> Iterator[None]:
    """Another program writes, so that whatever comes in meanwhile comes to wait."""
    other = apsw.Connection(str(store._file.path))
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


async def say_together(store: SqliteStore, heads: list[Head]) -> list[Head | BaseException]:
    with held_up(store):
        waiting = asyncio.gather(*(say(store, head, "hello") for head in heads), return_exceptions=True)
        await asyncio.sleep(0)
    return await waiting


async def test_many_who_wait_share_a_few_trips_to_the_disk(store):
    heads, commits = [await begin(store, f"talk{number}") for number in range(MANY)], []
    writer_of(store).set_commit_hook(lambda: bool(commits.append(1)))
    found = await say_together(store, heads)
    writer_of(store).set_commit_hook(None)

    assert [head.next_seq for head in found] == [1] * MANY
    assert len(commits) <= 4


async def test_whoever_is_told_of_success_finds_it_on_the_disk(store):
    """Seen by another connection, to which nothing is shown before its commit."""
    heads = [await begin(store, f"talk{number}") for number in range(MANY)]
    other = apsw.Connection(str(store._file.path), flags=apsw.SQLITE_OPEN_READONLY)

    async def say_and_look(head: Head) -> list[tuple[int]]:
        await say(store, head, "hello")
        return other.execute("SELECT next_seq FROM head WHERE id = ?", (head.branch,)).fetchall()

    found = await asyncio.gather(*map(say_and_look, heads))
    other.close()
    assert found == [[(1,)]] * MANY


async def test_all_who_wait_for_another_program_give_up_together(store, monkeypatch):
    """Each by itself would wait as long again."""
    heads, waits = [await begin(store, f"talk{number}") for number in range(MANY)], []
    monkeypatch.setattr(store._file._writer, "_patience", lambda times: bool(waits.append(times)))
    with held_up(store):
        found = await asyncio.gather(*(say(store, head, "hello") for head in heads), return_exceptions=True)

    assert {type(one) for one in found} == {StoreError}
    assert len(waits) <= 4


async def test_where_the_commit_fails_nobody_is_told_of_success(store):
    heads = [await begin(store, f"talk{number}") for number in range(5)]
    writer_of(store).set_commit_hook(lambda: True)  # every commit is turned into an error
    found = await say_together(store, heads)
    writer_of(store).set_commit_hook(None)

    assert [type(one) for one in found] == [StoreError] * 5
    assert [await read(store, head) for head in heads] == [[]] * 5
    assert [head.next_seq for head in await say_together(store, heads)] == [1] * 5, "it goes on"


async def test_where_it_fails_for_all_together_each_is_tried_by_itself(store):
    heads, refusals = [await begin(store, f"talk{number}") for number in range(5)], [True]
    writer_of(store).set_commit_hook(lambda: refusals.pop() if refusals else False)
    found = await say_together(store, heads)
    writer_of(store).set_commit_hook(None)

    assert [head.next_seq for head in found] == [1] * 5
    assert [await read(store, await store.head(ANNA, head.conversation)) for head in heads] == [["hello"]] * 5


@pytest.mark.parametrize("gone", [0, 2, 4])
async def test_one_who_goes_away_while_all_wait_takes_nobody_along(store, gone):
    heads = [await begin(store, f"talk{number}") for number in range(5)]
    with held_up(store):
        waiting = [asyncio.create_task(say(store, head, "hello")) for head in heads]
        await asyncio.sleep(0)
        waiting[gone].cancel()
    found = await asyncio.gather(*waiting, return_exceptions=True)

    assert isinstance(found[gone], asyncio.CancelledError)
    assert [head.next_seq for place, head in enumerate(found) if place != gone] == [1] * 4


@pytest.mark.parametrize(
    ("place", "words"),
    [("append.before_commit", "a"), ("commit.after_lock", "ab"), ("commit.before_commit", "ab")],
)
async def test_killed_in_the_middle_of_many_none_of_them_is_there_and_none_was_told(tmp_path, place, words):
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SPEAKERS, str(tmp_path / "a.db"), *words),
        env=os.environ | {"REFOLD_FAILPOINT": f"{place}:kill:5"},
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await program.communicate()
    assert program.returncode == -signal.SIGKILL
    store = await SqliteStore.open(tmp_path / "a.db")
    stored = [one.id for one in await store.conversations(ANNA) if one.messages]

    assert set(told.decode().split()) <= set(stored), "what was acknowledged is there"
    assert len(stored) < 5, "of those that were to be committed with the fifth there is none"
    assert await store.check() == []
    await store.close()
