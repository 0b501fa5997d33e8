"""Writing a summary is work that survives: done once, by one, and never paid for again."""

import asyncio
from contextlib import suppress

import pytest

from refold.core.plan import SummaryRequest
from refold.engine.work import LEASE_S, LEFT, Work, sweep
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.store import Compaction
from tests.engine.test_journal import begun

REQUEST = SummaryRequest(0, 4, (), (), (), 500)
SUMMARY = Summary("what happened", 0, 4, 10, "model", usage=Usage(input=900, output=50))


class Model:
    """Whoever writes; says how often they were asked."""

    def __init__(self, *answers):
        self.asked, self._answers = 0, list(answers)

    async def __call__(self):
        self.asked += 1
        answer = self._answers.pop(0) if self._answers else SUMMARY
        if isinstance(answer, BaseException):
            raise answer
        return answer


def price(summary):
    return summary.usage.input / 1_000


async def states(journal):
    return [one.state for one in await journal.store.compactions("o", journal.seen.branch)]


@pytest.mark.feature("X14", "N4")
async def test_what_was_written_is_never_asked_for_again():
    journal, model = await begun(), Model()
    first = await Work(journal, "a").summarise(REQUEST, "recipe", model, price)
    again = await Work(journal, "b").summarise(REQUEST, "recipe", model, price)
    assert first == again
    assert first.text == "what happened"
    assert model.asked == 1
    assert await states(journal) == ["summarised"]
    (call,) = await journal.store.calls("o", "c")
    assert (call.kind, call.dollars, call.usage.output) == ("summary", 0.9, 50)


async def test_another_recipe_is_other_work():
    journal, model = await begun(), Model()
    await Work(journal, "a").summarise(REQUEST, "one", model, price)
    await Work(journal, "a").summarise(REQUEST, "two", model, price)
    assert model.asked == 2


@pytest.mark.feature("L17")
async def test_one_at_a_time_has_it_in_hand():
    journal, model, is_begun, is_done = await begun(), Model(), asyncio.Event(), asyncio.Event()

    async def slow():
        is_begun.set()
        await is_done.wait()
        return await model()

    first = asyncio.create_task(Work(journal, "a").summarise(REQUEST, "recipe", slow, price))
    await is_begun.wait()
    assert await states(journal) == ["running"]
    assert await Work(journal, "b").summarise(REQUEST, "recipe", model, price) is None
    is_done.set()
    assert (await first).text == "what happened"
    assert model.asked == 1


@pytest.mark.parametrize("answer", [None, ValueError("down")])
async def test_what_comes_to_nothing_is_said_to_have_failed(answer):
    journal, model = await begun(), Model(answer)
    with suppress(ValueError):
        assert await Work(journal, "a").summarise(REQUEST, "recipe", model, price) is None
    assert await states(journal) == ["failed"]
    assert await Work(journal, "a").summarise(REQUEST, "recipe", model, price) is None
    assert model.asked == 1


async def test_what_somebody_left_is_seen_to_by_a_sweep():
    journal = await begun()
    store, head = journal.store, journal.seen
    for name, base in (("running", head.session), ("planned", head.session), ("late", "ended")):
        await store.plan("o", Compaction(id=name, branch=head.branch, kind="summarise", cut=4, base=base))
    for name in ("running", "late"):
        await store.claim("o", name, "dead", now=0.0, until=LEASE_S)
    assert await sweep(store, "o", LEASE_S / 2) == 0
    assert await sweep(store, "o", 2 * LEASE_S) == 2
    assert await sweep(store, "o", 2 * LEASE_S) == 0
    found = {one.id: (one.state, one.holder, one.error) for one in await store.compactions("o", head.branch)}
    assert found == {
        "running": ("planned", "", LEFT),
        "planned": ("planned", "", ""),
        "late": ("superseded", "", LEFT),
    }


async def test_what_was_stopped_or_left_can_be_begun_again():
    journal, model = await begun(), Model(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await Work(journal, "a").summarise(REQUEST, "recipe", model, price)
    assert await states(journal) == ["planned"]
    assert (await Work(journal, "b").summarise(REQUEST, "recipe", model, price)).text == "what happened"
    assert model.asked == 2


async def test_what_was_written_for_a_session_that_has_ended_is_let_go():
    journal = await begun()
    await Work(journal, "a").summarise(REQUEST, "recipe", Model(), price)
    assert (await Work(journal, "b").ready()).text == "what happened"
    journal.session = type(journal.session)(id="later", branch=journal.seen.branch, first=4)
    assert await Work(journal, "b").ready() is None
    assert await states(journal) == ["superseded"]
