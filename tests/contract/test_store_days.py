"""Every store adds calls and compactions up by day, in the transaction that stores them."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.model.errors import Conflict
from refold.model.tokens import Usage
from refold.ports.records import DAY_S, Batch, CallSum, CompactionSum
from tests.contract.talks import (
    ANNA,
    BORIS,
    arrival,
    begin,
    call,
    compact,
    first_session,
    fold,
    new_head,
    planned,
    reduce,
    say,
    written,
)


def on(day: int, made, **more):
    return structs.replace(made, at=day * DAY_S + 5.0, **more)


async def test_calls_are_added_up_by_day_kind_model_and_upstream(store):
    head = await begin(store)
    calls = (
        on(20_000, call(head, "a", input=10, cache_read=5, last_prompt=9), upstream="one", added_ms=2.0),
        on(20_000, call(head, "b", input=1, output=3), upstream="one", recoveries=2, unsent=-7, saved=-0.25),
        on(20_000, call(head, "c", input=2), upstream="two"),
        on(20_000, call(head, "d", input=4), kind="summary"),
        structs.replace(call(head, "e", input=8), at=20_001 * DAY_S - 0.5, upstream="two"),
        structs.replace(call(head, "f", input=16), at=20_001 * float(DAY_S)),
    )
    head = await store.commit(head, Batch(at=9.0, calls=calls))

    first, *others = await store.call_days(ANNA)
    assert first == CallSum(
        day=20_000,
        kind="reply",
        model=calls[0].model,
        upstream="one",
        calls=2,
        usage=Usage(input=11, cache_read=5, output=3),
        dollars=1.0,
        unsent=-7,
        saved=-0.25,
        recoveries=2,
        added_ms=2.0,
        timed=1,
    )
    assert [(one.day, one.kind, one.upstream, one.calls, one.usage.input) for one in others] == [
        (20_000, "reply", "two", 2, 10),
        (20_000, "summary", "", 1, 4),
        (20_001, "reply", "", 1, 16),
    ]
    assert [one.usage.input for one in await store.call_days(ANNA, 20_001)] == [16]
    assert await store.call_days(ANNA, 20_002) == await store.call_days(BORIS) == []
    assert (await store.calls(ANNA, "talk"))[1] == calls[1]


async def test_measured_and_estimated_calls_have_sums_of_their_own(store):
    head = await begin(store)
    calls = (call(head, "a", input=10), structs.replace(call(head, "b", input=3), is_estimated=True))
    await store.commit(head, Batch(at=9.0, calls=calls))

    found = [(one.is_estimated, one.calls, one.usage.input) for one in await store.call_days(ANNA)]
    assert found == [(False, 1, 10), (True, 1, 3)]
    assert [(one.is_estimated, one.usage.input) for one in await store.conversation_calls(ANNA)] == [
        (False, 10),
        (True, 3),
    ]


async def test_a_call_that_is_stored_twice_is_counted_once(store):
    head = await begin(store)
    head = await store.commit(head, Batch(at=9.0, calls=(call(head, "a", input=10),)))
    head = await store.commit(head, Batch(at=9.0, calls=(call(head, "a", input=10), call(head, "b"))))
    await store.plan(ANNA, planned(head, "work"))
    await store.claim(ANNA, "work", "me", now=1.0, until=9.0)
    paid = structs.replace(call(head, "paid", input=7), kind="summary")
    assert await store.reply(ANNA, "work", "me", written("work"), paid)
    assert await store.reply(ANNA, "work", "me", written("work"), paid)

    sums = [(one.kind, one.calls, one.usage.input) for one in await store.call_days(ANNA)]
    assert sums == [("reply", 2, 10), ("summary", 1, 7)]


async def test_a_refused_commit_counts_nothing(store):
    head = await begin(store)
    await say(store, head, "first")
    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=9.0, calls=(call(head, "a"),), changes=(reduce(head),), notes=b""))

    assert await store.call_days(ANNA) == await store.compaction_days(ANNA) == []


async def test_calls_are_added_up_by_conversation_since_a_time(store):
    head, other = await begin(store), await begin(store, "other")
    await store.commit(head, Batch(at=9.0, calls=(call(head, "a", input=1), on(3, call(head, "b", input=2)))))
    await store.commit(other, Batch(at=9.0, calls=(on(3, call(other, "c", input=4), upstream="x"),)))

    found = [
        (one.conversation, one.upstream, one.usage.input) for one in await store.conversation_calls(ANNA)
    ]
    assert found == [("other", "x", 4), ("talk", "", 3)]
    assert [one.usage.input for one in await store.conversation_calls(ANNA, 3.0 * DAY_S)] == [4, 2]
    assert await store.conversation_calls(BORIS) == []


async def test_compactions_are_counted_by_reason_author_and_outcome(store):
    head = await say(store, await begin(store), *"abcdef")
    change = fold(head, 2, "c1")
    made = structs.replace(change.compaction, moment="before_call")
    head = await store.commit(head, Batch(at=9.0, changes=(structs.replace(change, compaction=made),)))
    head = await store.commit(head, Batch(at=9.0, changes=(reduce(head, "r1"), arrival(head, 5))))

    def found(rows: list[CompactionSum]) -> list[tuple[object, ...]]:
        return [(one.kind, one.reason, one.author, one.outcome, one.count) for one in rows]

    author = change.written.summary.author
    installed = [
        ("arrival", "arrival", "", "installed", 1),
        ("reduce", "", "", "installed", 1),
        ("summarise", "before_call", author, "installed", 1),
    ]
    assert found(await store.compaction_days(ANNA)) == installed
    assert [(one.day, one.before, one.after) for one in await store.compaction_days(ANNA)][-1] == (
        0,
        1_000,
        100,
    )

    await store.commit(head, Batch(at=9.0, undoes="c1"))
    undone = [("reduce", "", "", "undone", 1), ("summarise", "before_call", author, "undone", 1)]
    assert found(await store.compaction_days(ANNA)) == sorted([*installed, *undone])
    assert await store.compaction_days(BORIS) == await store.compaction_days(ANNA, 1) == []


async def test_jobs_that_fail_or_are_not_needed_are_counted_and_jobs_put_back_are_not(store):
    head = await say(store, await begin(store), *"abc")
    for name, state in (("w1", "failed"), ("w2", "superseded"), ("w3", "planned"), ("w4", "failed")):
        await store.plan(ANNA, planned(head, name))
        await store.claim(ANNA, name, "me", now=1.0, until=9.0)
        assert await store.give_up(ANNA, name, "me", state, "why")

    assert [(one.outcome, one.count) for one in await store.compaction_days(ANNA)] == [
        ("failed", 2),
        ("superseded", 1),
    ]


async def test_a_fork_counts_no_compaction_of_its_base_again(store):
    head = await compact(store, await say(store, await begin(store), *"abcd"), 2, "c1")
    head = await store.commit(head, Batch(at=9.0, changes=(arrival(head, 3),)))
    head = await store.commit(head, Batch(at=9.0, undoes=f"{head.branch}/a3"))
    before = await store.compaction_days(ANNA)
    side = new_head("talk", ANNA, "talk/side")
    await store.fork(head, 4, side, first_session(side, 4))

    assert await store.compaction_days(ANNA) == before


async def test_the_sums_stay_when_a_conversation_is_deleted_and_go_with_their_owner(store):
    for owner in (ANNA, BORIS):
        head = await compact(store, await say(store, await begin(store, owner=owner), *"ab"), 1, "c1")
        await store.commit(head, Batch(at=9.0, calls=(call(head, "a", input=1),)))
    calls, compactions = await store.call_days(ANNA), await store.compaction_days(ANNA)
    assert calls
    assert compactions

    await store.delete(ANNA, "talk")
    assert await store.call_days(ANNA) == calls
    assert await store.compaction_days(ANNA) == compactions
    assert await store.conversation_calls(ANNA) == []

    await store.delete(ANNA)
    assert await store.call_days(ANNA) == await store.compaction_days(ANNA) == []
    assert await store.call_days(BORIS) == calls


async def test_nothing_is_left_to_count_in_a_new_store(store):
    head = await compact(store, await say(store, await begin(store), *"ab"), 1, "c1")
    await store.commit(head, Batch(at=9.0, calls=(call(head, "a"),)))

    assert await store.uncounted(ANNA) == await store.backfill(ANNA, 10) == (0, 0)
