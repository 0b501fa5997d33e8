"""Every store hands out work once, keeps what a model wrote before anything else, and knows what a crash left."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from refold.model.errors import NotFound
from refold.ports.records import Batch, Compaction, FailingBranch, Head
from refold.ports.store import Store
from tests.contract.talks import ANNA, BORIS, begin, call, compact, fold, planned, say, written


async def prepare(store: Store) -> Head:
    head = await say(store, await begin(store), *"abc")
    await store.plan(ANNA, planned(head))
    return head


async def state_of(store: Store, which: str = "work") -> str:
    row = await store.compaction(ANNA, which)
    assert row
    return row.state


async def test_a_plan_is_written_down_once(store):
    head = await say(store, await begin(store), *"abc")
    plan = planned(head)
    kept = await store.plan(ANNA, plan)
    assert kept == structs.replace(plan, state="planned")
    taken = await store.claim(ANNA, "work", "me", now=1.0, until=9.0)

    assert await store.plan(ANNA, structs.replace(plan, reason="other")) == taken
    assert await store.unfinished(ANNA) == [taken]


async def test_a_plan_needs_its_branch(store):
    head = await begin(store)

    with pytest.raises(NotFound):
        await store.plan(ANNA, structs.replace(planned(head), branch="nothing"))


async def test_work_is_begun_by_one(store):
    await prepare(store)
    taken = await store.claim(ANNA, "work", "me", now=1.0, until=9.0)

    assert isinstance(taken, Compaction)
    assert (taken.state, taken.holder, taken.until, taken.attempts) == ("running", "me", 9.0, 1)
    assert await store.compaction(ANNA, "work") == taken
    assert await store.claim(ANNA, "work", "you", now=8.0, until=19.0) is None
    assert await store.claim(ANNA, "nothing", "you", now=8.0, until=19.0) is None


async def test_of_many_who_want_the_same_work_one_gets_it(store):
    await prepare(store)

    claims = [store.claim(ANNA, "work", f"w{number}", now=1.0, until=9.0) for number in range(8)]
    taken = [one for one in await asyncio.gather(*claims) if one]

    assert len(taken) == 1
    assert await store.compaction(ANNA, "work") == taken[0]


async def test_work_that_somebody_left_is_taken_over_when_its_time_is_up(store):
    await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)

    assert await store.claim(ANNA, "work", "you", now=8.9, until=19.0) is None
    taken = await store.claim(ANNA, "work", "you", now=9.5, until=19.0)
    assert taken
    assert (taken.holder, taken.until, taken.attempts) == ("you", 19.0, 2)
    assert not await store.beat(ANNA, "work", "me", 30.0)
    assert not await store.give_up(ANNA, "work", "me", "failed")
    assert await store.compaction(ANNA, "work") == taken


async def test_a_claim_is_kept_for_as_long_as_it_is_renewed(store):
    await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)

    assert await store.beat(ANNA, "work", "me", 20.0)
    assert await store.claim(ANNA, "work", "you", now=15.0, until=29.0) is None
    assert not await store.beat(ANNA, "nothing", "me", 20.0)


async def test_what_a_model_wrote_is_kept_before_anything_is_done_with_it(store):
    head = await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    paid = call(head, "paid", input=100, output=20)

    assert await store.reply(ANNA, "work", "me", written("work"), paid)
    assert await state_of(store) == "summarised"
    assert await store.written(ANNA, ["work"]) == [written("work")]
    assert await store.calls(ANNA, "talk") == [paid]


async def test_an_answer_is_kept_once(store):
    head = await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    await store.claim(ANNA, "work", "you", now=9.5, until=19.0)
    first, second = call(head, "first", input=1), call(head, "second", input=1)

    assert await store.reply(ANNA, "work", "you", written("work", "One."), first)
    assert not await store.reply(ANNA, "work", "me", written("work", "Two."), second)
    assert await store.written(ANNA, ["work"]) == [written("work", "One.")]
    assert await store.calls(ANNA, "talk") == [first, second], "both were paid for"


async def test_an_answer_that_comes_late_is_kept_where_nobody_was_first(store):
    await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    await store.claim(ANNA, "work", "you", now=9.5, until=19.0)

    assert await store.reply(ANNA, "work", "me", written("work", "Mine."))
    assert await state_of(store) == "summarised"
    assert not await store.reply(ANNA, "work", "me", written("work", "Again."))
    assert await store.written(ANNA, ["work"]) == [written("work", "Mine.")]


async def test_an_answer_that_was_kept_is_not_asked_for_again_after_a_crash(store):
    await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    await store.reply(ANNA, "work", "me", written("work"))

    assert await store.claim(ANNA, "work", "you", now=5.0, until=15.0) is None
    taken = await store.claim(ANNA, "work", "you", now=10.0, until=20.0)
    assert taken
    assert (taken.state, taken.holder) == ("summarised", "you")


async def test_finished_work_takes_effect_and_is_finished(store):
    head = await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    await store.reply(ANNA, "work", "me", written("work", "Paid."))
    numbered = structs.replace(fold(head, 1, "work"), written=written("work", "Paid, with a number."))
    head = await store.commit(head, Batch(at=5.0, changes=(numbered,)))

    assert await state_of(store) == "installed"
    assert await store.written(ANNA, ["work"]) == [numbered.written]
    assert await store.unfinished(ANNA) == []
    assert await store.claim(ANNA, "work", "you", now=99.0, until=100.0) is None
    assert not await store.beat(ANNA, "work", "me", 30.0)
    assert not await store.give_up(ANNA, "work", "me", "failed")
    assert (await store.latest(head)).id == "work"


@pytest.mark.parametrize("state", ["failed", "superseded"])
async def test_work_that_comes_to_nothing_is_ended(store, state):
    await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)

    assert await store.give_up(ANNA, "work", "me", state, "too long")
    row = await store.compaction(ANNA, "work")
    assert row
    assert (row.state, row.error, row.attempts) == (state, "too long", 1)
    assert await store.unfinished(ANNA) == []
    assert await store.claim(ANNA, "work", "you", now=99.0, until=100.0) is None
    assert not await store.reply(ANNA, "work", "me", written("work"))
    assert await state_of(store) == state


async def test_work_can_be_put_back_for_somebody_else(store):
    await prepare(store)
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)

    assert await store.give_up(ANNA, "work", "me", "planned", "interrupted")
    taken = await store.claim(ANNA, "work", "you", now=2.0, until=10.0)
    assert taken
    assert (taken.state, taken.holder, taken.attempts) == ("running", "you", 2)


async def test_what_is_not_finished_is_listed_oldest_first(store):
    head = await say(store, await begin(store), *"abcd")
    for name in ("left", "ready", "waiting", "failed"):
        await store.plan(ANNA, planned(head, name))
    for name in ("left", "ready", "failed"):
        await store.claim(ANNA, name, "me", now=1.0, until=9.0)
    await store.reply(ANNA, "ready", "me", written("ready"))
    await store.give_up(ANNA, "failed", "me", "failed")
    await compact(store, head, 2, "done")

    found = [(row.id, row.state) for row in await store.unfinished(ANNA)]
    assert found == [("left", "running"), ("ready", "summarised"), ("waiting", "planned")]


async def test_the_work_of_one_branch_is_told_by_itself(store):
    head, other = await begin(store), await begin(store, "other")
    for one, name in ((head, "w1"), (other, "w2"), (head, "w3")):
        await store.plan(ANNA, planned(one, name))

    assert [one.id for one in await store.unfinished(ANNA)] == ["w1", "w2", "w3"]
    assert [one.id for one in await store.unfinished(ANNA, head.branch)] == ["w1", "w3"]
    assert await store.unfinished(BORIS, head.branch) == []


async def test_plans_that_nobody_took_up_are_forgotten_in_time(store):
    head = await begin(store)
    for name, at in (("old", 1.0), ("young", 5.0), ("held", 1.0), ("paid", 1.0), ("stopped", 1.0)):
        await store.plan(ANNA, structs.replace(planned(head, name), at=at))
    for name in ("held", "paid", "stopped"):
        await store.claim(ANNA, name, "me", now=1.0, until=9.0)
    await store.reply(ANNA, "paid", "me", written("paid"))
    for name in ("paid", "stopped"):
        await store.give_up(ANNA, name, "me", "planned")

    assert await store.forget_plans(BORIS, 5.0) == 0
    assert await store.forget_plans(ANNA, 5.0) == 2
    assert [one.id for one in await store.unfinished(ANNA)] == ["young", "held", "paid"]
    assert (await store.plan(ANNA, planned(head, "old"))).state == "planned"


async def fail(store: Store, head: Head, name: str, at: float) -> None:
    await store.plan(ANNA, structs.replace(planned(head, name), at=at))
    await store.claim(ANNA, name, "me", now=at, until=at + 9)
    await store.give_up(ANNA, name, "me", "failed", "it could not be written")


async def test_failures_are_counted_until_a_model_has_written_again(store):
    head = await prepare(store)
    for number in range(4):
        await fail(store, head, f"f{number}", 10.0 + number)
    other = await begin(store, "other")
    await fail(store, other, "f9", 99.0)

    assert await store.failures(ANNA, head.branch) == (4, 13.0)
    assert await store.failures(BORIS, head.branch) == (0, 0.0)
    assert await store.failing(ANNA) == [
        FailingBranch("other", other.branch, 1, 99.0),
        FailingBranch("talk", head.branch, 4, 13.0),
    ]
    assert await store.failing(BORIS) == []
    await store.claim(ANNA, "work", "me", now=20.0, until=29.0)
    assert await store.reply(ANNA, "work", "me", written("work"))
    assert await store.failures(ANNA, head.branch) == (0, 0.0)
    assert await state_of(store, "f0") == "superseded"
    await fail(store, head, "f4", 30.0)
    assert await store.failures(ANNA, head.branch) == (1, 30.0)
    assert await store.failures(ANNA, other.branch) == (1, 99.0)
