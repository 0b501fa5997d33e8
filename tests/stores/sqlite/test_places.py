"""A message lies where its branch and its number say, in new files and in those of earlier programs."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import apsw
from msgspec import json, structs

from refold.ports.records import Batch, Head
from refold.stores.search import scope
from refold.stores.sql import queries
from refold.stores.sqlite.store import SqliteStore, append_values
from tests.contract.talks import ANNA, BORIS, begin, first_session, message, new_head, read, say
from tests.stores.sqlite.inside import writer_of

BEFORE = "0009_place"
FAR = 1 << 32
"""As many numbers as a branch has."""


def older_file(path: Path) -> None:
    """A file of the program before: a conversation with a fork, of which some words are in the index and some wait for it."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute(queries.load("sqlite")["begin_migrating"])
    for name, script in queries.migrations("sqlite").items():
        if name < BEFORE:
            connection.execute(script)
            connection.execute(queries.load("sqlite")["add_migration"], {"name": name})
    connection.execute(
        """INSERT INTO owner (owner, at) VALUES ('anna', 1);
        INSERT INTO conversation (owner, id, title, folded, at, updated_at) VALUES ('anna', 'talk', '', 'talk', 1, 1)"""
    )
    for branch, base, first in (("talk/main", "", 0), ("talk/side", "talk/main", 2)):
        _begin(connection, branch, base, first)
    said = [
        ("talk/main", 0, "storm at sea", "indexed"),
        ("talk/side", 2, "storm aside", "waiting"),
        ("talk/main", 1, "storm in secret", "secret"),
        ("talk/main", 2, "storm again", "waiting"),
    ]
    for number, (branch, seq, text, state) in enumerate(said, 1):
        _say(connection, number, branch, seq, text, state)
    connection.close()


def _begin(connection: apsw.Connection, branch: str, base: str, first: int) -> None:
    place = {"branch": branch, "base": base, "first": first}
    connection.execute(
        """INSERT INTO branch (
            owner, id, conversation, base, base_seq, base_number, epoch, revision, session, format, model, notes
        ) VALUES ('anna', :branch, 'talk', :base, :first, 0, 0, 0, :branch || '/s', 'chat', '', x'');
        INSERT INTO session (owner, id, conversation, branch, first, kind, parent, carries, summary, target, tokens, at)
        VALUES ('anna', :branch || '/s', 'talk', :branch, :first, 'root', '', 'none', '', '', 0, 1)""",
        place,
    )


def _say(connection: apsw.Connection, number: int, branch: str, seq: int, text: str, state: str) -> None:
    body = json.encode({"role": "user", "content": text})
    row = {"id": number, "branch": branch, "seq": seq, "body": body, "digest": sha256(body).digest()}
    connection.execute(
        """INSERT INTO message (id, owner, branch, seq, role, format, tokens, body, digest, key, at)
        VALUES (:id, 'anna', :branch, :seq, 'user', 'chat', 3, :body, :digest, 'k' || :id, :id)""",
        row,
    )
    waiting = {"id": number, "scope": scope("anna", "talk"), "text": text}
    if state == "indexed":
        connection.execute("INSERT INTO words (rowid, scope, text) VALUES (:id, :scope, :text)", waiting)
    if state == "waiting":
        waiting["text"] = text.encode()
        connection.execute("INSERT INTO unindexed (id, scope, text) VALUES (:id, :scope, :text)", waiting)


async def test_a_file_of_an_earlier_program_keeps_everything_and_is_searched_as_before(tmp_path):
    older_file(tmp_path / "older.db")
    store = await SqliteStore.open(tmp_path / "older.db")
    main, side = await store.head(ANNA, "talk", "talk/main"), await store.head(ANNA, "talk", "talk/side")

    assert (main.next_seq, side.next_seq) == (3, 3)
    assert await read(store, main) == ["storm at sea", "storm in secret", "storm again"]
    assert await read(store, side) == ["storm at sea", "storm in secret", "storm aside"]
    assert [(one.seq, one.key, one.tokens, one.at) for one in await store.messages(main, 1)] == [
        (1, "k3", 3, 3.0),
        (2, "k4", 3, 4.0),
    ]
    assert await store.find_key(main, "k4") == 2
    hits = await store.search(ANNA, "storm")
    assert {(hit.branch, hit.seq) for hit in hits} == {("talk/main", 0), ("talk/main", 2), ("talk/side", 2)}
    assert await store.check() == []

    main = await say(store, main, "and calm")
    assert [hit.seq for hit in await store.search(ANNA, "calm")] == [3]
    assert await store.delete(ANNA, "talk") == 1
    left = writer_of(store).execute(
        "SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM words_docsize)"
    )
    assert left.fetchall() == [(0, 0)]
    await store.close()


