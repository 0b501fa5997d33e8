"""A compaction that is done again: what was there stays until there is something better."""

import asyncio

import pytest
from msgspec import structs

from refold.core.presets import PRESETS
from refold.engine import summary_jobs
from refold.engine.archive import pack, unpack
from refold.engine.events import CompactionEnd
from refold.model.errors import StoreError, SummaryError
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from tests.engine.test_stored_conversation import answer, engine
from tests.engine.test_summary_jobs import WIDE, Paid, filled, told
from tests.policies import ARRIVING

PLACES = ["memory", "sqlite"]


async def opened(place, tmp_path):
    return MemoryStore() if place == "memory" else await SqliteStore.open(tmp_path / "talks.db")


async def compacted(store, model):
    """A conversation with a compaction, and something that was done since."""
    talk = await filled(store, summariser=model, policy=ARRIVING)
    await talk.compact()
    await talk.add({"role": "assistant", "content": "ok"})
    await talk.add({"role": "user", "content": "a very long answer " * 12_000})
    assert [one.kind for one in await changes(store)] == ["summarise", "arrival"]
    return talk


async def changes(store):
    head = await store.head("local", "chat")
    made = [one for one in await store.compactions("local", head.branch) if one.state == "installed"]
    return sorted(made, key=lambda one: one.number)


async def live(store):
    return [
        (one.first, one.last, one.kind)
        for one in await store.sessions("local", "chat")
        if one.state == "live"
    ]


@pytest.mark.feature("N10")
@pytest.mark.parametrize("place", PLACES)
async def test_who_stops_it_has_the_old_one_as_it_was(place, tmp_path):
    store, model, slow = await opened(place, tmp_path), Paid(), Paid("SLOW")
    talk = await compacted(store, model)
    before, sessions, status = await talk.context(), await live(store), await talk.status()
    slow.stop()
    again = asyncio.create_task(talk.rerun(policy=PRESETS["opal"], summariser=slow))
    await slow.is_asked.wait()
    assert [one.kind for one in await changes(store)] == ["summarise", "arrival"], "nothing is undone yet"
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    assert await talk.context() == before
    assert await talk.status() == status
    assert await live(store) == sessions
    fresh = await engine(store, summariser=model, **WIDE).conversation("chat")
    assert await fresh.context() == before
    assert (len(model.tasks), len(slow.tasks)) == (1, 1), "nothing was paid for twice"
    assert await engine(store).examine("chat") == []
    await store.close()


async def test_what_stayed_can_be_taken_back_and_done_again():
    store, model, down = MemoryStore(), Paid(), Paid("DOWN")
    talk = await compacted(store, model)
    down.is_down = True
    with pytest.raises(SummaryError):
        await talk.rerun(summariser=down)
    other = Paid("OTHER")
    assert await talk.rerun(summariser=other)
    assert "OTHER 1" in await told(talk)
    assert len(await told(talk)) < 200_000, "what was too long when it came is as short as it was"
    assert await talk.undo()
    assert await live(store) == [(0, None, "root")]
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("N10")
@pytest.mark.parametrize("place", PLACES)
async def test_a_model_that_fails_leaves_the_old_one(place, tmp_path):
    store, model, down = await opened(place, tmp_path), Paid(), Paid("DOWN")
    talk = await compacted(store, model)
    before = await talk.context()
    down.is_down = True
    with pytest.raises(SummaryError) as caught:
        await talk.rerun(summariser=down)
    assert caught.value.hint
    assert await talk.context() == before
    assert "SUMMARY 1" in str(before)
    await talk.add({"role": "assistant", "content": "go on"})
    assert await engine(store).examine("chat") == []
    await store.close()


async def test_a_store_that_fails_before_it_is_done_leaves_the_old_one():
    store, model = MemoryStore(), Paid()
    talk = await compacted(store, model)
    before, plan = await talk.context(), store.plan

    async def full(*_):
        raise StoreError("the disk is full")

    store.plan = full
    with pytest.raises(SummaryError):
        await talk.rerun(policy=PRESETS["opal"])
    store.plan = plan
    assert await talk.context() == before


