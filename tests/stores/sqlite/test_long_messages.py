"""A long message is indexed in several transactions, and found as if it were one: other writers never wait long for its words."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from refold.stores.memory import MemoryStore
from refold.stores.sqlite import store as sqlite_store
from refold.stores.sqlite.store import WORDS_TOGETHER, SqliteStore
from tests.contract.talks import ANNA, BORIS, begin, say
from tests.stores.sqlite.inside import writer_of

PART, OVERLAP = 2_000, 40


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of some hundred words; the texts that are split at a time are small too."""
    monkeypatch.setattr(sqlite_store, "PART_SIZE", PART)
    monkeypatch.setattr(sqlite_store, "PART_OVERLAP", OVERLAP)
    monkeypatch.setattr("refold.core.search.query._STEP", 500)


def parts_in(store: SqliteStore) -> list[tuple[int, int]]:
    return list(writer_of(store).execute("SELECT first, size FROM word_part ORDER BY message, first"))


def text_of(chance: Random, size: int) -> str:
    words = [f"w{number}" for number in range(300)] + ["storm at sea", "src/app.py", "harbour", "数据库"]
    return " ".join(chance.choices(words, [1] * 300 + [3] * 4, k=size))


QUERIES = (
    "w17", "w17 w200", "storm", '"storm at sea"', '"storm at sea" w5', '"w3" "w250"', "src/app.py", "harbour -w1", "w4 -storm",
    "数据库", "数据", "rare", '"rare" w3', "harbor", '"w1 w2"', "from:assistant w9", '"front" "back"', "front back", '"front" -back', "-front",
    "before:1971 w17", "w1 in:talk", "absent w8",
)  # fmt: skip


async def test_a_search_finds_the_same_as_in_memory(store, small_parts):
    chance, memory = Random(3), MemoryStore()
    texts = [text_of(chance, size) for size in (5, 3_000, 40, 1_000, 20, 2_500, 600, 900)]
    texts[1] = f"front {texts[1]} rare {texts[1]} back"
    texts[3] = f"{texts[3]} front"
    texts[5] = f"{texts[5]} back"
    for one in (store, memory):
        await say(one, await begin(one, "talk"), *texts[:5])
        await say(one, await begin(one, "other"), *texts[5:])

    for query in QUERIES:
        for conversation in ("", "talk"):
            hits = await store.search(ANNA, query, conversation=conversation, limit=100)
            expected = await memory.search(ANNA, query, conversation=conversation, limit=100)
            assert hits == expected, query
    sessions = [await one.search_sessions(ANNA, "w17 rare", limit=100) for one in (store, memory)]
    assert sessions[0] == sessions[1]
    assert len(parts_in(store)) > 20
    assert await store.check() == []


async def test_a_phrase_is_found_and_counted_once_wherever_a_part_ends(store, small_parts):
    text = " ".join(f"w{number}" for number in range(2_000))
    await say(store, await begin(store), text)
    for number in range(0, 1_999, 7):
        assert len(await store.search(ANNA, f"w{number}-w{number + 1}")) == 1, number
    ends = [first + size for first, size in parts_in(store)]
    assert len(ends) > 3
    for end in ends[:-1]:
        long = "-".join(f"w{number}" for number in range(end - OVERLAP + 2, end + 2))
        assert len(await store.search(ANNA, long)) == 1, end
    assert ends[-1] == 2_000


async def test_a_long_message_takes_several_transactions_and_other_writers_come_between(store, small_parts):
    await say(store, await begin(store), " ".join(f"w{number}" for number in range(4_000)))
    commits = []
    writer_of(store).set_commit_hook(lambda: bool(commits.append(1)))
    assert len(await store.search(ANNA, "w3999")) == 1
    writer_of(store).set_commit_hook(None)

    assert 8 < len(parts_in(store)) <= len(commits)


@pytest.mark.parametrize("done", [1, 2, 5])
async def test_after_a_crash_the_parts_that_are_there_are_not_repeated(
    tmp_path, small_parts, monkeypatch, done
):
    place, text = tmp_path / "crash.db", text_of(Random(4), 4_000)
    store = await SqliteStore.open(place)
    await say(store, await begin(store), text, "short w17")
    long = (await store._file.read_at_once(sqlite_store._spell_some))[1]
    assert long is not None
    for _ in range(done):
        await store._file.write(sqlite_store._index_part, long, next(long.parts), is_last=False)
    before = parts_in(store)
    assert await store._file.read(sqlite_store._is_behind, 0), "it is not marked as indexed"
    # A part that is repeated by another program that had read the same state changes nothing.
    again = sqlite_store._WordPart(0, 1, "w17")
    assert await store._file.write(sqlite_store._index_part, long, again, is_last=True) == sum(
        size for _, size in before
    )
    await store.close()

    store, memory = await SqliteStore.open(place), MemoryStore()
    await say(memory, await begin(memory), text, "short w17")
    for query in QUERIES:
        assert await store.search(ANNA, query) == await memory.search(ANNA, query), query
    assert parts_in(store)[:done] == before
    assert not await store._file.read(sqlite_store._is_behind, 0)
    await store.close()