async def test_no_number_is_so_large_that_it_means_a_message_of_another_branch(store):
    head = await say(store, await begin(store), "mine")
    await say(store, await begin(store, "other"), "theirs", "theirs too")

    assert await store.pick(head, [FAR, FAR + 1, 2 * FAR]) == []
    assert await store.messages(head, FAR) == []
    assert await store.messages(head, 1, 2 * FAR) == []
    assert [one.seq for one in await store.messages(head, 0, 2 * FAR)] == [0]
    assert await store.damaged(head) == []


async def test_branches_that_are_written_to_in_turns_are_read_each_by_itself(store):
    heads = [await begin(store, f"talk{number}") for number in range(3)]
    for turn in range(40):
        heads = [await say(store, head, f"{head.conversation} {turn} " + "x" * 900) for head in heads]
    side = new_head("talk0", branch="talk0/side")
    side = await say(store, await store.fork(heads[0], 20, side, first_session(side, 20)), "aside")

    for head in heads:
        expected = [f"{head.conversation} {turn}" for turn in range(40)]
        assert [" ".join(text.split()[:2]) for text in await read(store, head)] == expected
    assert [one.seq for one in await store.messages(side)] == [*range(21)]
    await store.delete(ANNA, "talk1")
    assert [len(await store.messages(head)) for head in heads] == [40, 0, 40]
    assert await store.check() == []


async def test_a_message_whose_branch_is_gone_is_a_fault_and_in_nobody_s_way(store):
    await say(store, await begin(store), "a", "b")
    connection = writer_of(store)
    connection.execute("DROP TRIGGER branch_takes_its_messages")
    await store.delete(ANNA, "talk")
    await say(store, await begin(store, "other", BORIS), "a storm")

    assert [hit.seq for hit in await store.search(BORIS, "storm")] == [0]
    assert [fault for fault in await store.check() if "branch that is not there" in fault] == [
        f"message {seq} is of a branch that is not there" for seq in (0, 1)
    ]


async def test_nothing_of_a_deleted_branch_is_left_for_the_next_one_in_its_place(store):
    """The ordinal of a branch that was deleted is free for another."""
    for word in ("storm", "calm"):
        head = await say(store, await begin(store), word, f"{word} again")
        assert await read(store, head) == [word, f"{word} again"]
        assert [hit.seq for hit in await store.search(ANNA, word)] == [0, 1]
        assert await store.search(ANNA, "storm" if word == "calm" else "calm") == []
        head = await say(store, head, f"{word} waits for the index")
        await store.delete(ANNA, "talk")
        assert writer_of(store).execute("SELECT * FROM waiting").fetchall() == []


def test_what_the_script_asks_for_is_given_in_its_order():
    head = Head(
        owner="o", conversation="c", branch="b", session="s", epoch=7, revision=8, next_seq=5, format="chat"
    )
    said = structs.replace(message(5, "text", role="tool", key="k", tokens=9), shown=b"shown", at=3.5)
    names = {
        "owner": "o", "conversation": "c", "branch": "b", "seen_session": "s", "seen_epoch": 7, "seen_revision": 8,
        "seq": 5, "role": "tool", "format": "chat", "tokens": 9, "is_findable": True, "body": said.body,
        "digest": sha256(said.body).digest(), "shown": b"shown", "shown_digest": sha256(b"shown").digest(), "key": "k", "at": 3.5,
    }  # fmt: skip
    script = re.sub("--[^\n]*", "", queries.load("sqlite")["append_message"])
    asked = [dict.fromkeys(re.findall(r":([a-z_]+)", one)) for one in script.split(";")]

    given = append_values(head, Batch(at=4.0, messages=(said,)))
    assert given == tuple(names[name] for statement in asked for name in statement)
