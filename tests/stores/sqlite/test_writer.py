"""Where a write is made, and a lookup: on the spot where that holds up nobody, and in a thread everywhere else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import apsw
import pytest
from msgspec import structs

from refold.model.errors import Conflict, StoreError
from refold.ports.records import Batch
from refold.stores.sqlite import store as sqlite_store
from refold.stores.sqlite import writer
from refold.stores.sqlite.store import SMALL_BYTES, WORDS_TOGETHER, SqliteStore
from refold.stores.sqlite.writer import ALONE_S, MOST_IN_A_ROW, QUICK_S
from tests.contract.talks import begin, message, read, say
from tests.stores.sqlite.inside import copying_of, writer_of
from tests.stores.sqlite.test_together import held_up


class Clock:
    """Time passes only where a test says so."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(writer, "perf_counter", made)
    return made


@pytest.fixture
def places(store: SqliteStore) -> Iterator[list[str]]:
    """For each commit, whether it was made "here", in the thread of the event loop, or "there"."""
    here, found = threading.get_ident(), list[str]()

    def note() -> bool:
        found.append("here" if threading.get_ident() == here else "there")
        return False

    writer_of(store).set_commit_hook(note)
    yield found
    writer_of(store).set_commit_hook(None)


async def test_a_small_write_that_nobody_else_is_near_is_made_on_the_spot(store, places, clock):
    head = await begin(store)
    clock.now += 2 * ALONE_S
    head = await say(store, head, "hello")

    assert places == ["there", "here"], "a conversation is begun in the thread"
    assert await read(store, head) == ["hello"]


async def test_what_is_not_small_goes_to_the_thread(store, places):
    head = await begin(store)
    head = await say(store, head, "x" * SMALL_BYTES)
    await say(store, head, "x")

    assert places == ["there", "there", "here"]


async def test_those_who_come_at_the_same_time_go_to_the_disk_together(store, places):
    heads = [await begin(store, f"talk{number}") for number in range(8)]
    places.clear()
    await asyncio.gather(*(say(store, head, "hello") for head in heads))

    assert set(places) == {"there"}
    assert len(places) < len(heads)


async def test_a_disk_that_takes_its_time_holds_up_its_own_thread_only(store, places, clock):
    head = await begin(store)

    def slow() -> bool:
        clock.now += 2 * QUICK_S
        return places.append("slow") is not None

    head = await say(store, head, "one")
    writer_of(store).set_commit_hook(slow)
    head = await say(store, head, "two")  # on the spot, since nobody could know
    places.clear()
    here = threading.get_ident()
    writer_of(store).set_commit_hook(lambda: bool(places.append(threading.get_ident() == here)))
    await say(store, head, "three")

    assert places == [False]


async def test_others_have_their_turn_while_somebody_writes_without_a_pause(store, places):
    head, turns = await say(store, await begin(store), "hello"), []
    places.clear()
    store._file._writer._in_a_row = 0  # what was written before is not counted

    async def wait_for_a_turn() -> None:
        turns.append(len(places))

    waiting = asyncio.create_task(wait_for_a_turn())
    for _ in range(MOST_IN_A_ROW + 2):
        head = await say(store, head, "hello")

    assert waiting.done()
    assert turns == [MOST_IN_A_ROW]
    assert set(places) == {"here"}, "they make room and go on where they were"


@pytest.mark.parametrize("is_quick", [True, False])
async def test_who_makes_room_while_the_store_is_closed_is_told_so(tmp_path, clock, is_quick):
    store = await SqliteStore.open(tmp_path / "closing.db")
    head = await say(store, await begin(store), "hello")
    writer = store._file._writer
    writer._in_a_row, writer._took_s = MOST_IN_A_ROW, 0.0 if is_quick else 2 * QUICK_S
    saying = asyncio.create_task(say(store, head, "late"))
    await asyncio.sleep(0)  # it makes room for others
    store._file._is_closed = True
    store._file._close()

    with pytest.raises(StoreError, match="closed"):
        await asyncio.wait_for(saying, 5)


async def test_the_event_loop_does_not_wait_for_another_program(store, places, clock):
    head = await begin(store)
    clock.now += 2 * ALONE_S
    head = await say(store, head, "one")
    with held_up(store):
        waiting = asyncio.create_task(say(store, head, "two"))
        await asyncio.sleep(0)  # this would not come back while the other program writes
        assert not waiting.done()
    head = await waiting

    assert places == ["there", "here", "there"]
    assert await read(store, head) == ["one", "two"]


async def test_what_is_refused_on_the_spot_is_told_as_everywhere_else(store, places, clock):
    head = await begin(store)
    clock.now += 2 * ALONE_S
    seen = head = await say(store, head, "one")
    head = await say(store, head, "two")
    with pytest.raises(Conflict):
        await say(store, seen, "behind")
    nameless = structs.replace(message(head.next_seq, "three"), key="half a pair: \ud83d")
    with pytest.raises(StoreError, match="not valid Unicode"):
        await store.commit(head, Batch(at=2.0, messages=(nameless,)))
    head = await say(store, head, "three")

    assert set(places[1:]) == {"here"}, "and whoever comes next is not held up by it"
    assert await read(store, head) == ["one", "two", "three"]


