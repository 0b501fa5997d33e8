"""A store as lines, and lines as a store."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from msgspec import structs

from refold.engine.archive import pack, unpack
from refold.keeping import Engine
from refold.model.errors import Damaged, StoreError
from refold.store.memory import MemoryStore
from refold.store.place import open_store
from tests.embedder import Subjects
from tests.test_durable import answer, engine, long

USAGE = {"prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950}


async def packed(store) -> list[bytes]:
    return [line async for line in pack(store, await store.owners())]


async def moved(lines, store=None) -> MemoryStore:
    store = store or MemoryStore()
    async for one in unpack(store, lines):
        assert one.is_new
    return store


async def lived(store) -> Engine:
    """Everything that can happen to a conversation."""
    made = engine(store, embedder=Subjects())
    talk = await long(made, turns=25)
    await talk.add("and now?")
    await talk.context()
    await talk.record(USAGE)
    await talk.add({"role": "assistant", "content": "this"}, "my password is hunter2", sensitive=True)
    await talk.compact()
    await talk.undo()
    await talk.compact()
    (first, *_) = await made.sessions("chat")
    await talk.new()
    await talk.add("a fresh start", {"role": "assistant", "content": "yes"})
    await talk.resume(first)
    await talk.add("go on")
    await store.pin(await store.head("local", "chat"), 3, on=True)
    return made


async def test_everything_that_happened_is_in_the_other_store(tmp_path):
    store = MemoryStore()
    made = await lived(store)
    lines = await packed(store)
    other = await moved(lines, await open_store(f"sqlite://{tmp_path / 'other.db'}"))

    assert await packed(other) == lines
    again = engine(other)
    assert await again.examine("chat") == []
    ids = [one.id for one in await again.sessions("chat")]
    assert await other.embeddings("local", ids) == await store.embeddings("local", ids) != []
    assert await other.unembedded("local", "subjects") == []
    assert (
        await (await again.conversation("chat")).context()
        == await (await made.conversation("chat")).context()
    )
    assert await other.search("local", "question 7 src/f7.py")
    assert not await other.search("local", "hunter2")
    await other.close()


async def test_a_fork_shows_what_it_did_whatever_became_of_its_base():
    store = MemoryStore()
    made = engine(store, window=100_000)
    talk = await made.conversation("chat")
    for number in range(10):
        await talk.add(*answer(number))
    size = len((await talk.context())["messages"])
    early = await made.fork("chat", size)
    trunk = await made.conversation("chat", branch=talk._journal.seen.branch)
    await trunk.compact()
    late = await made.fork("chat", size, branch=talk._journal.seen.branch)
    await (await made.conversation("chat", branch=late)).add("on the other branch")
    before = [await (await made.conversation("chat", branch=one)).context() for one in (early, late)]
    assert len(before[1]["messages"]) < len(before[0]["messages"])

    lines = await packed(store)
    other = await moved(lines)
    assert await packed(other) == lines
    again = engine(other, window=100_000)
    assert [await (await again.conversation("chat", branch=one)).context() for one in (early, late)] == before
    assert await again.examine("chat") == []


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
    other = MemoryStore() if kind == "memory" else await open_store(f"sqlite://{tmp_path / 'other.db'}")
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


async def test_an_archive_of_another_version_is_refused():
    with pytest.raises(StoreError, match="another version"):
        await moved([b'{"type":"refold","version":1}\n', b'{"type":"end","conversations":0}\n'])


async def test_a_conversation_that_somebody_began_meanwhile_is_left_alone():
    store, other = MemoryStore(), MemoryStore()
    await long(engine(store), turns=3)
    lines, create = await packed(store), other.create

    async def late(*args, **kwargs):
        other.create = create
        await long(engine(other), turns=1)
        return await create(*args, **kwargs)

    other.create = late
    assert [bool(one.fault) async for one in unpack(other, lines)] == [True]
    assert (await other.head("local", "chat")).next_seq == 4
    assert await engine(other).examine("chat") == []


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
    del store._shelves["local"].messages[next(reversed(store._shelves["local"].heads))][2]


def changed(store: MemoryStore) -> None:
    async def damaged(head):
        return [2, 5] if head.conversation == "chat" else []

    store.damaged = damaged


def alter_message(store: MemoryStore, **fields: object) -> None:
    """Keep the third message otherwise than any engine does, as earlier versions of `unpack` did."""
    rows = store._shelves["local"].messages[next(reversed(store._shelves["local"].heads))]
    rows[2] = structs.replace(rows[2], **fields)


@pytest.mark.parametrize(
    "harm, told",
    [
        (unreadable, "What is stored cannot be read."),
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
    lines = [
        line
        async for line in pack(store, ["local"], lambda _, name, error: faults.append((name, error.message)))
    ]

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


async def test_the_branch_that_was_begun_last_is_so_in_the_other_store_too():
    store = MemoryStore()
    made = engine(store, window=100_000)
    base = (await made.conversation("chat")).branch
    await (await made.conversation("chat")).add(*answer(1))
    first = await made.fork("chat", 2, branch=base)
    await store.pin(await store.head("local", "chat", base), 1, on=True)
    await made.fork("chat", 2, branch=first)
    last = await made.fork("chat", 4, branch=base)
    await (await made.conversation("chat")).add("where I am now")
    lines = await packed(store)
    other = await moved(lines)

    assert (await other.head("local", "chat")).branch == last
    assert await packed(other) == lines
    assert [await other.pins(one) for one in (await other.outline("local", "chat")).heads] == [
        [1],
        [],
        [],
        [1],
    ]


class Stop(BaseException):
    """As somebody who presses Ctrl-C."""


async def test_whoever_stops_it_leaves_nothing_half_done():
    store = MemoryStore()
    await long(engine(store), turns=3)
    lines, other = await packed(store), MemoryStore()

    def stopping():
        yield from lines[:6]
        raise Stop

    with pytest.raises(Stop):
        await moved(stopping(), other)
    assert await other.conversations("local") == []


async def steps(made: Engine, name: str, letters: str) -> None:
    """a: add some turns. c: compact up to a cut that grows with every step. u: undo. A digit: compact up to that turn."""
    talk = await made.conversation(name)
    for letter in letters:
        if letter == "u":
            await talk.undo()
        elif letter == "a":
            for number in range(4):
                await talk.add(*answer(number))
        else:
            cut = 16 * int(letter)
            await talk._kept(lambda cut=cut: talk.memory.compact(cut=cut))


DONE_ANEW = [
    "aaaa1a2auu1a3",
    "aaa1u1u1u1",
    "aaaa1a2uu1a2uu1a3",
    "aaa1a2u3uau1a2",
    "aaaa1a2uua3",
    "aaaaa1a2a3uuu1a2a3uuu1a2a3",
]


@pytest.mark.parametrize("letters", DONE_ANEW)
async def test_what_was_undone_and_done_anew_can_be_brought_elsewhere(letters):
    store = MemoryStore()
    made = engine(store, window=100_000)
    await steps(made, "chat", letters)
    assert await made.examine("chat") == []
    lines = await packed(store)
    other = await moved(lines)

    again = engine(other, window=100_000)
    assert await again.examine("chat") == []
    assert await packed(other) == lines
    assert (await (await again.conversation("chat")).status()) == (
        await (await made.conversation("chat")).status()
    )


def as_earlier_versions_did(store: MemoryStore) -> None:
    """What was done again took the row of the first time, whose session is left without one."""
    shelf = store._shelves["local"]
    latest = {(row.base, row.cut): which for which, row in shelf.compactions.items()}
    shelf.compactions = {which: shelf.compactions[which] for which in latest.values()}
    shelf.summaries = {which: shelf.summaries[which] for which in latest.values()}


@pytest.mark.parametrize("letters", DONE_ANEW)
async def test_what_an_earlier_version_did_anew_under_the_same_name_can_be_brought_elsewhere(letters):
    store = MemoryStore()
    made = engine(store, window=100_000)
    await steps(made, "chat", letters)
    as_earlier_versions_did(store)
    other = await moved(await packed(store))

    again = engine(other, window=100_000)
    assert await again.examine("chat") == []
    talks = [await one.conversation("chat") for one in (made, again)]
    assert await talks[1].status() == await talks[0].status()
    lives = [[one for one in await each.sessions("chat") if one.state == "live"] for each in (made, again)]
    assert lives[1] == lives[0]


async def test_a_fork_is_brought_elsewhere_as_it_is_shown_though_its_base_was_done_anew():
    store = MemoryStore()
    made = engine(store, window=100_000)
    await steps(made, "chat", "aa1")
    base = (await store.head("local", "chat")).branch
    fork = await made.fork("chat", 32)
    await steps_on(made, base)
    await (await made.conversation("chat", branch=base)).undo()
    late = await made.fork("chat", 36, branch=base)
    branches = (base, fork, late)
    before = [await shown(made, one) for one in branches]
    assert [len(one) for one in before] == [36, 17, 36]

    lines = await packed(store)
    other = await moved(lines)
    assert await packed(other) == lines
    again = engine(other, window=100_000)
    assert [await shown(again, one) for one in branches] == before
    assert await again.examine("chat") == []


async def steps_on(made: Engine, branch: str) -> None:
    """Take back the compaction of a branch, and do it again when more was said."""
    talk = await made.conversation("chat", branch=branch)
    await talk.undo()
    await talk.add(*answer(50))
    await talk._kept(lambda: talk.memory.compact(cut=16))


async def shown(made: Engine, branch: str) -> list[str]:
    talk = await made.conversation("chat", branch=branch)
    folded = talk.memory.folded
    return [*(one.text for one in folded.summaries), *(one.text for one in folded.shown.messages())]
