"""Every store keeps what closed sessions were about as vectors, with the closing itself, and finds the nearest of them."""

from __future__ import annotations

from array import array

import pytest
from msgspec import structs

from refold.model.errors import Conflict
from refold.ports.records import Batch, Head
from refold.ports.store import Store
from refold.stores.sql import search
from tests.contract.talks import ANNA, BORIS, begin, compact, embedding, fold, next_session, say, written


def vector(*numbers: float) -> bytes:
    return array("f", numbers).tobytes()


async def close(store: Store, head: Head, *numbers: float, name: str = "tiny") -> Head:
    """Say something, and close the session with a summary and a vector."""
    head = await say(store, head, "a word")
    change = fold(head, head.next_seq)
    near = embedding(head.session, change.compaction.id, *numbers, name=name)
    return await store.commit(head, Batch(at=3.0, changes=(change,), embeddings=(near,)))


async def found(store: Store, *numbers: float, owner: str = ANNA, name: str = "tiny", **more) -> list[str]:
    near = await store.nearest(owner, name, vector(*numbers), **more)
    return [f"{conversation}: {session.id}" for conversation, session in near]


@pytest.mark.feature("L1", "L16")
async def test_a_session_is_closed_with_its_summary_its_vector_and_its_statistics_in_one_step(store):
    head = await say(store, await begin(store), *"abcd")
    change = fold(head, 3, "c1")
    near = embedding(head.session, "c1", 0.6, 0.8)
    after = await store.commit(head, Batch(at=9.0, changes=(change,), embeddings=(near,)))

    closed = await store.session(ANNA, head.session)
    assert (closed.last, closed.summary, closed.tokens, closed.closed_at) == (3, "c1", 3, 9.0)
    assert await store.embeddings(ANNA, [after.session, closed.id]) == [near]
    assert await store.nearest(ANNA, "tiny", vector(1, 0)) == [("talk", closed)]


@pytest.mark.feature("L1")
async def test_where_another_was_first_neither_the_session_nor_its_vector_changes(store):
    head = await say(store, await begin(store), *"abcd")
    await say(store, head, "meanwhile")
    near = embedding(head.session, "c1", 1.0, 0.0)
    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=9.0, changes=(fold(head, 3, "c1"),), embeddings=(near,)))

    assert (await store.session(ANNA, head.session)).last is None
    assert await store.embeddings(ANNA, [head.session]) == []


@pytest.mark.feature("L16")
async def test_the_nearest_come_first_of_one_conversation_or_of_all_that_the_owner_has(store):
    north, both = await begin(store, "north"), await begin(store, "both")
    north = await close(store, north, 0.0, 1.0)
    both = await close(store, both, 0.6, 0.8)
    both = await close(store, both, 1.0, 0.0)
    await close(store, await begin(store, "theirs", owner=BORIS), 1.0, 0.0)

    assert await found(store, 1, 0) == ["both: both/main/c0/s", "both: both/main/s0", "north: north/main/s0"]
    assert await found(store, 1, 0, least=0.5) == ["both: both/main/c0/s", "both: both/main/s0"]
    assert await found(store, 0, 1, limit=1) == ["north: north/main/s0"]
    assert await found(store, 0, 1, conversation="both") == ["both: both/main/s0", "both: both/main/c0/s"]
    assert await found(store, 1, 0, conversation="nothing") == []
    assert await found(store, 1, 0, owner=BORIS) == ["theirs: theirs/main/s0"]


async def test_the_nearest_of_many_are_found_page_by_page(store, monkeypatch):
    monkeypatch.setattr(search, "PAGE", 2)
    head = await begin(store)
    for step in range(7):
        head = await close(store, head, step / 10, 1 - step / 10)

    everything = [f"talk: talk/main/c{step - 1}/s" for step in (6, 5, 4, 3, 2, 1)] + ["talk: talk/main/s0"]
    assert await found(store, 1, 0) == await found(store, 1, 0, conversation="talk") == everything
    assert await found(store, 1, 0, limit=3) == everything[:3]


async def test_only_vectors_of_one_name_and_as_many_numbers_are_compared(store):
    head = await close(store, await begin(store), 1.0, 0.0)
    head = await close(store, head, 1.0, 0.0, name="other")
    head = await close(store, head, 1.0, 0.0, 0.0)
    await close(store, head)

    assert await found(store, 1, 0) == ["talk: talk/main/s0"]
    assert await found(store, 1, 0, name="other") == ["talk: talk/main/c0/s"]
    assert await found(store, 1, 0, name="nobody") == []