@pytest.mark.parametrize("place", PLACES)
async def test_an_engine_that_is_closed_leaves_it_in_effect(place, tmp_path):
    store, slow = await opened(place, tmp_path), Paid("SLOW")
    closing = engine(store, summariser=Paid(), **WIDE)
    talk = await closing.conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    before, kept = await talk.context(), []
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    shut, store.close = store.close, lambda: see(store, kept)
    await closing.close()
    with pytest.raises(StoreError, match="closed during the rerun"):
        await again
    assert kept == ["summarise"], "when the store was closed it was there"
    store.close = shut
    assert await (await engine(store, **WIDE).conversation("chat")).context() == before
    await store.close()


async def see(store, kept) -> None:
    kept += [one.kind for one in await changes(store)]


async def test_while_it_is_done_again_another_program_may_go_on():
    store, model, slow = MemoryStore(), Paid(), Paid("SLOW")
    talk = await filled(store, summariser=model)
    await talk.compact()
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    other = await engine(store, **WIDE).conversation("chat")
    await other.add({"role": "assistant", "content": "MEANWHILE"}, "and then?")
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    assert "SUMMARY 1" in await told(talk)
    assert "MEANWHILE" in await told(talk)
    assert await other.context() == await talk.context()
    assert await engine(store).examine("chat") == []


async def test_where_somebody_has_compacted_meanwhile_theirs_stays():
    store, model, slow, theirs = MemoryStore(), Paid(), Paid("SLOW"), Paid("THEIRS")
    talk = await filled(store, summariser=model)
    await talk.compact()
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    other = await engine(store, summariser=theirs, **WIDE).conversation("chat")
    for number in range(40, 60):
        await other.add(*answer(number))
    await other.compact()
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    assert "THEIRS 1" in await told(talk)
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("X14")
@pytest.mark.parametrize("place", PLACES)
async def test_what_was_in_effect_stays_what_it_was_and_is_not_paid_for_twice(place, tmp_path):
    store, model = await opened(place, tmp_path), Paid()
    talk = await filled(store, summariser=model)
    await talk.compact()
    (first,) = await changes(store)
    known, text = await store.compaction("local", first.id), await store.written("local", [first.id])
    for _ in range(3):
        assert await talk.undo()
        await talk.compact()
    (again,) = await changes(store)
    assert len(model.tasks) == 1
    assert again.id != first.id
    assert [one.summary.own_text for one in await store.written("local", [again.id])] == ["SUMMARY 1"]
    assert await store.written("local", [first.id]) == text
    assert await store.compaction("local", first.id) == structs.replace(known, state="undone")
    assert await engine(store).examine("chat") == []
    await store.close()


@pytest.mark.parametrize("place", PLACES)
async def test_a_digest_for_another_window_leaves_the_one_before_it(place, tmp_path):
    store = await opened(place, tmp_path)
    talk = await filled(store, turns=60)
    await talk.compact()
    (first,) = await changes(store)
    (text,) = await store.written("local", [first.id])
    small = await engine(store, window=3_000, max_output=100).conversation("chat")
    assert await small.rerun()
    (again,) = [one for one in await changes(store) if one.kind == "summarise"]
    (other,) = await store.written("local", [again.id])
    assert other.summary.text != text.summary.text
    assert await store.written("local", [first.id]) == [text]
    await store.close()


async def test_where_there_is_nothing_to_do_again_nothing_is_done():
    store, model = MemoryStore(), Paid()
    talk = await filled(store, summariser=model)
    head = await store.head("local", "chat")
    assert not await talk.rerun()
    assert await store.head("local", "chat") == head
    assert model.tasks == []


