"""Summaries of kept conversations: what is paid for is used, where it belongs, whatever goes on at the same time."""

import asyncio
import gc
import json
from weakref import ref

import pytest

import refold
from refold.engine import actions
from refold.engine.summary_jobs import MAX_FAILURES
from refold.model.errors import StoreError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from refold.summarisers import ModelSummariser
from tests.engine.listener import Heard
from tests.engine.test_stored_conversation import answer, engine, stated
from tests.summarisers.scripted_upstream import GOOD, Scripted, writer

WIDE = {"window": 100_000}
TOO_LONG = {
    "error": {
        "message": "This model's maximum context length is 4000 tokens. However, your messages resulted in 9000 tokens.",
        "code": "context_length_exceeded",
        "type": "invalid_request_error",
    }
}


class Paid:
    """A summariser that says what it was asked, and waits where it is told to."""

    def __init__(self, name="SUMMARY"):
        self.name = self.model = name
        self.tasks, self.is_down = [], False
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def write(self, task):
        self.tasks.append(task)
        text = f"{self.name} {len(self.tasks)}"
        self.is_asked.set()
        await self.may_answer.wait()
        if self.is_down:
            return None
        usage = Usage(input=1_000, output=100)
        return Summary(text, task.first, task.last, 0, "model", task.scope, usage=usage)

    def stop(self):
        self.is_asked.clear()
        self.may_answer.clear()


class Gate(MemoryStore):
    """A store that lets somebody else act first, once, before an act of its own."""

    def __init__(self):
        super().__init__()
        self.first = {}

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name.startswith("_") or name not in super().__getattribute__("__dict__").get("first", {}):
            return found
        before = self.first.pop(name)

        async def after(*args, **settings):
            await before()
            return await found(*args, **settings)

        return after


class SlowReply(MemoryStore):
    """A store that has a summary, and is slow to say so."""

    def __init__(self):
        super().__init__()
        self.is_stored, self.may_return = asyncio.Event(), asyncio.Event()

    async def reply(self, *args):
        is_first = await super().reply(*args)
        self.is_stored.set()
        await self.may_return.wait()
        return is_first


async def filled(store, turns=30, name="chat", **settings):
    talk = await engine(store, **{**WIDE, **settings}).conversation(name)
    for number in range(turns):
        await talk.add(*answer(number))
    await talk.add("and now?")
    return talk


async def until_asked(talk, model, first=0):
    """Turns until a summary is being written in the background; the number of the next one."""
    model.stop()
    while not model.is_asked.is_set():
        await talk.add(*answer(first))
        await asyncio.sleep(0)
        first += 1
        for _ in range(20):
            await asyncio.sleep(0)
    return first


async def told(talk):
    return "\n".join(str(one.get("content")) for one in (await talk.context())["messages"])


async def rows(talk, kind="summarise"):
    found = await talk._journal.store.compactions("local", talk._journal.head.branch)
    return [one.state for one in found if one.kind == kind]


@pytest.mark.feature("L17")
async def test_what_another_program_is_writing_is_no_failure():
    store, slow, model = MemoryStore(), Paid(), Paid()
    one = await filled(store, summariser=slow)
    two = await engine(store, summariser=model, **WIDE).conversation("chat")
    slow.stop()
    compacting = asyncio.create_task(one.compact())
    await slow.is_asked.wait()
    for _ in range(MAX_FAILURES):
        await two._jobs._write(actions.wanted_now(two.state), two.summariser, "", two.state)
    status = await two.status()
    assert (status.failures, status.is_stopped, model.tasks) == (0, False, [])
    assert not two._jobs.with_prepared(two.state).has_failed
    slow.may_answer.set()
    await compacting


@pytest.mark.feature("L17")
async def test_two_programs_on_one_conversation_have_one_summary_written_at_a_time():
    store, models = MemoryStore(), [Paid("ONE"), Paid("TWO")]  # also where they ask different models
    one, two = [await engine(store, summariser=model).conversation("chat") for model in models]
    number = await until_asked(one, models[0])
    await two.add(*answer(number))
    await two.ready()
    assert (len(models[0].tasks), models[1].tasks) == (1, [])
    models[0].may_answer.set()
    await one.ready()
    for later in range(number + 1, number + 5):
        await two.add(*answer(later))
        await two.ready()
    assert "ONE 1" in await told(two)
    written = models[0].tasks[0].last
    assert all(task.last > written for task in models[1].tasks)  # never the same summary again


