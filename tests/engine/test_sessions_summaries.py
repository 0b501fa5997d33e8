"""Sessions that were closed are summed up by a model: in the background, or when somebody comes back to them."""

import asyncio

import pytest

from refold.engine.summary_jobs import digest_id
from refold.model.errors import StoreError, SummaryError
from refold.stores.memory import MemoryStore
from tests.embedder import Subjects, vector_of
from tests.engine.test_stored_conversation import answer, engine
from tests.engine.test_summary_jobs import Paid, filled, rows, told, until_asked

SMALL = {"window": 3_000}


async def first_session(talk):
    found = await talk._journal.store.sessions("local", talk.id)
    return found[0]


async def summary_of(talk, session=None):
    session = session or await first_session(talk)
    (written,) = await talk._journal.store.written("local", [session.summary])
    return written.summary


async def left(store, model=None, **settings):
    """A conversation whose first session, of 20 turns, was closed."""
    talk = await filled(store, turns=20, summariser=model, **settings)
    await talk.start_session()
    return talk


@pytest.fixture
def store():
    return MemoryStore()


async def test_who_needs_no_summary_does_not_wait_for_one(store):
    """A session that fits, and one that has its summary, come back at once while the model writes about another."""
    model = Paid()
    talk = await filled(store, turns=20, summariser=model, window=100_000)
    model.stop()
    await talk.start_session()
    await model.is_asked.wait()
    assert (await talk.resume(await first_session(talk))).carries == "full"
    model.may_answer.set()
    await talk.ready()
    model.stop()
    await talk.start_session()
    await talk.resume(await first_session(talk))
    model.may_answer.set()
    await talk.ready()


@pytest.mark.feature("L2")
async def test_a_session_that_is_left_is_summed_up_in_the_background(store):
    model = Paid()
    talk = await filled(store, turns=20, summariser=model)
    model.stop()
    opened = await talk.start_session()
    digest = await first_session(talk)
    assert (digest.summary, (await summary_of(talk)).kind) == (digest_id(digest), "extractive")
    await model.is_asked.wait()
    await talk.add("Something else.")
    model.may_answer.set()
    await talk.ready()
    summary, (task,) = await summary_of(talk), model.tasks
    assert (summary.text, summary.kind) == ("SUMMARY 1", "model")
    assert (task.first, task.last, len(task.passages)) == (0, 81, 81)
    assert (opened.first, opened.parent) == (81, "")
    assert await store.written("local", [digest.summary]) != []
    assert [one["content"] for one in (await talk.context())["messages"]] == ["Something else."]
    assert (await rows(talk), await engine(store).examine("chat")) == (["superseded"], [])


async def test_what_it_costs_to_sum_up_a_session_is_counted(store):
    model = Paid()
    model.model = "gpt-4o-mini"
    talk = await left(store, model)
    await talk.ready()
    (call,) = await store.calls("local", "chat")
    assert (call.kind, call.session) == ("summary", (await first_session(talk)).id)
    assert (await talk.status()).spent == call.dollars > 0


async def test_where_the_money_is_spent_the_digest_stands(store):
    model = Paid()
    talk = await left(store, model, max_spend=0.0)
    await talk.ready()
    assert (model.tasks, (await summary_of(talk)).kind) == ([], "extractive")


async def test_where_the_model_fails_the_digest_stands(store):
    model = Paid()
    model.is_down = True
    talk = await left(store, model)
    await talk.ready()
    assert (await summary_of(talk)).kind == "extractive"
    assert ((await talk.status()).failures, await rows(talk)) == (1, ["failed"])
    assert await engine(store).examine("chat") == []


async def test_nobody_is_asked_about_a_session_that_says_itself_what_it_was(store):
    model = Paid()
    talk = await engine(store, summariser=model).conversation("chat")
    await talk.add("Good morning.", {"role": "assistant", "content": "Good morning!"})
    await talk.start_session()
    await talk.ready()
    assert (model.tasks, (await summary_of(talk)).kind) == ([], "extractive")