async def test_what_was_taken_back_is_no_longer_found(store):
    head = await say(store, await begin(store), *"ab")
    near = embedding(head.session, "c1", 1.0, 0.0)
    before, head = (
        head,
        await store.commit(head, Batch(at=3.0, changes=(fold(head, 1, "c1"),), embeddings=(near,))),
    )
    head = await store.commit(head, Batch(at=4.0, undoes="c1"))
    assert await found(store, 1, 0) == []

    await compact(store, head, 2, "c2")
    assert await store.embed(ANNA, [near]) == 0, "it is the vector of another summary"
    assert await found(store, 1, 0) == []
    assert await store.embed(ANNA, [embedding(before.session, "c2", 0.0, 1.0)]) == 1
    assert await found(store, 1, 0) == ["talk: talk/main/s0"]


async def test_a_vector_is_kept_for_a_closed_session_with_its_summary_only(store):
    head = await say(store, await begin(store), *"ab")
    assert await store.embed(ANNA, [embedding(head.session, "", 1.0)]) == 0, "it is open"
    assert await store.embed(ANNA, [embedding("nothing", "c1", 1.0)]) == 0
    head = await compact(store, head, 1, "c1")
    assert await store.embed(BORIS, [embedding("talk/main/s0", "c1", 1.0)]) == 0
    assert await store.embed(ANNA, []) == 0

    assert await store.embeddings(ANNA, ["talk/main/s0", head.session]) == []
    assert await store.embeddings(ANNA, []) == []


async def test_a_newer_vector_of_one_name_takes_the_place_of_the_older(store):
    await close(store, await begin(store), 1.0, 0.0)
    (old,) = await store.embeddings(ANNA, ["talk/main/s0"])
    new = embedding("talk/main/s0", old.summary, 0.0, 1.0)
    other = embedding("talk/main/s0", old.summary, 0.0, name="a")
    assert await store.embed(ANNA, [new, other]) == 2

    assert await store.embeddings(ANNA, ["talk/main/s0"]) == [other, new]


async def test_a_summary_that_is_written_later_brings_its_vector(store):
    head = await say(store, await begin(store), *"ab")
    head = await store.commit(head, Batch(at=5.0, opens=next_session(head, 2, "s1", kind="new")))
    near = embedding("talk/main/s0", "late", 1.0, 0.0)
    assert await store.attach_summary(ANNA, "talk/main/s0", written("late"), near)
    again = embedding("talk/main/s0", "later", 0.0, 1.0)
    assert not await store.attach_summary(ANNA, "talk/main/s0", written("later"), again)

    assert await store.embeddings(ANNA, ["talk/main/s0"]) == [near]


async def test_the_vector_of_a_summary_stays_until_the_one_in_its_place_brings_another(store):
    head = await say(store, await begin(store), *"ab")
    head = await store.commit(head, Batch(at=5.0, opens=next_session(head, 2, "s1", kind="new")))
    session, vector = "talk/main/s0", embedding("talk/main/s0", "model", 0.0, 1.0)
    await store.attach_summary(ANNA, session, written("digest"), embedding(session, "digest", 1.0, 0.0))
    assert await store.attach_summary(ANNA, session, written("model"), replaces="digest")
    assert await store.embeddings(ANNA, [session]) == [embedding(session, "model", 1.0, 0.0)]
    assert await store.unembedded(ANNA, vector.name) == []
    assert await store.attach_summary(ANNA, session, written("better"), replaces="model")
    assert await store.embed(ANNA, [vector]) == 0
    better = structs.replace(vector, summary="better")
    assert await store.embed(ANNA, [better]) == 1
    assert await store.embeddings(ANNA, [session]) == [better]


async def test_closed_sessions_that_have_a_summary_and_no_vector_are_told_newest_first(store):
    head = await close(store, await begin(store), 1.0, 0.0)
    for number in range(3):
        head = await say(store, head, "a word")
        head = await compact(store, head, head.next_seq, f"c{number}")
    head = await store.commit(head, Batch(at=5.0, opens=next_session(head, head.next_seq, "new", kind="new")))

    lacking = [one.id for one in await store.unembedded(ANNA, "tiny")]
    assert lacking == ["c1/s", "c0/s", "talk/main/c0/s"], "one without a summary has nothing to embed"
    assert [one.id for one in await store.unembedded(ANNA, "tiny", 1)] == ["c1/s"]
    assert len(await store.unembedded(ANNA, "other")) == 4
    assert await store.unembedded(BORIS, "tiny") == []


async def test_vectors_are_deleted_with_their_conversation(store):
    for name in ("one", "two", "three"):
        await close(store, await begin(store, name, at=1.0), 1.0, 0.0)
    await store.delete(ANNA, "one")
    assert await found(store, 1, 0) == ["two: two/main/s0", "three: three/main/s0"]
    assert await store.embeddings(ANNA, ["one/main/s0"]) == []
    await store.expire(ANNA, 99.0)

    assert await found(store, 1, 0) == []