async def test_who_compacts_waits_for_what_another_program_writes_though_nobody_waited_at_first(monkeypatch):
    store, slow, model = MemoryStore(), Paid(), Paid()
    one, two = [await engine(store, summariser=paid).conversation("chat") for paid in (slow, model)]
    number = await until_asked(one, slow)

    async def answered(_):
        slow.may_answer.set()
        await one.ready()

    await two.add(*answer(number))
    monkeypatch.setattr("refold.engine.summary_jobs.asyncio.sleep", answered)
    await two.compact()
    await two.add("and now?")
    assert "SUMMARY 1" in await told(two)
    assert model.tasks == []


async def test_who_compacts_first_reads_what_others_have_done():
    store, model = MemoryStore(), Paid()
    one = await filled(store, summariser=Paid())
    two = await engine(store, summariser=model, **WIDE).conversation("chat")
    await one.add({"role": "assistant", "content": "ok"})
    for number in range(30, 40):
        await one.add(*answer(number))
    await one.add("go on")
    await one.compact()
    await two.compact()
    assert model.tasks == []
    assert await rows(two) == ["installed"]


@pytest.mark.feature("X14")
async def test_a_summary_that_comes_after_memory_was_read_again_is_used():
    store, model = MemoryStore(), Paid()
    talk, other = [await engine(store, summariser=one).conversation("chat") for one in (model, None)]
    number = 0
    while "installed" not in await rows(talk):
        await talk.add(*answer(number))
        await talk.ready()
        number += 1
    number = await until_asked(talk, model, number)
    asked = len(model.tasks)
    await other.add(*answer(number))
    await talk.add(*answer(number + 1))
    model.may_answer.set()
    await talk.ready()
    for later in range(number + 2, number + 5):
        await talk.add(*answer(later))
        await talk.ready()
    assert f"SUMMARY {asked}" in await told(talk)
    assert [task.last for task in model.tasks].count(model.tasks[asked - 1].last) == 1
    assert (await rows(talk)).count("superseded") == 0


async def test_a_summary_that_is_used_before_its_job_returns_is_not_reported_as_discarded():
    store, model, heard = SlowReply(), Paid(), Heard()
    talk = await engine(store, summariser=model, on_event=heard).conversation("chat")
    other = await engine(store).conversation("chat")
    number = await until_asked(talk, model)
    model.may_answer.set()
    await store.is_stored.wait()
    await other.add(*answer(number))  # so that the first program reads the store again
    while "installed" not in await rows(talk):
        number += 1
        await talk.add(*answer(number))
        await talk.context()
    store.may_return.set()
    await talk.ready()
    assert "SUMMARY 1" in await told(talk)
    assert "summary_discarded" not in [event.kind for event in heard]


async def test_a_summary_that_was_written_ahead_leaves_room_for_several_turns():
    """The model wrote while the conversation went on; a digest tells of the messages after its summary."""
    model, told_of = Paid(), []
    async with refold.Conversation("gpt-4o", window=4_000, summariser=model, on_event=told_of.append) as talk:
        for number in range(60):
            await talk.add(
                f"Station {number} weighs {31_000 + 37 * number} g. " + "Rain came in from the sea. " * 9
            )
            await talk.context()
            await talk.ready()
            await talk.add(
                {"role": "assistant", "content": f"Station {number} is up 37 g. " + "It is steady. " * 9}
            )
    folds = [one for one in told_of if one.kind == "compaction_end" and one.outcome == "installed"]
    assert len(folds) >= 4
    assert max(one.after.tokens / one.after.limit for one in folds) < 0.85
    assert "SUMMARY" in str(talk.state.folded.summaries[-1].text)


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_summary_of_the_session_before_does_not_stand_in_the_way_of_the_next(is_resumed):
    store, model = MemoryStore(), Paid("OLD")
    talk = await engine(store, summariser=model).conversation("chat")
    await talk.add("first", {"role": "assistant", "content": "ok"})
    first = talk._journal.session
    if is_resumed:
        await talk.start_session()
    number = await until_asked(talk, model)
    await (talk.resume(first) if is_resumed else talk.start_session())
    model.name, model.tasks = "NEW", []
    model.may_answer.set()
    await talk.ready()
    while "installed" not in await rows(talk):
        await talk.add(*answer(number))
        await talk.ready()
        number += 1
    await talk.add("and now?")
    assert "NEW" in await told(talk)
    assert "OLD" not in await told(talk)
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("X12")
async def test_an_act_that_is_done_again_counts_once():
    store = Gate()
    talk = await filled(store, turns=12, window=4_000)
    other = await engine(store).conversation("chat")
    await talk.context()
    told_before = len(talk.receipts)

    async def meanwhile():
        await other.add("meanwhile")

    store.first["commit"] = meanwhile
    await talk.recover(TOO_LONG)
    assert talk.state.limits.attempts == 1
    assert len(talk.receipts) == told_before + 1
    await talk.recover(TOO_LONG)
    assert talk.state.limits.attempts == 2


