"""What is damaged, cut short or cannot be read leaves no store as an archive and enters none, and costs nothing else."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from msgspec import structs

from refold.engine.archive import pack, unpack
from refold.model.errors import Damaged, StoreError
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from tests.engine.test_archive import lived, moved, packed
from tests.engine.test_stored_conversation import answer, engine, long


async def test_an_archive_without_its_end_is_said_to_be_cut_short():
    store = MemoryStore()
    await long(engine(store), turns=2)
    lines = await packed(store)
    other = MemoryStore()

    with pytest.raises(StoreError, match="cut short"):
        await moved(lines[:-1], other)
    assert len(await other.conversations("local")) == 1  # what was whole is there


@pytest.mark.parametrize("at", [2, 4, 9])
async def test_a_conversation_that_is_not_whole_is_left_out_and_the_others_are_not(at):
    store = MemoryStore()
    made = engine(store)
    await long(made, "later", turns=1)
    await long(made, turns=3)  # the one that was used last comes first
    lines, other = await packed(store), MemoryStore()
    found = [one async for one in unpack(other, lines[:at] + lines[at + 1 :])]

    assert [(one.name, one.is_new) for one in found] == [("chat", False), ("later", True)]
    assert [one.fault for one in found] == ["the archive does not fit together", ""]
    assert [one.id for one in await other.conversations("local")] == ["later"]
    assert await engine(other).examine("later") == []


@pytest.mark.parametrize("at, left", [(1, "later"), (4, "later"), (-4, "chat")])
async def test_a_line_that_cannot_be_read_costs_its_conversation_only_and_is_told(at, left):
    store = MemoryStore()
    await long(engine(store), "later", turns=1)
    await long(engine(store), turns=3)
    lines, other = await packed(store), MemoryStore()
    lines[at] = b'{"type": "mess'
    faults = list[str]()
    with pytest.raises(StoreError) if at == 1 else nullcontext() as told:
        faults += [one.fault async for one in unpack(other, lines) if one.fault]

    assert [one.id for one in await other.conversations("local")] == [left]
    assert "cannot be read" in (str(told.value) if told else faults[0])


def edited(line: bytes, place: str, value: object) -> bytes:
    """A line of an archive with another value at a place, such as `stored.tokens`."""
    document = json.loads(line)
    *way, last = (int(step) if step.isdecimal() else step for step in place.split("."))
    found = document
    for step in way:
        found = found[step]
    assert found[last] != value
    found[last] = value
    return json.dumps(document).encode() + b"\n"


CANNOT_BE_KEPT = {
    "body": ("body", "x", "message 2 cannot be read"),
    "no message": ("body", '{"role": 7}', "message 2 cannot be read"),
    "bytes": ("body", None, "message 2 cannot be read"),
    "shown": ("stored.shown", "eA==", "message 2 cannot be read"),
    "format": ("stored.format", "klingon", "message 2 is in a format that is not known"),
    "other format": ("stored.format", "responses", "message 2 is not in the format of its conversation"),
}


@pytest.mark.parametrize("place, value, told", CANNOT_BE_KEPT.values(), ids=CANNOT_BE_KEPT)
async def test_a_message_that_cannot_be_read_is_not_put_in(place, value, told):
    store, other = MemoryStore(), MemoryStore()
    await long(engine(store), "later", turns=1)
    await long(engine(store), turns=3)
    lines = await packed(store)
    lines[5] = edited(lines[5], place, value)
    if value is None:
        lines[5] = edited(lines[5], "stored.body", "/w==")  # what is no text stands there in base64
    found = {one.name: one.fault async for one in unpack(other, lines)}

    assert found == {"chat": told, "later": ""}
    assert [one.id for one in await other.conversations("local")] == ["later"]


async def test_what_was_stored_without_content_is_brought_elsewhere_without():
    store = MemoryStore()
    talk = await engine(store, keeps_content=False).conversation("chat")
    await talk.add(*answer(1))
    lines = await packed(store)

    assert await packed(await moved(lines)) == lines


TOO_LARGE = {
    "the tokens of a message": (5, "stored.tokens", 2**64),
    "tokens that no database could add up": (5, "stored.tokens", 2**63 - 1),
    "tokens below nothing": (5, "stored.tokens", -(2**64)),
    "the cut of a change": (2, "changes.0.cut", 2**64),
    "what a call read": (2, "calls.0.usage.input", 2**64),
    "a pin": (2, "pins.0", 2**64),
    "how many messages there are": (2, "head.next_seq", 2**64),
}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("at, place, value", TOO_LARGE.values(), ids=TOO_LARGE)
async def test_a_number_that_is_too_large_makes_a_line_one_that_cannot_be_read(
    at, place, value, kind, tmp_path
):
    store = MemoryStore()
    await long(engine(store), "later", turns=1)
    await lived(store)
    lines = await packed(store)
    lines[at] = edited(lines[at], place, value)
    other = MemoryStore() if kind == "memory" else await open_store(f"sqlite:///{tmp_path / 'other.db'}")
    found = {one.name: one.fault async for one in unpack(other, lines)}

    assert found == {"chat": f"line {at + 1} of the archive cannot be read", "later": ""}
    assert [one.id for one in await other.conversations("local")] == ["later"]
    await other.close()


@pytest.mark.parametrize(
    "line", [b'{"type":"message","stored":{"seq":0,"role":"\xff"}}', b'{"x":' + b"[" * 99_999]
)
async def test_a_line_that_is_no_text_or_too_deep_costs_its_conversation_only(line):
    store, other = MemoryStore(), MemoryStore()
    await long(engine(store), turns=3)
    lines = await packed(store)
    lines[5] = line

    assert [one.fault async for one in unpack(other, lines)] == ["line 6 of the archive cannot be read"]


def unreadable(store: MemoryStore) -> None:
    async def written(owner, ids):
        if ids:
            raise Damaged
        return []

    store.written = written


def gone(store: MemoryStore) -> None:
    read = store.messages

    async def messages(head, *args):
        if head.conversation == "chat":
            await store.delete(head.owner, head.conversation)
        return await read(head, *args)

    store.messages = messages


def missing(store: MemoryStore) -> None:
    del store._owners["local"].messages[next(reversed(store._owners["local"].heads))][2]


def changed(store: MemoryStore) -> None:
    async def damaged(head):
        return [2, 5] if head.conversation == "chat" else []

    store.damaged = damaged


def alter_message(store: MemoryStore, **fields: object) -> None:
    """Keep the third message otherwise than any engine does, as earlier versions of `unpack` did."""
    rows = store._owners["local"].messages[next(reversed(store._owners["local"].heads))]
    rows[2] = structs.replace(rows[2], **fields)


@pytest.mark.parametrize(
    "harm, told",
    [
        (unreadable, "the stored data cannot be read"),
        (gone, "it was deleted while it was read"),
        (missing, "message 2 is missing"),
        (changed, "the bytes of message 2 have changed"),
        (lambda store: alter_message(store, body=b"x"), "message 2 cannot be read"),
        (lambda store: alter_message(store, shown=b"x"), "message 2 cannot be read"),
        (lambda store: alter_message(store, format="klingon"), "message 2 is in a format that is not known"),
        (
            lambda store: alter_message(store, format="anthropic"),
            "message 2 is not in the format of its conversation",
        ),
    ],
)
async def test_of_what_cannot_be_read_the_export_tells_and_goes_on(harm, told):
    store, faults = MemoryStore(), list[tuple[str, str]]()
    await long(engine(store), "later", turns=1)
    await long(engine(store), turns=30)
    harm(store)

    def skip(_: str, name: str, error: StoreError) -> None:
        faults.append((name, error.what if isinstance(error, Damaged) else error.message))

    lines = [line async for line in pack(store, ["local"], skip)]

    assert faults == [("chat", told)]
    other = MemoryStore()
    assert [(one.name, one.is_new) async for one in unpack(other, lines)] == [
        ("chat", False),
        ("later", True),
    ]
    assert [one.id for one in await other.conversations("local")] == ["later"]


async def test_without_anybody_to_tell_the_export_ends_at_what_cannot_be_read():
    store = MemoryStore()
    await long(engine(store), turns=30)
    missing(store)
    with pytest.raises(Damaged, match="message 2 is missing"):
        await packed(store)