@pytest.mark.parametrize("place", PLACES)
async def test_all_that_was_done_since_stays_with_it(place, tmp_path):
    store, slow = await opened(place, tmp_path), Paid("SLOW")
    talk = await filled(store, turns=60, summariser=Paid(), preset="lis")
    await talk.compact()
    await talk.add({"role": "assistant", "content": "ok"})
    for number in range(30, 36):
        await talk.add(*answer(number, size=9_000))
    kinds = [one.kind for one in await changes(store)]
    assert (kinds[0], "reduce" in kinds) == ("summarise", True)
    await talk.add("and then?")
    before = await talk.context()
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    assert [one.kind for one in await changes(store)] == kinds
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    assert [one.kind for one in await changes(store)] == kinds
    archived = MemoryStore()
    _ = [one async for one in unpack(archived, [line async for line in pack(store, ["local"])])]
    for kept in (store, archived):
        fresh = await engine(kept, preset="lis", **WIDE).conversation("chat")
        assert await fresh.context() == before
        assert await engine(kept).examine("chat") == []
    await store.close()


@pytest.mark.feature("N10")
async def test_a_compaction_is_run_again_by_a_model():
    store, model, other = MemoryStore(), Paid(), Paid("OTHER")
    talk = await filled(store, summariser=model)
    await talk.compact()
    (span,) = [(task.first, task.last) for task in model.tasks]
    assert await talk.rerun(policy=PRESETS["opal"])
    assert "SUMMARY 2" in await told(talk)
    assert await talk.rerun(summariser=other)
    assert "OTHER 1" in await told(talk)
    assert {(task.first, task.last) for task in (*model.tasks, *other.tasks)} == {span}
    assert await engine(store).examine("chat") == []


@pytest.mark.parametrize("place", PLACES)
async def test_messages_are_added_at_once_while_a_model_writes_again(place, tmp_path):
    store, model, slow = await opened(place, tmp_path), Paid(), Paid("SLOW")
    talk = await filled(store, summariser=model)
    await talk.compact()
    cut = (await changes(store))[0].cut
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    await talk.add({"role": "assistant", "content": "LATE"}, "go on")
    assert "SUMMARY 1" in await told(talk), "the old one is in effect"
    slow.may_answer.set()
    assert await again
    sent = await told(talk)
    assert ("SLOW 1" in sent, "SUMMARY 1" in sent, "LATE" in sent, "go on" in sent) == (
        True,
        False,
        True,
        True,
    )
    assert await live(store) == [(0, cut, "root"), (cut, None, "compaction")]
    fresh = await engine(store, **WIDE).conversation("chat")
    assert await fresh.context() == await talk.context()
    assert await engine(store).examine("chat") == []
    await store.close()


async def test_a_rerun_is_one_commit_after_the_model_has_answered():
    """A kill at any time leaves the old compaction or the new one."""
    store, slow, places = MemoryStore(), Paid("SLOW"), []
    talk = await filled(store, summariser=Paid())
    await talk.compact()
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    before, commit = await store.head("local", "chat"), store.commit

    async def seen(head, batch):
        places.append(([one.id for one in await changes(store)], bool(batch.undoes), len(batch.changes)))
        return await commit(head, batch)

    store.commit = seen
    slow.may_answer.set()
    (old,) = await changes(store)
    assert await again
    (new,) = await changes(store)
    assert places == [([old.id], True, 1)]
    assert new.id != old.id
    assert (await store.head("local", "chat")).session != before.session


async def test_a_commit_that_fails_leaves_the_old_one_and_the_summary_is_not_paid_for_twice():
    store, other = MemoryStore(), Paid("OTHER")
    talk = await filled(store, summariser=Paid())
    await talk.compact()
    before, commit = await talk.context(), store.commit

    async def full(*_):
        raise StoreError("the disk is full")

    store.commit = full
    with pytest.raises(StoreError):
        await talk.rerun(summariser=other)
    store.commit = commit
    assert await talk.context() == before
    assert await talk.rerun(summariser=other)
    assert ("OTHER 1" in await told(talk), len(other.tasks)) == (True, 1)
    assert await engine(store).examine("chat") == []