async def test_what_is_being_written_about_a_session_that_is_left_is_not_lost(store):
    model = Paid()
    talk = await engine(store, summariser=model).conversation("chat")
    await until_asked(talk, model)
    (ahead,) = model.tasks
    opened = await talk.start_session()
    model.may_answer.set()
    await talk.ready()
    _, closing = model.tasks
    assert (closing.previous, closing.passages[0].number) == ("SUMMARY 1", ahead.last)
    assert (closing.first, closing.last) == (0, opened.first)
    assert (await summary_of(talk)).text == "SUMMARY 2"
    assert await rows(talk) == ["superseded", "superseded"]


async def test_a_compaction_of_the_next_session_does_not_wait_for_the_one_before(store):
    model = Paid()
    talk = await filled(store, turns=20, summariser=model)
    model.stop()
    await talk.start_session()
    await model.is_asked.wait()
    model.may_answer, stopped = asyncio.Event(), model.may_answer
    model.may_answer.set()
    for number in range(20):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    assert "SUMMARY 2" in await told(talk)
    assert (await summary_of(talk)).kind == "extractive"
    stopped.set()
    await talk.ready()
    assert (await summary_of(talk)).text == "SUMMARY 1"
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("L3")
async def test_a_session_without_a_summary_of_a_model_is_summed_up_when_it_is_resumed(store):
    first = await first_session(await left(store))
    model = Paid()
    talk = await engine(store, summariser=model, **SMALL).conversation("chat")
    resumed = await talk.resume(first)
    await talk.add("go on")
    assert (resumed.carries, len(model.tasks)) == ("summary", 1)
    assert "SUMMARY 1" in await told(talk)
    assert (await summary_of(talk)).kind == "model"
    await talk.resume(first)
    assert len(model.tasks) == 1
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("L3")
@pytest.mark.parametrize("compacts", [False, True])
async def test_a_message_that_is_added_while_a_resume_waits_for_a_model_belongs_to_the_new_session(
    store, compacts
):
    first, model = await first_session(await left(store)), Paid()
    made = engine(store, summariser=model, **SMALL)
    talk = await made.conversation("chat")
    for number in range(60, 66):
        await talk.add(*answer(number))
    size = talk.size
    model.stop()
    resuming = asyncio.create_task(talk.resume(first))
    await model.is_asked.wait()
    await talk.add("MEANWHILE", {"role": "assistant", "content": "SAID"})
    if compacts:
        other = await engine(store, window=100_000, max_output=100).conversation("chat")
        await other.compact(keep=300)
        assert (await made.sessions("chat"))[-1].kind == "compaction"
    killed = await engine(store, **SMALL).conversation("chat")
    assert "MEANWHILE" in await told(killed), "a kill now loses nothing"
    model.may_answer.set()
    opened = await resuming
    await talk.add("go on")
    sent = await told(talk)
    assert (opened.carries, opened.session.first) == ("summary", size)
    assert ("SUMMARY 1" in sent, "MEANWHILE" in sent, "SAID" in sent) == (True, True, True)
    assert "src/f60.py" not in sent
    await talk.ready()
    again = await engine(store, **SMALL).conversation("chat")
    assert await again.context() == await talk.context()
    assert await made.examine("chat") == []


@pytest.mark.parametrize("how", ["compacts", "begins"])
async def test_a_resume_is_refused_if_the_messages_added_meanwhile_would_leave_the_context(store, how):
    first, model = await first_session(await left(store)), Paid()
    made = engine(store, summariser=model, **SMALL)
    talk = await made.conversation("chat")
    for number in range(60, 66):
        await talk.add(*answer(number))
    model.stop()
    resuming = asyncio.create_task(talk.resume(first))
    await model.is_asked.wait()
    other = await engine(store, window=100_000, max_output=100).conversation("chat")
    if how == "compacts":
        for number in range(70, 80):
            await other.add(*answer(number))
        await other.compact(keep=300)
    else:
        await other.start_session()
    await other.add("OTHER")
    before = [(one.id, one.first, one.last) for one in await made.sessions("chat")]
    model.may_answer.set()
    with pytest.raises(SummaryError, match="during the resume"):
        await resuming
    assert [(one.id, one.first, one.last) for one in await made.sessions("chat")] == before
    assert "OTHER" in await told(talk)
    assert await made.examine("chat") == []

    assert (await talk.resume(first)).carries == "summary", "and works when it is asked again"
    assert len(model.tasks) == 1, "without another summary"


