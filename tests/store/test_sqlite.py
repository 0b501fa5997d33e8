"""One file, many writers: nothing that was acknowledged is lost, nothing is half there, and what is deleted is gone."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import apsw
import pytest

from refold.model.errors import Conflict, StoreError
from refold.ports.store import Batch
from refold.store import sqlite_copy, sqlite_file
from refold.store.sqlite import SqliteStore
from tests.contract.talks import (
    ANNA,
    BORIS,
    begin,
    call,
    compact,
    first_session,
    fold,
    message,
    messages,
    new_head,
    planned,
    read,
    say,
    summary,
    written,
)

TALKER = """
import asyncio, sys
from pathlib import Path
from refold.model.errors import Conflict
from refold.store.sqlite import SqliteStore
from tests.contract.talks import ANNA, begin, say

async def main(path, name, times):
    store = await SqliteStore.open(Path(path))
    own = await begin(store, name)
    shared = await begin(store, "shared")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(times)):
        own = await say(store, own, f"{name} {number}")
        while True:
            try:
                await say(store, shared, f"{name} {number}")
                break
            except Conflict:
                shared = await store.head(ANNA, "shared")
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def store(tmp_path):
    opened = await SqliteStore.open(tmp_path / "a.db")
    yield opened
    await opened.close()


def writer_of(store: SqliteStore) -> apsw.Connection:
    return store._file._writer.connection


async def test_two_programs_on_one_file_wait_for_each_other(store, tmp_path):
    programs = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", TALKER, str(tmp_path / "a.db"), name, "60"), stdin=PIPE, stdout=PIPE
        )
        for name in ("one", "two")
    ]
    for program in programs:
        assert await program.stdout.readline() == b"ready\n"
    for program in programs:
        program.stdin.write(b"go\n")
    own = await begin(store, "three")
    for number in range(60):
        own = await say(store, own, f"three {number}")
    for program in programs:
        await program.communicate()
        assert program.returncode == 0

    for name in ("one", "two", "three"):
        expected = [f"{name} {number}" for number in range(60)]
        assert await read(store, await store.head(ANNA, name)) == expected
    shared = await read(store, await store.head(ANNA, "shared"))
    for name in ("one", "two"):
        assert [text for text in shared if text.startswith(name)] == [
            f"{name} {number}" for number in range(60)
        ]
    assert len(shared) == 120
    assert await store.check() == []