async def test_an_instruction_of_an_act_that_is_done_again_is_given_once():
    store = Gate()
    talk, other = [await engine(store).conversation("chat") for _ in range(2)]

    async def meanwhile():
        await other.set_instructions(b'{"model":"m"}')

    store.first["commit"] = meanwhile
    await talk.add({"role": "system", "content": "You are PIRATE."}, "hello")
    assert str(await talk.context()).count("PIRATE") == 1


@pytest.mark.feature("X14")
async def test_another_model_is_other_work():
    async def one(messages, *, previous, max_tokens):
        return f"{GOOD}\nby model ONE"

    async def two(messages, *, previous, max_tokens):
        return f"{GOOD}\nby model TWO"

    def chain(name):
        return ModelSummariser([writer(Scripted(f"{GOOD}\nby {name}", model=name))])

    store = MemoryStore()
    talk = await filled(store)
    for author, said in (
        (one, "model ONE"), (two, "model TWO"), (chain("three"), "by three"), (chain("four"), "by four"),
    ):  # fmt: skip
        talk = await engine(store, summariser=author, **WIDE).conversation("chat")
        await talk.compact()
        assert said in await told(talk)
        assert await talk.undo()


@pytest.mark.feature("X14")
async def test_who_stops_waiting_loses_nothing_that_is_paid_for():
    store, model = MemoryStore(), Paid()
    talk = await filled(store, summariser=model)
    model.stop()
    compacting = asyncio.create_task(talk.compact())
    await model.is_asked.wait()
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting
    model.may_answer.set()
    await talk.compact()
    assert "SUMMARY 1" in await told(talk)
    assert len(model.tasks) == 1


async def test_an_engine_that_is_closed_ends_what_it_is_at_work_on(tmp_path):
    model = Paid()
    closing = engine(await SqliteStore.open(tmp_path / "talks.db"), summariser=model, **WIDE)
    talk = await closing.conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    model.stop()
    compacting = asyncio.create_task(talk.compact())
    await model.is_asked.wait()
    await closing.close()
    with pytest.raises(StoreError):
        await compacting
    again = engine(await SqliteStore.open(tmp_path / "talks.db"), summariser=model, **WIDE)
    assert [one.state for one in await again.store.unfinished("local")] == ["planned"]
    model.may_answer.set()
    talk = await again.conversation("chat")
    await talk.compact()
    assert "SUMMARY 2" in await told(talk)
    await again.close()


async def test_a_compaction_by_hand_ends_with_its_conversation_and_makes_no_digest():
    model = Paid()
    talk = await engine(MemoryStore(), summariser=model, **WIDE).conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    model.stop()
    compacting = asyncio.create_task(talk.compact())
    await model.is_asked.wait()
    await talk.close()
    with pytest.raises(StoreError, match="closed during the compaction"):
        await compacting
    assert not [one for one in await talk.compactions() if one.state == "installed"]


async def test_an_engine_that_is_closed_ends_the_job_of_a_conversation_that_nobody_uses_any_more():
    store, model = MemoryStore(), Paid()
    closing = engine(store, summariser=model)
    talk = await closing.conversation("chat")
    await until_asked(talk, model)
    del talk
    gc.collect()
    await closing.rest()
    assert [one.state for one in await store.unfinished("local")] == ["planned"]


async def test_a_conversation_that_nobody_uses_any_more_waits_for_its_job_and_for_no_garbage_collection():
    store, model = MemoryStore(), Paid()
    used = engine(store, summariser=model)
    talk = await used.conversation("chat")
    await until_asked(talk, model)
    held = ref(talk)
    gc.disable()
    try:
        del talk
        assert held() is not None
        model.may_answer.set()
        for _ in range(200):
            await asyncio.sleep(0)
        assert held() is None
    finally:
        gc.enable()
    assert [one.state for one in await store.unfinished("local")] == ["summarised"]


async def test_a_conversation_whose_job_was_stopped_needs_no_garbage_collection():
    model = Paid()
    talk = await engine(MemoryStore(), summariser=model).conversation("chat")
    await until_asked(talk, model)
    gc.disable()
    try:
        await talk.close()
        held = ref(talk)
        del talk
        for _ in range(5):
            await asyncio.sleep(0)
        assert held() is None
    finally:
        gc.enable()


