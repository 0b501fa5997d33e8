"""Every store keeps the vectors of messages in blocks, tells which messages have none, and deletes them with their conversation."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from refold.engine import search
from refold.engine.engine import Engine
from refold.engine.search import TurnVectors
from refold.model.errors import RefoldError, StoreError
from refold.ports.records import TurnGap
from refold.ports.store import Store
from tests.bad_queries import BAD_QUERIES
from tests.contract.talks import ANNA, BORIS, begin, block, say
from tests.contract.test_store_forks import fork
from tests.embedder import Subjects


async def codes(store: Store, owner: str = ANNA, **more) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.conversation, one.seqs) for one in await store.turn_codes(owner, "tiny", **more)]


@pytest.mark.feature("L16")
async def test_a_branch_has_a_gap_until_all_its_messages_were_seen_by_this_embedder(store):
    head = await say(store, await begin(store), "a", "b", "c")
    assert await store.turn_gaps(ANNA, "tiny") == [TurnGap(head.conversation, head.branch, 0, 3)]

    assert await store.put_turns(ANNA, block(head, 0, 2, (1.0, 0.0)))
    assert await store.turn_gaps(ANNA, "tiny") == [TurnGap(head.conversation, head.branch, 2, 3)]
    assert await store.put_turns(ANNA, block(head, 2, 3))  # a message without a vector
    assert await store.turn_gaps(ANNA, "tiny") == []
    assert await store.turn_gaps(ANNA, "other") == [TurnGap(head.conversation, head.branch, 0, 3)]
    assert await store.turn_gaps(BORIS, "tiny") == []


@pytest.mark.feature("L16")
async def test_of_two_programs_that_embed_the_same_messages_the_first_one_counts(store):
    head = await say(store, await begin(store), "a", "b")
    assert await store.put_turns(ANNA, block(head, 0, 1, (1.0, 0.0)))
    assert not await store.put_turns(ANNA, block(head, 0, 2, (0.0, 1.0), (0.0, 1.0)))
    assert not await store.put_turns(BORIS, block(head, 1, 2))
    assert await codes(store) == [("talk", (0,))]


@pytest.mark.feature("L16")
async def test_vectors_are_stored_only_from_the_first_message_on_that_has_none(store):
    head = await say(store, await begin(store), "a", "b", "c", "d")
    vector = (1.0, 0.0)
    assert not await store.put_turns(ANNA, block(head, 2, 4, vector)), "it would leave a hole"
    assert await store.put_turns(ANNA, block(head, 0, 2, vector, vector))
    assert not await store.put_turns(ANNA, block(head, 1, 4, vector, vector)), "it would overlap"
    assert not await store.put_turns(ANNA, block(head, 3, 4, vector)), "it would leave a hole"
    assert await store.turn_gaps(ANNA, "tiny") == [TurnGap(head.conversation, head.branch, 2, 4)]
    assert await store.put_turns(ANNA, block(head, 2, 4, vector, vector))
    assert await codes(store) == [("talk", (0, 1)), ("talk", (2, 3))]

    other = await say(store, await fork(store, head, 3), "e")
    assert not await store.put_turns(ANNA, block(other, 0, 4, vector)), "the base has them"
    assert await store.put_turns(ANNA, block(other, 3, 4, vector))
    assert await store.turn_gaps(ANNA, "tiny") == []


@pytest.mark.feature("L16")
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
async def test_two_programs_that_embed_at_the_same_time_leave_no_hole_and_no_duplicate(store, dies):
    class Slow(Subjects):
        meanwhile: Callable[[], Awaitable[object]] | None = None

        async def embed(self, texts):
            if (first := self.meanwhile) is not None:
                self.meanwhile = None
                await first()
            return await super().embed(texts)

    head = await say(store, await begin(store), *(f"the boat {number}" for number in range(10)))
    one, two = Slow(), Slow()
    ours, theirs = TurnVectors(store, ANNA, one), TurnVectors(store, ANNA, two)
    begun, may_store, has_stored = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await may_store.wait()
        one.meanwhile = die if dies else None

    async def die() -> None:
        has_stored.set()
        await asyncio.Event().wait()

    async def let_the_other_store() -> None:
        may_store.set()
        await (has_stored.wait() if dies else task)

    one.meanwhile, two.meanwhile = wait, let_the_other_store
    task = ours.begin()
    await begun.wait()
    await say(store, head, *(f"the harbour {number}" for number in range(90)))
    await theirs.catch_up()
    await ours.close()
    kept = [seq for row in await store.turn_codes(ANNA, "subjects") for seq in row.seqs]
    assert sorted(kept) == list(range(100))
    assert await store.turn_gaps(ANNA, "subjects") == []


@pytest.mark.feature("L16")
async def test_two_programs_that_embed_at_the_same_time_divide_the_conversations(store, monkeypatch):
    monkeypatch.setattr(search, "random", random.Random(7))
    made = 0

    class Counting(Subjects):
        async def embed(self, texts):
            nonlocal made
            made += len(texts)
            await asyncio.sleep(0)
            return await super().embed(texts)

    for number in range(60):
        await say(store, await begin(store, f"talk-{number}"), "the boat", "the harbour")
    programs = [TurnVectors(store, ANNA, Counting()) for _ in range(2)]
    await asyncio.gather(*(one.catch_up() for one in programs))
    assert await store.turn_gaps(ANNA, "subjects") == []
    assert 120 <= made < 180, "each made nearly all of them if both began with the same one"


@pytest.mark.feature("L16")
async def test_a_fork_has_a_gap_only_for_its_own_messages(store):
    head = await say(store, await begin(store), "a", "b", "c")
    await store.put_turns(ANNA, block(head, 0, 3))
    other = await say(store, await fork(store, head, 2), "d")
    assert await store.turn_gaps(ANNA, "tiny") == [TurnGap(other.conversation, other.branch, 2, 3)]


@pytest.mark.feature("L16")
async def test_vectors_are_read_by_their_place_and_only_by_their_owner(store):
    head = await say(store, await begin(store), "a", "b")
    await store.put_turns(ANNA, block(head, 0, 2, (1.0, 0.0), (-0.6, 0.8)))
    (row,) = await store.turn_codes(ANNA, "tiny")
    places = [(row.id, 1), (row.id + 1_000, 0)]
    assert await store.turn_vectors(ANNA, places, 2) == {(row.id, 1): array("b", [-95, 127]).tobytes()}
    assert await store.turn_vectors(BORIS, places, 2) == {}
    assert await store.turn_codes(ANNA, "tiny", after=row.id) == []
    assert await codes(store, conversation="another") == []


@pytest.mark.feature("L16")
async def test_only_messages_of_people_and_models_that_may_be_found_are_embedded(store):
    head = await begin(store)
    head = await say(store, head, "a question")
    rows = await store.turn_messages(ANNA, TurnGap(head.conversation, head.branch, 0, 1))
    assert [(row.seq, row.role) for row in rows] == [(0, "user")]
    assert await store.turn_messages(BORIS, TurnGap(head.conversation, head.branch, 0, 1)) == []


@pytest.mark.feature("L16")
async def test_a_deleted_conversation_takes_its_vectors_along(store):
    kept, gone = await say(store, await begin(store, "kept"), "a"), await say(store, await begin(store), "b")
    for head in (kept, gone):
        await store.put_turns(ANNA, block(head, 0, 1, (1.0, 0.0)))
    rows = await store.turn_codes(ANNA, "tiny")
    await store.delete(ANNA, "talk")
    assert await codes(store) == [("kept", (0,))]
    found = await store.turn_vectors(ANNA, [(row.id, 0) for row in rows], 2)
    assert len(found) == 1
    again = await say(store, await begin(store), "c")
    await store.put_turns(ANNA, structs.replace(block(again, 0, 1, (1.0, 0.0)), seqs=(0,)))
    assert max(row.id for row in await store.turn_codes(ANNA, "tiny")) > max(row.id for row in rows)


QUERIES = [
    *BAD_QUERIES,
    "",
    "   ",
    "what is the " * 1_000,
    'NEAR(a b, 3) OR "',
    "a* ^b c:d (e) AND NOT f",
    "где корабль сейчас стоит",
    "船はどこにありますか",
    "أين السفينة الآن في البحر",
    "\ud800 lone half of a pair",
    "\x00 a null byte here",
]


@pytest.mark.feature("L16")
async def test_a_message_is_found_by_meaning_in_its_branch_and_conversation_whatever_the_store(store):
    engine = Engine(store, owner=ANNA, embedder=Subjects(), window=8_000)
    talk = await engine.conversation("talk")
    await talk.add({"role": "user", "content": "The boat left the harbour."})
    await talk.add({"role": "assistant", "content": "It is gone now."})
    other = await engine.conversation("talk", branch=(await engine.fork("talk", 1)))
    await other.add({"role": "user", "content": "The invoice was paid."})
    await (await engine.conversation("zoo")).add(
        {"role": "user", "content": "The zebras are on the savanna."}
    )

    async def handles(words: str, **more) -> list[tuple[str, str]]:
        return [(one.conversation, one.handle) for one in await engine.search(words, **more)]

    assert ("talk", "#m0") in await handles("any vessel around here")
    assert await handles("any vessel around here", name="zoo") == []
    assert await handles("any vessel around here in:zoo") == []
    assert await handles("any vessel around here after:2099") == []
    assert await handles("vessel from:assistant") == []
    assert await handles("vessel -storm") == [], "what is to be left out is a matter of words"
    assert "harbour" in await other.recall("any vessel around here")
    assert "harbour" in await talk.recall("any vessel around here")
    assert "invoice" not in await talk.recall("was any money paid back"), "it is in another branch"
    assert "invoice" in await other.recall("was any money paid back")
    await engine.delete("talk")
    assert await handles("any vessel around here") == []
    await engine.rest()


@pytest.mark.feature("L16")
@pytest.mark.parametrize("words", QUERIES, ids=range(len(QUERIES)))
async def test_whatever_is_typed_gives_results_or_a_clear_word(store, words):
    engine = Engine(store, owner=ANNA, embedder=Subjects(), window=8_000)
    talk = await engine.conversation("talk")
    await talk.add({"role": "user", "content": "The boat left the harbour. The of and."})
    for ask in (engine.search, engine.find_sessions, talk.recall):
        found: object = []
        try:
            found = await ask(words)
        except RefoldError as error:
            found = error
        assert isinstance(found, list | str) or (found.hint and not isinstance(found, StoreError))
    await engine.rest()


async def test_a_message_has_all_words_only_if_every_word_of_the_query_is_in_it(store):
    await say(store, await begin(store), "the time in minutes", "the boat")
    assert [one.is_whole for one in await store.search(ANNA, "minutes time")] == [True]
    assert not any(one.is_whole for one in await store.search(ANNA, "thirty minutes missing time"))