async def test_a_disk_that_is_full_on_the_spot_is_told_and_nothing_is_kept_twice(store, places, clock):
    head = await begin(store)
    clock.now += 2 * ALONE_S
    head = await say(store, head, "one")
    connection = writer_of(store)
    ((pages,),) = connection.execute("PRAGMA page_count")
    connection.execute(f"PRAGMA max_page_count = {pages}")

    async def fill() -> None:
        nonlocal head
        for _ in range(200):
            head = await say(store, head, "x" * 900)

    with pytest.raises(StoreError, match="no room"):
        await fill()
    connection.execute(f"PRAGMA max_page_count = {2 * pages + 1_000}")
    kept = head.next_seq
    head = await say(store, head, "again")

    assert head.next_seq == kept + 1
    assert [one.seq for one in await store.messages(head)] == [*range(kept + 1)]


class Lookups:
    """For each lookup, whether it was made "here", in the thread of the event loop, or "there"; `took_s` is its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: float) -> None:
        self.found, self.took_s, self._here = list[str](), took_s, threading.get_ident()
        self._clock, self._run = Clock(), sqlite_store.run
        monkeypatch.setattr(sqlite_store, "perf_counter", self._clock)
        monkeypatch.setattr(sqlite_store, "run", self._look)

    def _look(self, *args: object) -> object:
        self.found.append("here" if threading.get_ident() == self._here else "there")
        self._clock.now += self.took_s
        return self._run(*args)


async def test_a_quick_lookup_is_made_on_the_spot(store, monkeypatch):
    head = await begin(store)
    lookups = Lookups(monkeypatch, took_s=QUICK_S / 10)

    assert await store.head(head.owner, head.conversation) == head
    assert await store.head(head.owner, "another") is None
    assert lookups.found == ["here", "here"]


async def test_after_a_slow_lookup_they_are_made_in_a_thread_until_one_is_quick(store, monkeypatch):
    head = await begin(store)
    lookups = Lookups(monkeypatch, took_s=2 * QUICK_S)
    await store.head(head.owner, head.conversation)
    await store.head(head.owner, head.conversation)
    lookups.took_s = 0.0
    await store.head(head.owner, head.conversation)
    await store.head(head.owner, head.conversation)

    assert lookups.found == ["here", "there", "there", "here"]


async def test_a_lookup_in_a_closed_store_is_refused(tmp_path):
    store = await SqliteStore.open(tmp_path / "closed.db")
    head = await begin(store)
    await store.close()

    with pytest.raises(StoreError, match="closed"):
        await store.head(head.owner, head.conversation)


async def test_a_store_that_is_closed_waits_for_the_index_and_not_for_its_rests(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "RESTS", 1e9)
    monkeypatch.setattr(sqlite_store, "MOST_WORDS", 16)
    store = await SqliteStore.open(tmp_path / "closing.db")
    await say(store, await begin(store), *["hello"] * WORDS_TOGETHER)
    await asyncio.wait_for(store.close(), 60)
    again = await SqliteStore.open(tmp_path / "closing.db")

    assert not await again._file.read(sqlite_store._is_behind, 0)
    await again.close()


async def test_the_log_of_large_commits_is_copied_into_the_file_and_begins_anew(store):
    """With another connection, so that no writer waits for it."""
    path, head = store._file.path, await begin(store)
    text, log = "x" * 3_000_000, path.with_name(f"{path.name}-wal")
    for round_ in range(1, 6):
        few = tuple(message(head.next_seq + at, text) for at in range(4))
        head = await store.commit(head, Batch(at=1.0, messages=few))
        copying = copying_of(store)
        assert copying.ident not in {None, threading.get_ident()}
        await asyncio.to_thread(copying.join)
        head = await say(store, head, "a small one")

        assert path.stat().st_size > round_ * 12_000_000

    assert log.stat().st_size < 30_000_000


async def test_a_log_that_somebody_reads_is_copied_later(store):
    head = await begin(store)
    reader = apsw.Connection(str(store._file.path))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM message").fetchall()
    for _ in range(3):
        few = tuple(message(head.next_seq + at, "x" * 3_000_000) for at in range(4))
        head = await store.commit(head, Batch(at=1.0, messages=few))
        await asyncio.to_thread(copying_of(store).join)
    assert store._file.path.stat().st_size < 1_000_000

    reader.close()
    while store._file.path.stat().st_size < 36_000_000:
        head = await say(store, head, "x" * 500_000)
        await asyncio.to_thread(copying_of(store).join)

    assert len(await read(store, head)) == head.next_seq


async def test_a_commit_is_kept_and_told_so_if_no_thread_can_copy_its_log(store, monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    head = await begin(store)
    monkeypatch.setattr(writer.threading.Thread, "start", refuse)
    few = tuple(message(head.next_seq + at, "x" * 3_000_000) for at in range(4))
    head = await store.commit(head, Batch(at=1.0, messages=few))
    monkeypatch.undo()

    assert len(await read(store, head)) == 4