async def test_two_who_compact_at_once_have_one_summary():
    store, model = MemoryStore(), Paid()
    talk = await filled(store, summariser=model)
    model.stop()
    compacting = [asyncio.create_task(talk.compact()) for _ in range(2)]
    await model.is_asked.wait()
    model.may_answer.set()
    first, second = await asyncio.gather(*compacting)
    assert first == second
    assert "SUMMARY 1" in str(first)
    assert await rows(talk) == ["installed"]
    assert len(model.tasks) == 1


@pytest.mark.feature("C3")
async def test_another_model_begins_with_what_is_known_about_it():
    store = MemoryStore()
    known = await engine(store, **WIDE).conversation("other", model="gpt-4.1")
    await known.add("word " * 2_000)
    await known.context()
    await known.record({"prompt_tokens": 2_600, "completion_tokens": 1})

    talk = await engine(store, **WIDE).conversation("chat", model="gpt-4o-mini")
    await talk.add("word " * 2_000)
    await talk.context()
    await talk.record({"prompt_tokens": 4_000, "completion_tokens": 1})
    await talk.apply(stated(50_000))
    await talk.add({"role": "assistant", "content": "ok"})

    talk = await engine(store, **WIDE).conversation("chat", model="gpt-4.1")
    assert talk.state.calibration.ratio == pytest.approx(known.state.calibration.ratio, abs=0.01)
    assert (talk.state.meter.anchor, talk.state.limits.own) == (None, None)
    await talk.add("go on")
    await talk.context()
    await talk.record({"prompt_tokens": 2_700, "completion_tokens": 1})
    assert [one.model for one in await store.calls("local", "chat")] == ["gpt-4o-mini", "gpt-4.1"]
    again = await engine(store, **WIDE).conversation("chat")
    assert again._journal.model == "gpt-4.1"
    assert again.state.meter.anchor is not None


@pytest.mark.feature("L17")
async def test_what_arrives_while_everything_ever_said_is_read_stays():
    store, model = Gate(), Paid()
    settings = {"preset": "librechat", "summariser": model, **WIDE}
    talk = await filled(store, **settings)
    await talk.compact()
    talk = await engine(store, **settings).conversation("chat")
    await talk.add({"role": "assistant", "content": "ok"})
    for number in range(30, 50):
        await talk.add(*answer(number))

    async def meanwhile():
        await talk.add("late", {"role": "assistant", "content": "too"})

    store.first["messages"] = meanwhile
    await talk.add("and then?")
    await talk.compact()
    assert "messages" not in store.first
    assert model.tasks[-1].first == 0
    await talk.add({"role": "assistant", "content": "last"})
    kept = [one.body for one in await store.messages(talk._journal.head)]
    assert len(kept) == talk.state.folded.size
    assert all(word in body for word, body in zip((b"late", b"too", b"last"), kept[-3:], strict=True))


async def test_a_store_that_fails_in_the_background_is_asked_again():
    store, model = MemoryStore(), Paid()
    talk = await engine(store, summariser=model).conversation("chat")
    plan, is_tried = store.plan, asyncio.Event()

    async def full(*_):
        is_tried.set()
        raise StoreError("the disk is full")

    store.plan, number = full, 0
    while not is_tried.is_set():
        await talk.add(*answer(number))
        await talk.ready()
        number += 1
    store.plan = plan
    await talk.add("and now?")
    await talk.compact()
    assert "SUMMARY 1" in await told(talk)


HALF = (
    "## Goal\nThe harbour ledger is checked, berth by berth, and the crew waits for the tide \ud800 of noon."
)


class HalfWriter:
    """A summariser of a program's own, whose text is no Unicode."""

    async def write(self, task):
        return Summary(HALF, task.first, task.last, 30, "model", task.scope)


async def half(messages, **_):
    return HALF


@pytest.mark.parametrize("summariser", [half, HalfWriter()], ids=["function", "class"])
@pytest.mark.parametrize("preset", ["refold", "lis", "opal", "llms", "picoclaw", "librechat"])
async def test_a_summary_that_is_no_unicode_does_not_block_the_conversation(tmp_path, preset, summariser):
    settings = {"preset": preset, "window": 8_000, "summariser": summariser}
    async with refold.Engine(tmp_path / "kept.db", model="gpt-4o", **settings) as opened:
        talk = await opened.conversation("chat")
        for number in range(30):
            await talk.add(
                {"role": "user", "content": f"Question {number}: " + "the berth of the ferry " * 40}
            )
            await talk.add({"role": "assistant", "content": "It is free."})
        await talk.compact()
        sent = json.dumps(await talk.context(), ensure_ascii=False).encode().decode()
        assert "for the tide ? of noon" in sent
        await talk.add("And the next?")
        assert await talk.context()
