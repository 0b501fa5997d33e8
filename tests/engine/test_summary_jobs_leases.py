"""Writing a summary is work that survives: done once, by one, and never paid for again."""

import asyncio
from contextlib import suppress

import pytest

from refold.core.plan import SummaryRequest
from refold.engine.summary_jobs import (
    ATTEMPTS,
    LEASE_S,
    LEFT,
    MOVED_ON,
    PAUSE_S,
    TRIED_OFTEN,
    JobResult,
    JobSpec,
    LeasedJobs,
    sweep,
)
from refold.model.errors import StoreError
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.records import Compaction, StoredSummary
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


def price(model, usage):
    assert model == "mini"
    return usage.input / 1_000


def questions(summary):
    return (("mini", summary.usage),) if summary else ()


def asking(model, recipe="recipe", **settings):
    return JobSpec(recipe=recipe, write=model, price=price, **{"questions": questions, **settings})


async def summarise(journal, holder, model, recipe="recipe", **settings):
    return await LeasedJobs(journal, holder).summarise(REQUEST, asking(model, recipe, **settings))


async def states(journal):
    return [one.state for one in await journal.store.compactions("o", journal.head.branch)]


@pytest.mark.feature("X14", "N4")
async def test_what_was_written_is_never_asked_for_again():
    journal, model = await begun(), Model()
    first = await summarise(journal, "a", model)
    again = await summarise(journal, "b", model)
    assert first.summary == again.summary
    assert first.summary.text == "what happened"
    assert (first.is_asked, again.is_asked) == (True, False)
    assert model.asked == 1
    assert await states(journal) == ["summarised"]
    (call,) = await journal.store.calls("o", "c")
    assert (call.kind, call.model, call.dollars, call.usage.output) == ("summary", "mini", 0.9, 50)


async def test_another_recipe_is_other_work():
    journal, model = await begun(), Model()
    await summarise(journal, "a", model, "one")
    await summarise(journal, "a", model, "two")
    assert model.asked == 2


@pytest.mark.feature("L17")
async def test_one_at_a_time_has_it_in_hand():
    journal, model, is_begun, is_done = await begun(), Model(), asyncio.Event(), asyncio.Event()

    async def slow():
        is_begun.set()
        await is_done.wait()
        return await model()

    first = asyncio.create_task(summarise(journal, "a", slow))
    await is_begun.wait()
    assert await states(journal) == ["running"]
    busy = await summarise(journal, "b", model)
    assert busy == JobResult()
    assert not busy.has_failed
    is_done.set()
    assert (await first).summary.text == "what happened"
    assert model.asked == 1


async def test_who_waits_for_a_summary_has_the_one_that_another_writes(monkeypatch):
    journal, model, is_begun, is_done = await begun(), Model(), asyncio.Event(), asyncio.Event()

    async def slow():
        is_begun.set()
        await is_done.wait()
        return SUMMARY

    async def look_again(_):
        is_done.set()
        await first

    first = asyncio.create_task(summarise(journal, "a", slow))
    await is_begun.wait()
    monkeypatch.setattr("refold.engine.summary_jobs.asyncio.sleep", look_again)
    assert (await summarise(journal, "b", model, is_wanted=True)).summary.text == "what happened"
    assert model.asked == 0


@pytest.mark.parametrize("answer", [None, ValueError("down")])
async def test_what_failed_is_tried_again_after_a_pause_and_not_for_ever(answer):
    journal, model, now = await begun(), Model(*[answer] * 9), 1_000.0
    journal.clock = lambda: now
    for attempt in range(ATTEMPTS):
        with suppress(ValueError):
            assert (await summarise(journal, "a", model)).has_failed
        assert await states(journal) == ["failed"] * (attempt + 1)
        assert await summarise(journal, "a", model) == JobResult()
        now += PAUSE_S
    assert await summarise(journal, "a", model) == JobResult(not_asked=TRIED_OFTEN)
    assert model.asked == ATTEMPTS


async def test_who_waits_for_it_has_what_failed_tried_again_at_once():
    journal, model = await begun(), Model(None)
    assert (await summarise(journal, "a", model)).has_failed
    assert (await summarise(journal, "b", model, is_wanted=True)).summary.text == "what happened"


async def test_an_answer_that_was_no_summary_is_billed():
    journal, model = await begun(), Model(None)
    await summarise(journal, "a", model, questions=lambda _: (("mini", Usage(input=700)),))
    (call,) = await journal.store.calls("o", "c")
    assert (call.kind, call.model, call.dollars, call.usage.input) == ("summary", "mini", 0.7, 700)
    assert await journal.store.spent("o", "c", "summary") == 0.7


async def test_nobody_is_asked_who_may_not_be_and_what_is_there_is_found():
    journal, model = await begun(), Model()

    async def no():
        return False

    assert await summarise(journal, "a", model, may_ask=no) == JobResult()
    assert (model.asked, await states(journal)) == (0, [])
    await summarise(journal, "a", model)
    assert (await summarise(journal, "a", model, may_ask=no)).summary.text == "what happened"


