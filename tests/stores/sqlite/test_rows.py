"""What the database itself refuses, finds and reads."""

from __future__ import annotations

import asyncio

import apsw
import pytest
from msgspec import structs

from refold.model.errors import StoreError
from refold.ports.records import Batch
from refold.stores.sqlite import store as sqlite_store
from refold.stores.sqlite.store import MOST_BYTES, WORDS_TOGETHER, SqliteStore, _index, _spell_some
from tests.contract.talks import (
    ANNA,
    begin,
    compact,
    first_session,
    fold,
    message,
    new_head,
    planned,
    read,
    say,
    written,
)
from tests.stores.sqlite.inside import writer_of


async def test_a_message_is_never_changed_or_deleted_by_hand(store):
    head = await say(store, await begin(store), "storm")
    connection = writer_of(store)
    for statement in (
        "UPDATE message SET body = x'00'",
        "UPDATE message SET id = id + 5",
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


def waiting_in(connection: apsw.Connection) -> int:
    """How many messages wait for the index."""
    ((found,),) = connection.execute(
        """SELECT count(*) FROM waiting
        JOIN message ON message.branch = waiting.branch AND message.seq >= waiting.seq"""
    )
    return found


async def test_words_are_found_whether_the_index_has_taken_them_up_or_not(store):
    head = await begin(store)
    for number in range(300):
        head = await say(store, head, f"boat number{number}", f"sail {number}")
    if store._indexing:
        await asyncio.wait({store._indexing})

    assert waiting_in(writer_of(store)) < WORDS_TOGETHER, "what waits for the index is never much"
    for number in (0, 1, 31, 32, 100, 299):
        assert [hit.seq for hit in await store.search(ANNA, f"number{number}")] == [2 * number]
    assert len(await store.search(ANNA, "boat", limit=400)) == 300
    assert waiting_in(writer_of(store)) == 0
    head = await say(store, head, "one more harbour")
    await store.delete(ANNA, "talk")
    assert await store.search(ANNA, "harbour") == []
    head = await say(store, await begin(store), "another")
    assert await store.search(ANNA, "boat") == []


async def test_an_index_that_cannot_be_written_is_no_matter_for_whoever_appends(store):
    head = await begin(store)
    writer_of(store).execute("ALTER TABLE words_docsize RENAME TO gone")
    for number in range(2 * WORDS_TOGETHER):
        head = await say(store, head, f"boat number{number}")
    with pytest.raises(StoreError):
        await store.search(ANNA, "boat")
    writer_of(store).execute("ALTER TABLE gone RENAME TO words_docsize")

    assert [hit.seq for hit in await store.search(ANNA, "number70")] == [70]


async def test_what_short_programs_left_for_the_index_is_taken_up_by_the_next(tmp_path):
    for number in range(5):
        store = await SqliteStore.open(tmp_path / "short.db")
        head = await store.head(ANNA, "talk") or await begin(store)
        await say(store, head, *(f"boat {number}" for _ in range(80)))
        await store.close()

    store = await SqliteStore.open(tmp_path / "short.db")
    await say(store, await store.head(ANNA, "talk"), "one more")
    await store.close()
    opened = apsw.Connection(str(tmp_path / "short.db"))
    assert waiting_in(opened) < WORDS_TOGETHER
    opened.close()


async def test_long_texts_go_to_the_index_a_few_at_a_time(store):
    commits, head = [], await begin(store)
    head = await say(store, head, *("boat " * (MOST_BYTES // 5 + 1) for _ in range(3)))
    writer_of(store).set_commit_hook(lambda: bool(commits.append(1)))
    hits = await store.search(ANNA, "boat")
    writer_of(store).set_commit_hook(None)

    assert len(hits) == 3
    assert len(commits) == 3, "each of them is as much as may go at once"


async def test_a_message_that_comes_between_splitting_and_indexing_is_indexed_later(store):
    first, second = await begin(store, "first"), await begin(store, "second")
    first, second = await say(store, first, "kraken"), await say(store, second, "kraken walrus")
    spelt, _ = await store._file.read_at_once(_spell_some)
    await say(store, first, "walrus")
    await store.delete(ANNA, "second")

    assert await store._file.write(_index, spelt), "more waits"
    assert waiting_in(writer_of(store)) == 1
    assert [(hit.conversation, hit.seq) for hit in await store.search(ANNA, "kraken")] == [("first", 0)]
    assert [(hit.conversation, hit.seq) for hit in await store.search(ANNA, "walrus")] == [("first", 1)]


async def test_a_text_is_split_before_the_transaction_that_indexes_it(store, monkeypatch):
    await say(store, await begin(store), "the night boat")
    split, said = [], sqlite_store.said
    monkeypatch.setattr(
        sqlite_store,
        "said",
        lambda *args: split.append(writer_of(store).in_transaction) or said(*args),
    )

    assert len(await store.search(ANNA, "boat")) == 1
    assert split == [False], "writers do not wait for it"


async def test_a_gap_between_messages_is_refused_by_the_database(store):
    await say(store, await begin(store), "a", "b")
    with pytest.raises(apsw.ConstraintError, match="follows"):
        writer_of(store).execute(
            """INSERT INTO message (id, role, format, tokens, is_findable, body, digest, shown, key, at)
            SELECT id + 2, role, format, tokens, is_findable, body, digest, shown, key, at FROM message WHERE seq = 1"""
        )


async def test_a_name_that_is_no_text_is_refused(store):
    with pytest.raises(StoreError) as refused:
        await begin(store, title="half a pair: \ud83d")

    assert "Unicode" in refused.value.hint
    assert await store.owners() == []


async def test_a_message_that_cannot_be_read_is_kept_and_the_others_are_found(store):
    unreadable = b'{"role": "user", "content": "calm \\ud83d sea"}'
    said = (message(0, "storm"), structs.replace(message(1, "x"), body=unreadable), message(2, "sea"))
    head = await store.commit(await begin(store), Batch(at=1.0, messages=said))

    assert [hit.seq for hit in await store.search(ANNA, "sea")] == [2, 1], (
        "the second by the words that are left"
    )
    assert [hit.seq for hit in await store.search(ANNA, "storm")] == [0]
    assert [one.body for one in await store.messages(head, 1, 2)] == [unreadable]


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


async def test_a_reply_that_was_put_back_can_be_written_anew_and_not_after_it_took_effect(store):
    head = await say(store, await begin(store), *"abc")
    await store.plan(ANNA, planned(head))
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    assert await store.reply(ANNA, "work", "me", written("work", "Bad."))
    assert await store.give_up(ANNA, "work", "me", "planned")
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    assert await store.reply(ANNA, "work", "me", written("work", "Good."))
    assert await store.written(ANNA, ["work"]) == [written("work", "Good.")]
    await store.commit(head, Batch(at=5.0, changes=(fold(head, 1, "work"),)))
    kept = await store.written(ANNA, ["work"])
    assert not await store.reply(ANNA, "work", "me", written("work", "Late."))
    session = (await store.sessions(ANNA, "talk"))[0]
    assert not await store.attach_summary(ANNA, session.id, written("work", "Later."))

    assert await store.written(ANNA, ["work"]) == kept