async def test_nobody_is_asked_about_a_session_that_is_resumed_whole(store):
    first, model = await first_session(await left(store)), Paid()
    talk = await engine(store, summariser=model, window=100_000).conversation("chat")
    assert ((await talk.resume(first)).carries, model.tasks) == ("full", [])


async def test_where_the_model_fails_a_session_is_resumed_by_its_digest(store):
    first, model = await first_session(await left(store)), Paid()
    model.is_down = True
    talk = await engine(store, summariser=model, **SMALL).conversation("chat")
    assert (await talk.resume(first)).carries == "summary"
    await talk.add("go on")
    assert "src/f0.py" in await told(talk)


async def test_who_closes_a_conversation_stops_it_and_nothing_is_stuck(store):
    model = Paid()
    talk = await filled(store, turns=20, summariser=model)
    model.stop()
    await talk.start_session()
    await model.is_asked.wait()
    await talk.close()
    assert (await rows(talk), (await summary_of(talk)).kind) == (["planned"], "extractive")
    later = engine(store)
    await later.sweep()
    assert (await store.unfinished("local"), await later.examine("chat")) == ([], [])


async def test_a_summary_that_was_paid_for_before_a_crash_is_the_sessions_own_after_it(store):
    attach = store.attach_summary

    async def crash(*args, replaces="", **settings):
        if replaces:
            raise StoreError("the machine is gone")
        return await attach(*args, **settings)

    store.attach_summary = crash
    talk = await left(store, Paid())
    await talk.ready()
    assert (await rows(talk), (await summary_of(talk)).kind) == (["summarised"], "extractive")
    store.attach_summary = attach
    later = engine(store)
    await later.sweep()
    assert (await summary_of(talk)).text == "SUMMARY 1"
    assert (await rows(talk), await later.examine("chat")) == (["superseded"], [])


async def test_a_session_that_lost_even_its_digest_is_summed_up_when_it_is_resumed(store):
    attach = store.attach_summary

    async def crash(*_, **__):
        raise StoreError("the machine is gone")

    store.attach_summary = crash
    with pytest.raises(StoreError):
        await left(store)
    store.attach_summary, model = attach, Paid()
    talk = await engine(store, summariser=model, embedder=Subjects(), **SMALL).conversation("chat")
    first = await first_session(talk)
    assert (first.summary, (await talk.resume(first)).carries) == ("", "summary")
    assert (await summary_of(talk)).text == "SUMMARY 1"
    assert len(await store.embeddings("local", [first.id])) == 1


async def test_what_a_session_was_about_is_found_by_the_summary_that_it_has(store):
    model = Paid("The boats in the harbour.")
    talk = await left(store, model, embedder=Subjects())
    await talk.ready()
    first = await first_session(talk)
    (found,) = await store.embeddings("local", [first.id])
    assert found.vector == vector_of("The boats in the harbour. 1")


async def test_secrets_of_a_session_are_not_told_when_it_is_summed_up(store):
    model = Paid()
    talk = await engine(store, summariser=model, window=100_000).conversation("chat")
    await talk.add("The password is hunter2222.", {"role": "assistant", "content": "Thanks."})
    await talk.add("Nobody may know of canaryword.", sensitive=True)
    for number in range(20):
        await talk.add(*answer(number))
    await talk.add("Say hunter2222 again?", {"role": "assistant", "content": "It was hunter2222."})
    await talk.start_session()
    await talk.ready()
    assert "question 7" in str(model.tasks)
    assert "hunter2222" not in str(model.tasks)
    assert "canaryword" not in str(model.tasks)
