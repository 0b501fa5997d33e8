"""What becomes of memory when an act is not kept: nothing that was said before is lost by it, also where only memory has it."""

from __future__ import annotations

import asyncio

import pytest

from refold.model.errors import StoreError
from refold.ports.records import Batch
from refold.stores.memory import MemoryStore
from tests.engine.test_stored_conversation import answer, engine

USAGE = {"prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950}


class Failing(MemoryStore):
    """A store that cannot keep a batch now and then; `is_kept` says whether it has all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.is_kept = 0, False
        self.error: BaseException = StoreError("the database is busy")

    async def commit(self, seen, batch):
        if not self.fails:
            return await super().commit(seen, batch)
        self.fails -= 1
        if self.is_kept:
            await super().commit(seen, batch)
        raise self.error


@pytest.fixture(params=[True, False], ids=["content", "no content"])
async def talk(request):
    store = Failing()
    made = await engine(store, keeps_content=request.param).conversation("chat", model="gpt-4o-mini")
    await made.add("one", {"role": "assistant", "content": "two"})
    return made


def said(context):
    return [message["content"] for message in context["messages"]]


async def test_after_an_act_that_was_not_kept_the_conversation_goes_on(talk):
    store = talk._journal.store
    store.fails = 1
    with pytest.raises(StoreError, match="busy"):
        await talk.add("three", sensitive=True)
    await talk.add("three again")
    assert said(await talk.context()) == ["one", "two", "three again"]
    assert talk.state.secrecy.numbers == frozenset()
    assert (await store.head("local", "chat")).next_seq == 3


@pytest.mark.parametrize("error", [StoreError("the connection was lost"), asyncio.CancelledError()], ids=str)
async def test_an_act_of_which_nobody_knew_whether_it_was_kept_counts_if_it_was(talk, error):
    store = talk._journal.store
    store.fails, store.is_kept, store.error = 1, True, error
    with pytest.raises(type(error)):
        await talk.add("three")
    assert said(await talk.context()) == ["one", "two", "three"]
    await talk.add({"role": "assistant", "content": "four"}, "five")
    assert said(await talk.context()) == ["one", "two", "three", "four", "five"]
    assert (await store.head("local", "chat")).next_seq == 5


async def test_what_was_reported_is_counted_once_though_it_was_kept_at_the_second_attempt(talk):
    await talk.add("three")
    await talk.context()
    store = talk._journal.store
    store.fails = 1
    with pytest.raises(StoreError):
        await talk.record(USAGE)
    await talk.record(USAGE)
    (call,) = await store.calls("local", "chat")
    assert call.dollars > 0
    assert talk.bill.spent == pytest.approx(call.dollars)


async def test_somebody_who_writes_at_the_same_moment_takes_nothing_away(talk):
    store, commit = talk._journal.store, talk._journal.store.commit

    async def second(seen, batch):
        store.commit = commit
        head = await store.head("local", "chat")
        await commit(head, Batch(at=1.0, notes=head.notes))
        return await commit(seen, batch)

    store.commit = second
    await talk.add("three")
    assert said(await talk.context()) == ["one", "two", "three"]


async def test_a_new_session_that_could_not_be_begun_leaves_the_old_one(talk):
    store = talk._journal.store
    await talk.add("three")
    store.fails = 1
    with pytest.raises(StoreError):
        await talk.start_session()
    assert said(await talk.context()) == ["one", "two", "three"]
    await talk.start_session()
    await talk.add("four")
    assert said(await talk.context()) == ["four"]


async def test_a_new_session_of_which_nobody_knew_whether_it_was_begun_counts_if_it_was(talk):
    store = talk._journal.store
    await talk.add("three")
    store.fails, store.is_kept = 1, True
    with pytest.raises(StoreError):
        await talk.start_session()
    await talk.add("four")
    assert said(await talk.context()) == ["four"]
    assert len(await engine(store).sessions("chat")) == 2


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_compaction_is_there_once_whether_it_was_kept_or_not(talk, is_kept):
    store = talk._journal.store
    for number in range(6):
        await talk.add(*answer(number))
    await talk.add("and now?")
    store.fails, store.is_kept = 1, is_kept
    with pytest.raises(StoreError):
        await talk.compact()
    await talk.compact()
    await talk.add({"role": "assistant", "content": "this"}, "and then?")
    assert said(await talk.context())[-1] == "and then?"
    assert await engine(store).examine("chat") == []
