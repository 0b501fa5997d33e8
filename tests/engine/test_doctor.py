"""What the doctor says about damage, and about a store that is in use. What it has to find after a crash is in tests/durability."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.engine.doctor import RULES
from refold.model.errors import Damaged, StoreError
from refold.stores.memory import MemoryStore, OwnerTables
from tests.engine.test_stored_conversation import engine, long


async def lived(store: MemoryStore) -> OwnerTables:
    """A conversation with summaries, of a compaction and of a session that was closed, and a fork of it."""
    made = engine(store)
    talk = await long(made)
    await talk.start_session()
    await made.fork("chat", 8)
    return store._owners["local"]


def alter(rows: dict, **fields: object) -> None:
    for which, row in rows.items():
        rows[which] = structs.replace(row, **fields)


def lose_sessions(tables: OwnerTables) -> None:
    main = next(iter(tables.heads))
    tables.sessions = {which: row for which, row in tables.sessions.items() if row.branch != main}


def lose_count(tables: OwnerTables) -> None:
    main, *_ = tables.heads.values()
    tables.heads[main.branch] = structs.replace(main, next_seq=main.next_seq - 1)


def lose_closing(tables: OwnerTables) -> None:
    tables.summaries = {which: row for which, row in tables.summaries.items() if which in tables.compactions}


DAMAGES = {
    "the branch has no session": ("I-1", lose_sessions),
    "messages were counted, and message": ("I-3", lose_count),
    "it is in a format that is not known": ("I-10", lambda tables: alter(tables.heads, format="klingon")),
    "the notes of the conversation cannot be read": (
        "I-10",
        lambda tables: alter(tables.heads, notes=b"\xc1"),
    ),
    "the snapshot of the compaction": (
        "I-10",
        lambda tables: alter(tables.compactions, shown=b"\xa1\xff"),
    ),
    "the summary of the session": ("I-10", lose_closing),
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_damage_that_keeps_a_conversation_from_being_used_is_found(what):
    store = MemoryStore()
    tables = await lived(store)
    assert await engine(store).examine("chat") == []
    rule, harm = DAMAGES[what]
    harm(tables)
    found = await engine(store).examine("chat")

    assert {(one.rule, what in one.what) for one in found if one.rule == rule} == {(rule, True)}
    assert all(one.rule in RULES for one in found)


async def test_a_summary_that_cannot_be_read_is_found_and_the_others_are_looked_at():
    store = MemoryStore()
    tables = await lived(store)
    written, bad = store.written, next(iter(tables.summaries))

    async def damaged(owner, ids):
        if bad in ids:
            raise Damaged
        return await written(owner, ids)

    store.written = damaged
    assert [(one.rule, one.what) for one in await engine(store).examine("chat")] == [
        ("I-10", f"the summary {bad} cannot be read")
    ]


UNREADABLE = {
    "body": ({"body": b"x"}, "message 5 cannot be read"),
    "no text": ({"body": b"\xff"}, "message 5 cannot be read"),
    "shown": ({"shown": b""}, "message 5 cannot be read"),
    "format": ({"format": "klingon"}, "message 5 is in a format that is not known"),
    "other format": ({"format": "responses"}, "message 5 is not in the format of its conversation"),
}


@pytest.mark.parametrize("fields, what", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_message_that_cannot_be_read_is_found_by_its_number_and_once(fields, what):
    store = MemoryStore()
    tables = await lived(store)
    main, fork = tables.heads.values()
    assert fork.base_seq > 5  # it shares the message
    rows = tables.messages[main.branch]
    rows[5] = structs.replace(rows[5], **fields)

    assert [(one.rule, one.branch, one.what) for one in await engine(store).examine("chat")] == [
        ("I-10", main.branch, what)
    ]


async def test_of_messages_that_were_stored_without_content_nothing_is_missing():
    store = MemoryStore()
    made = engine(store, keeps_content=False)
    await (await made.conversation("chat")).add("a", {"role": "assistant", "content": "b"})

    assert await made.examine("chat") == []


@pytest.mark.parametrize("notes", [b"\xc1", b"\xa1\xff", b"\x93\x01"])
async def test_notes_that_cannot_be_read_are_told_when_a_conversation_is_opened_and_spoil_no_list(notes):
    store = MemoryStore()
    tables = await lived(store)
    alter(tables.heads, notes=notes)

    with pytest.raises(StoreError, match="the notes of the conversation") as told:
        await engine(store).conversation("chat")
    assert "refold doctor" in told.value.hint
    assert [(one.id, one.tokens) for one in await engine(store).conversations()] == [("chat", 0)]


async def test_nothing_is_missing_of_a_conversation_that_is_deleted_meanwhile():
    store = MemoryStore()
    await lived(store)
    read = store.messages

    async def messages(head, *args):
        await store.delete(head.owner, head.conversation)
        return await read(head, *args)

    store.messages = messages
    assert await engine(store).examine("chat") == []
