"""System prompt and tools outlive the program that gave them, are kept once, and travel with the conversation."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from refold.engine.archive import pack, unpack
from refold.engine.journal import read_notes, write_notes
from refold.ports.records import Batch
from refold.stores.memory import MemoryStore
from tests.engine.test_stored_conversation import engine

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
OTHERS = [{"type": "function", "function": {"name": "fetch", "parameters": {"type": "object"}}}]
LONG = "You fix bugs. " * 5_000


@pytest.fixture
def store():
    return MemoryStore()


async def seen(store, **settings) -> tuple[str, list]:
    """What another program that opens the conversation sends with its next request."""
    sent = await (await engine(store, **settings).conversation("chat")).context()
    first = sent["messages"][0]
    return first["content"] if first["role"] == "system" else "", sent.get("tools", [])


async def kept_blobs(store) -> list[bytes]:
    return list(store._tables("local").blobs.values())


async def test_what_is_given_at_open_is_there_for_the_next_program(store):
    talk = await engine(store, system="Be brief.", tools=TOOLS).conversation("chat")
    await talk.add("hello")

    assert await seen(store) == ("Be brief.", TOOLS)


async def test_tools_are_kept_without_a_system_prompt_and_beside_one_that_is_said(store):
    talk = await engine(store, tools=TOOLS).conversation("chat")
    await talk.add("hello")
    assert await seen(store) == ("", TOOLS)

    talk = await engine(store, tools=TOOLS).conversation("other")
    await talk.add({"role": "system", "content": "Be brief."}, "hello")
    sent = await (await engine(store).conversation("other")).context()
    assert (sent["messages"][0]["content"], sent["tools"]) == ("Be brief.", TOOLS)


async def test_what_a_program_does_not_give_is_taken_from_what_is_kept(store):
    await (await engine(store, system="Be brief.", tools=TOOLS).conversation("chat")).add("hello")

    assert await seen(store, tools=OTHERS) == ("Be brief.", OTHERS)
    assert await seen(store, system="Be long.") == ("Be long.", OTHERS), "the last ones given are kept"
    assert await seen(store) == ("Be long.", OTHERS)


async def test_what_was_imported_is_not_replaced(store):
    talk = await engine(store).conversation("chat")
    fields = {"model": "m", "temperature": 0.5, "tools": TOOLS}
    await talk.set_instructions(json.dumps(fields).encode())
    await talk.add("hello")
    assert await seen(store, tools=OTHERS) == ("", OTHERS)

    assert await seen(store) == ("", TOOLS)
    assert await kept_blobs(store) == [json.dumps(fields).encode()]


async def test_a_long_prompt_is_written_once_and_not_with_every_message(store):
    talk = await engine(store, system=LONG, tools=TOOLS, window=200_000).conversation("chat")
    written = []
    commit = store.commit

    async def counted(head, batch):
        written.append((len(batch.notes or b""), len(batch.blobs)))
        return await commit(head, batch)

    store.commit = counted
    for number in range(5):
        await talk.add(f"question {number}", {"role": "assistant", "content": "answer"})
    again = await engine(store, system=LONG, tools=TOOLS, window=200_000).conversation("chat")
    await again.add("and now?")

    assert [blobs for _, blobs in written] == [1, 0, 0, 0, 0, 0]
    assert max(size for size, _ in written) < 2_000
    (blob,) = await kept_blobs(store)
    assert LONG.encode() in blob


async def test_notes_of_an_earlier_version_are_read_and_brought_up_to_date(store):
    talk = await engine(store).conversation("chat")
    await talk.add("hello")
    head = await store.head("local", "chat")
    fields = json.dumps({"messages": [{"role": "system", "content": "Be brief."}], "tools": TOOLS}).encode()
    old = structs.replace(read_notes(head.notes), fields=fields)
    await store.commit(head, Batch(at=1.0, notes=write_notes(old)))

    assert await seen(store) == ("Be brief.", TOOLS)
    assert await kept_blobs(store) == [fields]
    assert read_notes((await store.head("local", "chat")).notes).fields == b""
    assert await seen(store) == ("Be brief.", TOOLS)


async def test_a_fork_has_them_too(store):
    made = engine(store, system="Be brief.", tools=TOOLS)
    await (await made.conversation("chat")).add("hello", {"role": "assistant", "content": "hi"}, "go on")
    branch = await made.fork("chat", 1)
    sent = await (await engine(store).conversation("chat", branch=branch)).context()

    assert (sent["messages"][0]["content"], sent["tools"]) == ("Be brief.", TOOLS)
    assert len(await kept_blobs(store)) == 1


async def test_without_content_none_of_it_is_kept(store):
    talk = await engine(store, system="Be brief.", tools=TOOLS, keeps_content=False).conversation("chat")
    await talk.add("hello")
    await talk.context()

    assert await kept_blobs(store) == []
    assert b"brief" not in (await store.head("local", "chat")).notes


async def test_an_archive_carries_them_to_another_store(store):
    talk = await engine(store, system=LONG, tools=TOOLS, window=200_000).conversation("chat")
    await talk.add("hello")
    lines = [line async for line in pack(store, ["local"])]
    other = MemoryStore()
    assert [one.is_new async for one in unpack(other, lines)] == [True]

    assert [line async for line in pack(other, ["local"])] == lines
    assert await seen(other, window=200_000) == (LONG, TOOLS)