@pytest.mark.parametrize("move", ["compact", "start_session", "undo"])
async def test_a_conversation_that_has_moved_on_stays_as_it_is(move):
    store, slow, theirs = MemoryStore(), Paid("SLOW"), Paid("THEIRS")
    talk = await filled(store, summariser=Paid())
    await talk.compact()
    slow.stop()
    heard = talk.events()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    other = await engine(store, summariser=theirs, **WIDE).conversation("chat")
    for number in range(40, 60):
        await other.add(*answer(number))
    await getattr(other, move)()
    await other.ready()
    made = await changes(store)
    slow.may_answer.set()
    with pytest.raises(SummaryError, match="moved on"):
        await again
    assert await changes(store) == made
    await talk.add("go on")
    assert "SLOW 1" not in await told(talk)
    await talk.close()
    assert "summary_discarded" in [event.kind async for event in heard]
    assert await engine(store).examine("chat") == []


class Late:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        self.now += 1.0
        return self.now


async def test_a_rerun_takes_over_from_one_that_was_killed(monkeypatch):
    monkeypatch.setattr(summary_jobs, "POLL_S", 0.001)
    store, killed, slow = MemoryStore(), Paid("KILLED"), Late()
    talk = await filled(store, summariser=Paid())
    await talk.compact()
    killed.stop()
    again, give_up = asyncio.create_task(talk.rerun(summariser=killed)), store.give_up
    await killed.is_asked.wait()

    async def gone(*_):
        raise StoreError("the program is killed: it ends nothing")

    store.give_up = gone
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    store.give_up = give_up
    head = await store.head("local", "chat")
    (left,) = [one for one in await store.unfinished("local", head.branch) if one.state == "running"]
    slow.now = left.until - 45
    other = await engine(store, clock=slow, **WIDE).conversation("chat")
    assert await other.rerun(summariser=Paid("KILLED"))
    assert "KILLED 1" in await told(other)


async def test_a_rerun_that_finds_another_at_work_says_so(monkeypatch):
    monkeypatch.setattr(summary_jobs, "POLL_S", 0.001)
    monkeypatch.setattr(summary_jobs, "PATIENCE_S", 0.0)
    store, slow = MemoryStore(), Paid("SLOW")
    talk = await filled(store, summariser=Paid())
    await talk.compact()
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    other = await engine(store, **WIDE).conversation("chat")
    with pytest.raises(SummaryError) as caught:
        await other.rerun(summariser=Paid("SLOW"))
    assert caught.value.hint == summary_jobs.HELD
    slow.may_answer.set()
    assert await again


async def test_a_function_is_asked_although_one_of_its_name_wrote_before():
    def writer(text):
        def write(messages, **_):
            return text

        return write

    store = MemoryStore()
    talk = await filled(store, summariser=Paid())
    await talk.compact()
    assert await talk.rerun(summariser=writer("The harbour is closed."))
    assert "The harbour is closed." in await told(talk)
    assert await talk.rerun(summariser=writer("The harbour is open."))
    assert "The harbour is open." in await told(talk)
    assert "The harbour is closed." not in await told(talk)


async def test_a_compaction_that_is_asked_for_during_a_rerun_is_not_superseded_by_it():
    store, slow, heard = MemoryStore(), Paid("SLOW"), []
    talk = await filled(store, summariser=Paid(), on_event=heard.append)
    await talk.compact()
    slow.stop()
    again = asyncio.create_task(talk.rerun(summariser=slow))
    await slow.is_asked.wait()
    asked = asyncio.create_task(talk.compact(keep=1_000))
    await asyncio.sleep(0)
    slow.may_answer.set()
    assert await again
    await asked
    ends = [one.outcome for one in heard if isinstance(one, CompactionEnd)]
    assert len(ends) == 3
    assert "superseded" not in ends