async def test_a_reply_is_kept_although_whoever_waits_for_it_is_stopped():
    journal, model, is_begun, is_done = await begun(), Model(), asyncio.Event(), asyncio.Event()
    reply = journal.store.reply

    async def slow(*args):
        is_begun.set()
        await is_done.wait()
        return await reply(*args)

    journal.store.reply = slow
    waiting = asyncio.create_task(summarise(journal, "a", model))
    await is_begun.wait()
    waiting.cancel()
    is_done.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await states(journal) == ["summarised"]
    assert (await summarise(journal, "b", model)).summary.text == "what happened"
    assert model.asked == 1


async def test_a_claim_that_was_cut_off_is_no_hindrance():
    journal, model, is_claimed = await begun(), Model(), asyncio.Event()
    claim = journal.store.claim

    async def slow(*args, **settings):
        await claim(*args, **settings)
        is_claimed.set()
        await asyncio.Event().wait()

    journal.store.claim = slow
    waiting = asyncio.create_task(summarise(journal, "a", model))
    await is_claimed.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    journal.store.claim = claim
    assert await states(journal) == ["planned"]
    assert (await summarise(journal, "b", model)).summary.text == "what happened"


async def test_what_a_holder_left_behind_itself_is_its_own_to_take_up():
    journal, model = await begun(), Model(asyncio.CancelledError())
    give_up = journal.store.give_up

    async def lost(*_):
        return False

    journal.store.give_up = lost
    with pytest.raises(asyncio.CancelledError):
        await summarise(journal, "a", model)
    journal.store.give_up = give_up
    assert await states(journal) == ["running"]
    assert (await summarise(journal, "b", model)).summary is None
    assert (await summarise(journal, "a", model)).summary.text == "what happened"


async def test_a_reply_that_cannot_be_kept_is_used_all_the_same(caplog):
    journal, model = await begun(), Model()

    async def full(*_):
        raise StoreError("the disk is full")

    journal.store.reply = full
    assert (await summarise(journal, "a", model)).summary.text == "what happened"
    assert "could not be stored" in caplog.text


async def test_what_somebody_left_is_seen_to_by_a_sweep():
    journal = await begun()
    store, head = journal.store, journal.head
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
        await summarise(journal, "a", model)
    assert await states(journal) == ["planned"]
    assert (await summarise(journal, "b", model)).summary.text == "what happened"
    assert model.asked == 2


async def test_what_was_written_for_a_session_that_has_ended_is_let_go():
    journal = await begun()
    await summarise(journal, "a", Model())
    assert (await LeasedJobs(journal, "b").stored_results()).ready.text == "what happened"
    journal.session = type(journal.session)(id="later", branch=journal.head.branch, first=4)
    found = await LeasedJobs(journal, "b").stored_results()
    assert (found.ready, found.late) == (None, None)
    assert [(one.text, why) for one, why in found.discarded] == [("what happened", MOVED_ON)]
    assert await states(journal) == ["superseded"]


def up_to(last):
    return SummaryRequest(0, last, (), (), (), 500)


async def at_work(journal, holder, last, until=LEASE_S):
    """Somebody else writes about the open session, up to a message."""
    request = up_to(last)
    work = LeasedJobs(journal, holder)._work(journal.session, request, "recipe", 0)
    await journal.store.plan("o", work)
    await journal.store.claim("o", work.id, holder, now=0.0, until=until)
    return work


@pytest.mark.feature("L17")
async def test_while_somebody_writes_about_a_session_nobody_else_begins_unasked():
    journal, model = await begun(), Model()
    await at_work(journal, "a", 4)
    for last in (4, 6):
        assert await LeasedJobs(journal, "b").summarise(up_to(last), asking(model)) == JobResult()
    assert (model.asked, await states(journal)) == (0, ["running"])


@pytest.mark.parametrize(("holder", "until"), [("a", -1.0), ("a", 3 * LEASE_S), ("b", LEASE_S)])
async def test_who_gave_no_sign_of_life_is_not_waited_for(holder, until):
    journal, model = await begun(), Model()
    await at_work(journal, holder, 4, until)
    assert (await LeasedJobs(journal, "b").summarise(up_to(6), asking(model))).summary is not None


async def ends_at_four(last: int) -> bool:
    return last == 4


async def test_what_others_have_written_about_a_session_is_used_where_it_is_enough():
    journal, model = await begun(), Model()
    await summarise(journal, "a", Model())
    found = await LeasedJobs(journal, "b").summarise(up_to(6), asking(model, is_enough=ends_at_four))
    assert (found.summary.text, found.summary.last, model.asked) == ("what happened", 4, 0)
    for other in (asking(model), asking(model, "another", is_enough=ends_at_four, is_wanted=True)):
        assert (await LeasedJobs(journal, "b").summarise(up_to(6), other)).is_asked


async def test_who_waits_for_a_summary_waits_for_one_like_it_and_for_no_other(monkeypatch):
    journal, model = await begun(), Model()
    work = await at_work(journal, "a", 4)

    async def answered(_):
        await journal.store.reply("o", work.id, "a", StoredSummary(id=work.id, summary=SUMMARY))

    monkeypatch.setattr("refold.engine.summary_jobs.asyncio.sleep", answered)
    wanted = {"is_wanted": True, "is_enough": ends_at_four}
    assert (await LeasedJobs(journal, "b").summarise(up_to(6), asking(model, **wanted))).summary.last == 4
    await at_work(journal, "a", 5)
    assert (await LeasedJobs(journal, "b").summarise(up_to(6), asking(model, "another", **wanted))).is_asked
    assert model.asked == 1
