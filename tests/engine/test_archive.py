"""A store as lines, and lines as a store."""

from __future__ import annotations

from functools import partial

import pytest

from refold.engine import actions
from refold.engine.archive import pack, unpack
from refold.engine.engine import Engine
from refold.model.errors import StoreError
from refold.ports.records import Batch
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from tests.embedder import Subjects
from tests.engine.test_stored_conversation import answer, engine, long

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
    await talk.start_session()
    await talk.add("a fresh start", {"role": "assistant", "content": "yes"})
    await talk.resume(first)
    await talk.add("go on")
    await store.commit(await store.head("local", "chat"), Batch(at=0.0, pins=(3,)))
    return made


async def test_everything_that_happened_is_in_the_other_store(tmp_path):
    store = MemoryStore()
    made = await lived(store)
    lines = await packed(store)
    other = await moved(lines, await open_store(f"sqlite:///{tmp_path / 'other.db'}"))

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
    trunk = await made.conversation("chat", branch=talk.branch)
    await trunk.compact()
    late = await made.fork("chat", size, branch=talk.branch)
    await (await made.conversation("chat", branch=late)).add("on the other branch")
    before = [await (await made.conversation("chat", branch=one)).context() for one in (early, late)]
    assert len(before[1]["messages"]) < len(before[0]["messages"])

    lines = await packed(store)
    other = await moved(lines)
    assert await packed(other) == lines
    again = engine(other, window=100_000)
    assert [await (await again.conversation("chat", branch=one)).context() for one in (early, late)] == before
    assert await again.examine("chat") == []


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


async def test_the_branch_that_was_begun_last_is_so_in_the_other_store_too():
    store = MemoryStore()
    made = engine(store, window=100_000)
    base = (await made.conversation("chat")).branch
    await (await made.conversation("chat")).add(*answer(1))
    first = await made.fork("chat", 2, branch=base)
    await store.commit(await store.head("local", "chat", base), Batch(at=0.0, pins=(1,)))
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
            await talk.apply(partial(actions.compact, cut=cut))


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
    tables = store._owners["local"]
    latest = {(row.base, row.cut): which for which, row in tables.compactions.items()}
    tables.compactions = {which: tables.compactions[which] for which in latest.values()}
    tables.summaries = {which: tables.summaries[which] for which in latest.values()}


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
    await talk.apply(partial(actions.compact, cut=16))


async def shown(made: Engine, branch: str) -> list[str]:
    talk = await made.conversation("chat", branch=branch)
    folded = talk.state.folded
    return [*(one.text for one in folded.summaries), *(one.text for one in folded.shown.messages())]
