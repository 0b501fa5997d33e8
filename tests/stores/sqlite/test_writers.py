"""One file, many writers: nothing that was acknowledged is lost, and nobody is locked out."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE

import apsw
import pytest

from refold.model.errors import Conflict, StoreError
from refold.ports.records import Batch
from refold.stores.sqlite import file
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import ANNA, begin, message, read, say
from tests.stores.sqlite.inside import writer_of

TALKER = """
import asyncio, sys
from pathlib import Path
from refold.model.errors import Conflict
from refold.stores.sqlite.store import SqliteStore
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


OPENER = """
import asyncio, sys
from pathlib import Path
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import begin, say

async def main(path, name):
    sys.stdin.readline()
    store = await SqliteStore.open(Path(path))
    await say(store, await begin(store, name), name)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


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
    writer_of(store).set_busy_handler(file.patiently(lambda: 0.0))
    other = apsw.Connection(str(tmp_path / "a.db"))
    other.execute("BEGIN IMMEDIATE")

    for job in (say(store, head, "a"), say(store, head, "b")):
        with pytest.raises(StoreError) as refused:
            await job
        assert "another program" in str(refused.value)
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


FORKER = """
import asyncio, os, sys
from pathlib import Path
from refold.model.errors import StoreError
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import ANNA, begin, read, say

async def tried(act):
    try:
        await asyncio.wait_for(act, 10)
        return "done"
    except StoreError as error:
        return error.message.split(":")[0]

async def child(store, head, path):
    told = [await tried(say(store, head, "lost")), await tried(store.search(ANNA, "hello"))]
    told.append(await tried(SqliteStore.open(path)))
    await store.close()
    other = await SqliteStore.open(path.with_name("other.db"))
    await say(other, await begin(other), "of its own")
    await other.close()
    return told

async def main(path):
    store = await SqliteStore.open(path)
    head = await say(store, await begin(store), "hello")
    return store, head

path = Path(sys.argv[1])
loop = asyncio.new_event_loop()
store, head = loop.run_until_complete(main(path))
if not os.fork():
    print(*asyncio.new_event_loop().run_until_complete(child(store, head, path)), sep="; ", flush=True)
    os._exit(0)
os.wait()
head = loop.run_until_complete(say(store, head, "and on"))
print(*loop.run_until_complete(read(store, head)), sep="; ", flush=True)
loop.run_until_complete(store.close())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_process_that_was_forked_is_told_that_the_file_is_another_s(tmp_path):
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKER, str(tmp_path / "a.db"), stdout=PIPE
    )
    out, _ = await asyncio.wait_for(running.communicate(), 60)

    closed, forked = "the store is closed", "the database was open when this process was forked"
    assert out.decode().splitlines() == [f"{closed}; {closed}; {forked}", "hello; and on"]
    assert (tmp_path / "other.db").exists()
