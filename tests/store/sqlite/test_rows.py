"""What the database itself refuses, finds and reads."""

from __future__ import annotations

import asyncio

import apsw
import pytest

from refold.model.errors import StoreError
from refold.ports.store import Batch
from refold.store.sqlite import MOST_BYTES, WORDS_TOGETHER, SqliteStore
from refold.store.words import scope
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
from tests.store.sqlite.inside import writer_of


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


async def test_words_are_found_whether_the_index_has_taken_them_up_or_not(store):
    head = await begin(store)
    for number in range(150):
        head = await say(store, head, f"boat number{number}", f"sail {number}")
    if store._indexing:
        await asyncio.wait({store._indexing})

    ((waiting,),) = writer_of(store).execute("SELECT count(*) FROM unindexed")
    assert waiting < WORDS_TOGETHER, "what waits for the index is never much"
    for number in (0, 1, 31, 32, 100, 149):
        assert [hit.seq for hit in await store.search(ANNA, f"number{number}")] == [2 * number]
    assert len(await store.search(ANNA, "boat", limit=200)) == 150
    head = await say(store, head, "one more harbour")
    await store.delete(ANNA, "talk")
    assert await store.search(ANNA, "harbour") == []
    head = await say(store, await begin(store), "another")
    assert await store.search(ANNA, "boat") == []


async def test_an_index_that_cannot_be_written_is_no_matter_for_whoever_appends(store):
    head = await begin(store)
    writer_of(store).create_scalar_function("spaced", None, 1)
    for number in range(2 * WORDS_TOGETHER):
        head = await say(store, head, f"boat number{number}")
    with pytest.raises(StoreError):
        await store.search(ANNA, "boat")
    writer_of(store).create_scalar_function("spaced", lambda said: said.decode(), 1)

    assert [hit.seq for hit in await store.search(ANNA, "number70")] == [70]


async def test_what_short_programs_left_for_the_index_is_taken_up_by_the_next(tmp_path):
    for number in range(5):
        store = await SqliteStore.open(tmp_path / "short.db")
        head = await store.head(ANNA, "talk") or await begin(store)
        await say(store, head, *(f"boat {number}" for _ in range(20)))
        await store.close()

    store = await SqliteStore.open(tmp_path / "short.db")
    await say(store, await store.head(ANNA, "talk"), "one more")
    await store.close()
    opened = apsw.Connection(str(tmp_path / "short.db"))
    assert opened.execute("SELECT count(*) FROM unindexed").fetchall()[0][0] < WORDS_TOGETHER
    opened.close()


async def test_long_texts_go_to_the_index_a_few_at_a_time(store):
    commits, head = [], await begin(store)
    head = await say(store, head, *("boat " * (MOST_BYTES // 5 + 1) for _ in range(3)))
    writer_of(store).set_commit_hook(lambda: bool(commits.append(1)))
    hits = await store.search(ANNA, "boat")
    writer_of(store).set_commit_hook(None)

    assert len(hits) == 3
    assert len(commits) == 3, "each of them is as much as may go at once"


async def test_texts_that_waited_before_the_program_was_upgraded_are_found(store, tmp_path):
    head = await say(store, await begin(store), "a boat in the harbour")
    await store.close()
    older = apsw.Connection(str(tmp_path / "a.db"))
    older.execute(
        """DROP TABLE unindexed;
        CREATE TABLE unindexed (id INTEGER PRIMARY KEY, scope TEXT NOT NULL, text TEXT NOT NULL) STRICT;
        CREATE TRIGGER words_are_enough AFTER INSERT ON unindexed BEGIN SELECT 1; END;
        DELETE FROM migration WHERE name = '0007_unindexed'"""
    )
    waiting = {"scope": scope(ANNA, "talk"), "text": "a boat in the harbour"}
    older.execute("INSERT INTO unindexed SELECT id, :scope, :text FROM message", waiting)
    older.close()

    upgraded = await SqliteStore.open(tmp_path / "a.db")
    head = await say(upgraded, head, "and another harbour")
    assert [hit.seq for hit in await upgraded.search(ANNA, "harbour")] == [1, 0]
    await upgraded.close()


async def test_a_gap_between_messages_is_refused_by_the_database(store):
    await say(store, await begin(store), "a", "b")
    with pytest.raises(apsw.ConstraintError, match="follows"):
        writer_of(store).execute(
            """INSERT INTO message (owner, branch, seq, role, format, body, digest, shown, tokens, key, at)
            SELECT owner, branch, 3, role, format, body, digest, shown, tokens, key, at FROM message WHERE seq = 1"""
        )


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
