"""What summaries may cost: every question is counted, also those that come to nothing, and who fails too often rests."""

import pytest

from refold.engine.settings import prices_of
from refold.engine.summary_jobs import MAX_FAILURES, REST_S
from refold.model.tokens import Usage, call_cost
from refold.ports.records import Batch, Call
from refold.stores.memory import MemoryStore
from refold.summarisers import ModelSummariser
from tests.engine.test_stored_conversation import answer, engine
from tests.engine.test_summary_jobs import WIDE, Paid, filled, told
from tests.summarisers.scripted_upstream import GOOD, Scripted, writer


async def test_what_failed_is_tried_again_when_somebody_asks_for_it():
    store, model = MemoryStore(), Paid()
    talk = await filled(store, summariser=model)
    model.is_down = True
    await talk.compact()
    assert "SUMMARY" not in await told(talk)
    await talk.undo()
    model.is_down = False
    again = await engine(store, summariser=model, **WIDE).conversation("chat")
    await again.compact()
    assert "SUMMARY 2" in await told(again)


async def test_the_cap_holds_for_whoever_asks():
    store, model = MemoryStore(), Paid()
    talk = await filled(store, summariser=model, max_spend=0.0)
    await talk.compact()
    assert model.tasks == []
    assert (await talk.status()).is_stopped


async def test_what_was_spent_is_known_however_many_calls_ago():
    store = MemoryStore()
    talk = await filled(store, turns=1, max_spend=1.0)
    journal, noted = talk._journal, {"branch": talk._journal.head.branch, "session": talk._journal.session.id}
    paid = Call(id="paid", usage=Usage(), kind="summary", dollars=5.0, **noted)
    calls = [Call(id=f"reply-{number}", usage=Usage(), **noted) for number in range(1_000)]
    await journal.commit(Batch(at=0.0, calls=(paid, *calls)))
    again = await engine(store, max_spend=1.0).conversation("chat")
    status = await again.status()
    assert (status.spent, status.is_stopped) == (5.0, True)


async def test_what_is_used_again_costs_nothing():
    store, model = MemoryStore(), Paid()
    model.model, settings = "gpt-4o-mini", {"summariser": model, "max_spend": 0.0001}
    talk = await engine(store, **WIDE, **settings).conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    spent = (await talk.status()).spent
    assert spent > settings["max_spend"]
    await talk.undo()
    await talk.compact()
    assert "SUMMARY 1" in await told(talk)
    assert (len(model.tasks), (await talk.status()).spent) == (1, spent)


async def test_answers_that_failed_their_checks_are_billed():
    store = MemoryStore()
    upstream = Scripted("I'm sorry, but I can't help with that.", model="gpt-4o-mini")
    model = ModelSummariser([writer(upstream)])
    talk = await engine(store, summariser=model, **WIDE).conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    calls = [one for one in await store.calls("local", "chat") if one.kind == "summary"]
    assert [(call.model, call.usage.input) for call in calls] == [("gpt-4o-mini", 100)] * len(upstream.asked)
    status = await talk.status()
    assert status.spent == pytest.approx(sum(call.dollars for call in calls))
    assert (status.failures, status.spent > 0) == (1, True)


async def test_a_summary_is_priced_by_the_models_that_were_asked_for_it_and_not_by_the_conversation_s():
    store = MemoryStore()
    refusing = Scripted("I'm sorry, but I can't help with that.", model="gpt-4o-mini")
    chain = ModelSummariser([writer(refusing), writer(Scripted(GOOD, model="gpt-4.1"))])
    talk = await engine(store, summariser=chain, **WIDE).conversation("chat", model="gpt-5")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    calls = [one for one in await store.calls("local", "chat") if one.kind == "summary"]
    asked = ["gpt-4o-mini"] * len(refusing.asked) + ["gpt-4.1"]
    dollars = [call_cost(Usage(input=100, output=20), prices_of(name)) for name in asked]
    assert [call.model for call in calls] == asked
    assert [call.dollars for call in calls] == pytest.approx(dollars)
    assert talk.state.folded.summaries[-1].model == "gpt-4.1"


@pytest.mark.parametrize("name", ["", "a-model-of-our-own"])
async def test_a_summary_of_a_model_without_a_price_costs_nothing(name):
    store, model = MemoryStore(), Paid()
    model.model = name
    talk = await engine(store, summariser=model, **WIDE).conversation("chat", model="gpt-4o")
    for number in range(30):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    (call,) = await store.calls("local", "chat")
    assert (call.model, call.usage.input, call.dollars) == (name, 1_000, 0.0)


async def test_a_model_that_failed_rests_also_after_a_restart_and_is_then_asked_once_more():
    store, model, now = MemoryStore(), Paid(), 1_000_000.0
    model.is_down = True

    async def opened():
        return await engine(store, summariser=model, clock=lambda: now).conversation("chat")

    talk = await opened()
    for number in range(80):
        await talk.add(*answer(number))
        await talk.ready()
    assert len(model.tasks) == MAX_FAILURES
    talk = await opened()
    status = await talk.status()
    assert (status.failures, status.is_stopped) == (MAX_FAILURES, True)
    for number in range(80, 120):
        await talk.add(*answer(number))
        await talk.ready()
    assert len(model.tasks) == MAX_FAILURES

    now += REST_S
    assert not (await talk.status()).is_stopped
    for number in range(120, 160):
        await talk.add(*answer(number))
        await talk.ready()
    assert len(model.tasks) == MAX_FAILURES + 1

    now, model.is_down = now + REST_S, False
    for number in range(160, 200):
        await talk.add(*answer(number))
        await talk.ready()
    assert (await talk.status()).failures == 0
    assert (await (await opened()).status()).failures == 0