OPENER = """
import asyncio, sys
from pathlib import Path
from refold.store.sqlite import SqliteStore
from tests.contract.talks import begin, say

async def main(path, name):
    sys.stdin.readline()
    store = await SqliteStore.open(Path(path))
    await say(store, await begin(store, name), name)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_programs_that_begin_a_file_at_the_same_moment_make_one(tmp_path):
    names = ("one", "two", "three", "four")
    programs = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", OPENER, str(tmp_path / "new.db"), name), stdin=PIPE
        )
        for name in names
    ]
    await asyncio.gather(*(program.communicate(b"go\n") for program in programs))
    assert [program.returncode for program in programs] == [0, 0, 0, 0]
    store = await SqliteStore.open(tmp_path / "new.db")

    for name in names:
        assert await read(store, await store.head(ANNA, name)) == [name]
    await store.close()


async def test_two_stores_of_one_program_share_one_queue(store, tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    other = await SqliteStore.open(tmp_path / "link.db")
    head, theirs = await begin(store), await begin(other, "other")

    async def talk(which, head):
        for number in range(30):
            head = await say(which, head, str(number))

    await asyncio.gather(talk(store, head), talk(other, theirs))
    assert writer_of(other) is writer_of(store)
    await other.close()
    assert await read(store, await store.head(ANNA, "other")) == [str(number) for number in range(30)]
    await say(store, await store.head(ANNA, "talk"), "goes on")


async def test_a_lock_that_is_never_given_back_is_said_in_the_end(store, tmp_path):
    head = await begin(store)
    writer_of(store).set_busy_handler(sqlite_file.patiently(0.0))
    other = apsw.Connection(str(tmp_path / "a.db"))
    other.execute("BEGIN IMMEDIATE")

    for job in (say(store, head, "a"), say(store, head, "b")):
        with pytest.raises(StoreError) as refused:
            await job
        assert "Another program" in str(refused.value)
        assert not isinstance(refused.value, Conflict)
    other.execute("ROLLBACK")
    other.close()
    assert (await say(store, head, "c")).next_seq == 1


async def test_commits_that_wait_together_succeed_and_fail_each_by_itself(store, tmp_path):
    heads = [await begin(store, f"talk{number}") for number in range(20)]
    stale, twice = heads[7], await begin(store, "twice")
    heads[7] = await say(store, stale, "first")
    same_key = Batch(at=2.0, messages=(message(0, "one", key="k"), message(1, "two", key="k")))
    jobs = [say(store, head, "hello") for head in heads]
    jobs[5:5] = [say(store, stale, "too late"), store.commit(twice, same_key)]
    # While another program writes, all of them come to wait.
    other = apsw.Connection(str(tmp_path / "a.db"))
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.gather(*jobs, return_exceptions=True)
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    other.close()
    results = await waiting

    assert isinstance(results.pop(5), Conflict)
    assert isinstance(results.pop(5), Conflict)
    assert await store.head(ANNA, "twice") == twice
    assert await read(store, twice) == []
    assert [head.next_seq for head in results] == [2 if number == 7 else 1 for number in range(20)]
    for head in results:
        assert (await read(store, head))[-1] == "hello"


async def test_a_file_in_use_can_be_opened_while_another_program_writes(store, tmp_path):
    other = apsw.Connection(str(tmp_path / "a.db"))
    other.execute("BEGIN IMMEDIATE")
    again = await SqliteStore.open(tmp_path / "a.db")

    assert await again.owners() == []
    await again.close()
    other.execute("ROLLBACK")
    other.close()


def limit_pages(store: SqliteStore, more: int | None) -> None:
    """Let the file grow by so many pages and no more."""
    connection = writer_of(store)
    pages = connection.pragma("page_count")
    connection.pragma("max_page_count", pages + more if more is not None else 1_000_000)


async def test_a_full_disk_is_said_and_nothing_of_the_batch_is_there(store):
    head = await say(store, await begin(store), *"abc")
    limit_pages(store, 1)
    batch = Batch(
        at=5.0,
        messages=messages(head, "x" * 50_000),
        changes=(fold(head, 2),),
        calls=(call(head, "call", input=1),),
    )
    with pytest.raises(StoreError) as full:
        await store.commit(head, batch)

    assert "room" in str(full.value)
    assert "free" in full.value.hint
    assert await store.head(ANNA, "talk") == head
    assert await read(store, head) == ["a", "b", "c"]
    assert len(await store.sessions(ANNA, "talk")) == 1
    assert await store.compactions(ANNA, head.branch) == []
    limit_pages(store, None)
    assert (await store.commit(head, batch)).next_seq == 4, "it goes on without being opened again"
    assert await store.check() == []


async def test_with_a_full_disk_those_that_fit_are_stored_and_the_rest_are_told(store):
    heads = [await begin(store, f"talk{number}") for number in range(12)]
    limit_pages(store, 24)
    sizes = [50_000 if number % 4 == 1 else 10 for number in range(12)]
    jobs = [say(store, head, "x" * size) for head, size in zip(heads, sizes, strict=True)]
    results = await asyncio.gather(*jobs, return_exceptions=True)

    assert any(isinstance(result, StoreError) for result in results)
    for head, result in zip(heads, results, strict=True):
        is_stored = (await store.head(ANNA, head.conversation)).next_seq == 1
        assert is_stored == (not isinstance(result, BaseException)), "told what is true"
        assert len(await read(store, head)) == is_stored
    assert all(
        not isinstance(result, BaseException)
        for result, size in zip(results, sizes, strict=True)
        if size == 10
    )
    limit_pages(store, None)
    assert await store.check() == []


async def test_a_message_is_never_changed_or_deleted_by_hand(store):
    head = await say(store, await begin(store), "storm")
    connection = writer_of(store)
    for statement in (
        "UPDATE message SET body = x'00'",
        "UPDATE message SET seq = 5",
        "DELETE FROM message",
        "DELETE FROM branch",
    ):
        with pytest.raises(apsw.ConstraintError):
            connection.execute(statement)

    assert await read(store, head) == ["storm"]


async def test_two_live_continuations_of_one_session_are_refused_by_the_database(store):
    head = await say(store, await begin(store), *"abc")
    await compact(store, head, 2, "c1")
    with pytest.raises(apsw.ConstraintError):
        writer_of(store).execute(
            """INSERT INTO session (owner, id, conversation, branch, first, kind, parent, carries, summary, target,
            tokens, at) SELECT owner, 'twin', conversation, branch, first, kind, parent, carries, summary, target,
            tokens, at FROM session WHERE kind = 'compaction'"""
        )


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


async def test_what_is_deleted_is_on_the_disk_no_more(store, tmp_path):
    secret, other = "kraken", "walrus"
    for number in range(80):
        head = await begin(store, f"{secret}{number}", title=f"about {secret}")
        head = await say(store, head, f"the {secret} number {number}", f"{secret} " * 900)
        await store.cache(ANNA, f"key{number}", summary(f"a {secret}"), 1.0)
    head = await store.commit(head, Batch(at=3.0, changes=(fold(head, 1, secret),), notes=b"about a kraken"))
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
    await store.pin(head, 0, on=True)
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


async def test_words_are_found_whether_the_index_has_taken_them_up_or_not(store):
    head = await begin(store)
    for number in range(150):
        head = await say(store, head, f"boat number{number}", f"sail {number}")

    ((waiting,),) = writer_of(store).execute("SELECT count(*) FROM unindexed")
    assert waiting < 64, "what waits for the index is never much"
    for number in (0, 1, 31, 32, 100, 149):
        assert [hit.seq for hit in await store.search(ANNA, f"number{number}")] == [2 * number]
    assert len(await store.search(ANNA, "boat", limit=200)) == 150
    head = await say(store, head, "one more harbour")
    await store.delete(ANNA, "talk")
    assert await store.search(ANNA, "harbour") == []
    head = await say(store, await begin(store), "another")
    assert await store.search(ANNA, "boat") == []


async def test_a_name_that_is_no_text_is_refused(store):
    with pytest.raises(StoreError) as refused:
        await begin(store, title="half a pair: \ud83d")

    assert "Unicode" in refused.value.hint
    assert await store.owners() == []


async def test_a_text_that_is_no_text_is_stored_and_the_rest_of_it_found(store):
    head = await begin(store)
    head = await store.commit(
        head,
        Batch(
            at=1.0,
            messages=(
                message(0, "storm"),
                _with_text(message(1, "x"), "calm \ud83d sea"),
            ),
        ),
    )

    assert [hit.seq for hit in await store.search(ANNA, "sea")] == [1]


def _with_text(stored, text):
    from msgspec import structs

    return structs.replace(stored, text=text)


async def test_what_is_closed_says_so(tmp_path):
    store = await SqliteStore.open(tmp_path / "a.db")
    await store.close()
    await store.close()

    with pytest.raises(StoreError, match="closed"):
        await store.owners()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"], "the log was brought into the file"


async def test_a_store_works_from_one_event_loop_after_another(tmp_path):
    def once(text: str) -> list[str]:
        async def main() -> list[str]:
            store = await SqliteStore.open(tmp_path / "a.db")
            head = await begin(store)
            await say(store, head, text)
            found = await read(store, await store.head(ANNA, "talk"))
            await store.close()
            return found

        return asyncio.run(main())

    assert await asyncio.to_thread(once, "one") == ["one"]
    assert await asyncio.to_thread(once, "two") == ["one", "two"]


async def test_one_open_store_serves_several_event_loops(store):
    head = await begin(store)
    head = await asyncio.to_thread(lambda: asyncio.run(say(store, head, "from another loop")))

    assert await read(store, head) == ["from another loop"]


async def test_damage_to_a_message_is_found(store):
    head = await say(store, await begin(store), *"abcd")
    assert await store.check() == []
    assert await store.damaged(head) == []
    connection = writer_of(store)
    connection.execute("DROP TRIGGER message_never_changes")
    connection.execute("UPDATE message SET body = x'7b7d' WHERE seq = 2")
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("INSERT INTO pin (owner, branch, seq) VALUES ('anna', 'nowhere', 1)")

    faults = await store.check()
    assert any("message 2" in fault for fault in faults)
    assert any("table pin" in fault for fault in faults)
    assert len(faults) == 2
    assert await store.damaged(head) == [2]


async def test_a_fork_is_read_through_links_that_share_nothing(store):
    base = await say(store, await begin(store), *"abcdef")
    heads = [base]
    for depth, at in enumerate((5, 4, 4, 2), 1):
        side = new_head(branch=f"talk/{depth}")
        side = await store.fork(heads[-1], at, side, first_session(side, at))
        heads.append(await say(store, side, f"own{depth}"))

    assert await read(store, heads[4]) == ["a", "b", "own4"]
    assert await read(store, heads[3]) == ["a", "b", "c", "d", "own3"]
    assert [one.seq for one in await store.messages(heads[3], 1, 5)] == [1, 2, 3, 4]
    assert [one.seq for one in await store.messages(heads[3], limit=2)] == [0, 1]
    assert [one.seq for one in await store.pick(heads[2], [4, 0, 9, 2])] == [0, 2, 4]


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

    monkeypatch.setattr(sqlite_copy, "_copy", fail)
    with pytest.raises(StoreError, match="cannot be written"):
        await store.backup(tmp_path / "copy.db")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "a.db-shm", "a.db-wal"]


async def test_a_reply_that_was_put_back_can_be_written_anew_and_not_after_it_took_effect(store):
    head = await say(store, await begin(store), *"abc")
    await store.plan(ANNA, planned(head))
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    assert await store.reply(ANNA, "work", "me", written("work", "Bad."), None)
    assert await store.give_up(ANNA, "work", "me", "planned")
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    assert await store.reply(ANNA, "work", "me", written("work", "Good."), None)
    assert await store.written(ANNA, ["work"]) == [written("work", "Good.")]
    await store.commit(head, Batch(at=5.0, changes=(fold(head, 1, "work"),)))
    kept = await store.written(ANNA, ["work"])
    assert not await store.reply(ANNA, "work", "me", written("work", "Late."), None)
    session = (await store.sessions(ANNA, "talk"))[0]
    assert not await store.attach_summary(ANNA, session.id, written("work", "Later."))

    assert await store.written(ANNA, ["work"]) == kept