async def test_two_programs_that_index_a_long_message_do_not_double_its_words(tmp_path, small_parts):
    stores, text = [await SqliteStore.open(tmp_path / "a.db") for _ in range(2)], text_of(Random(5), 4_000)
    memory = MemoryStore()
    for one in (stores[0], memory):
        await say(one, await begin(one), text, "short w17")
    found = await asyncio.gather(*(one.search(ANNA, "w17 w5") for one in stores))

    assert found == [await memory.search(ANNA, "w17 w5")] * 2
    firsts = parts_in(stores[0])
    assert [first for first, _ in firsts] == [
        sum(size for _, size in firsts[:at]) for at in range(len(firsts))
    ]
    for one in stores:
        await one.close()


async def test_a_long_message_that_is_deleted_leaves_no_words(store, small_parts):
    await say(store, await begin(store), "short", text_of(Random(6), 4_000))
    await say(store, await begin(store, "other"), "kraken " + text_of(Random(7), 2_000))
    long = (await store._file.read_at_once(sqlite_store._spell_some))[1]
    assert long is not None
    await store._file.write(sqlite_store._index_part, long, next(long.parts), is_last=False)
    await store.delete(ANNA, "talk")
    assert await store._file.write(sqlite_store._index_part, long, next(long.parts), is_last=False) is None
    assert parts_in(store) == []
    assert [hit.conversation for hit in await store.search(ANNA, "w17")] == ["other"]

    await store.delete(ANNA, "other")
    assert parts_in(store) == []
    assert list(writer_of(store).execute("SELECT count(*) FROM words_docsize")) == [(0,)]
    assert await store.search(ANNA, "kraken") == []
    assert await store.check() == []


@pytest.mark.parametrize("owner", [ANNA, BORIS])
async def test_another_conversation_that_gets_the_place_of_a_deleted_one_gets_its_own_words(
    store, small_parts, owner
):
    text = " ".join(f"w{number}" for number in range(4_000))
    await say(store, await begin(store, "old"), text)
    write, parts = store._file.write, 0

    async def write_and_replace(begun, *args, **kwargs):
        nonlocal parts
        done = await write(begun, *args, **kwargs)
        parts += begun is sqlite_store._index_part
        if parts == 2:
            parts += 1
            await store.delete(ANNA, "old")
            await say(store, await begin(store, "new", owner), text)
            # As far as before, by another program: the message is in the same place, and its bytes are the same.
            long = (await store._file.read_at_once(sqlite_store._spell_some))[1]
            for _ in range(2):
                await write(sqlite_store._index_part, long, next(long.parts), is_last=False)
        return done

    store._file.write = write_and_replace
    await store.search(ANNA, "w1")

    for word in ("w0", "w1500", "w3999"):
        assert [hit.seq for hit in await store.search(owner, word, conversation="new")] == [0], word


async def test_a_store_is_closed_soon_and_the_next_program_indexes_what_waits(
    tmp_path, small_parts, monkeypatch
):
    place, text = tmp_path / "closing.db", text_of(Random(8), 4_000)
    with monkeypatch.context() as closing:
        closing.setattr(sqlite_store, "CLOSING_S", 0.0)
        closing.setattr(sqlite_store, "RESTS", 1e9)  # until it is closed
        store = await SqliteStore.open(place)
        head = await say(store, await begin(store), "short", text, *["hello"] * WORDS_TOGETHER)
        await store.close()
    store = await SqliteStore.open(place)
    done = parts_in(store)
    assert await store._file.read(sqlite_store._is_behind, 0), "it did not wait for all of it"

    await say(store, await begin(store, "other"), "kraken")
    indexing = store._indexing
    assert indexing is not None, "the first message begins it"
    await asyncio.wait({indexing})
    assert not await store._file.read(sqlite_store._is_behind, 1)
    assert parts_in(store)[: len(done)] == done
    assert len(parts_in(store)) > 8
    assert [hit.seq for hit in await store.search(ANNA, "short")] == [0]
    assert {hit.seq for hit in await store.search(ANNA, "hello w17", limit=300)} == set(
        range(1, head.next_seq)
    )
    await store.close()


async def test_few_messages_that_a_program_left_are_indexed_by_the_next_one(tmp_path):
    store = await SqliteStore.open(tmp_path / "few.db")
    head = await say(store, await begin(store), "storm", "harbour")
    await store.close()
    store = await SqliteStore.open(tmp_path / "few.db")
    await say(store, head, "kraken")
    assert store._indexing is not None
    await asyncio.wait({store._indexing})

    assert not await store._file.read(sqlite_store._is_behind, 1)
    await store.close()
