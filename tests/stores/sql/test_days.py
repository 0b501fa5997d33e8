"""Rows that an earlier version has stored are counted by a backfill, once each."""

from __future__ import annotations

import apsw
import psycopg
import pytest

from refold.ports.records import Batch
from refold.stores.postgres.store import PostgresStore
from refold.stores.sqlite.store import SqliteStore
from tests.contract.postgres import empty
from tests.contract.stores import postgres_url
from tests.contract.talks import ANNA, BORIS, arrival, begin, call, compact, planned, say

__all__ = ["postgres_url"]

FORGET = (
    *("DELETE FROM call_day", "DELETE FROM compaction_day"),
    *("UPDATE call SET is_counted = {no}", "UPDATE compaction SET is_counted = {no}"),
)
"""Leaves the rows as the migration finds those of an earlier version."""


@pytest.fixture(params=["sqlite", "postgres"])
async def old(request, tmp_path):
    """A store with rows that are not counted, and the sums that it should have."""
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        store = await SqliteStore.open(path)
    else:
        url = request.getfixturevalue("postgres_url")
        store = await PostgresStore.open(url)
    for owner in (ANNA, BORIS):
        head = await say(store, await begin(store, owner=owner), *"abcd")
        head = await compact(store, head, 2, "c1")
        head = await store.commit(head, Batch(at=9.0, changes=(arrival(head, 3),)))
        head = await store.commit(head, Batch(at=9.0, undoes="c1"))
        calls = tuple(call(head, f"a{number}", input=number) for number in range(7))
        head = await store.commit(head, Batch(at=9.0, calls=calls))
        await store.plan(owner, planned(head, "work"))
        await store.claim(owner, "work", "me", now=1.0, until=9.0)
        await store.give_up(owner, "work", "me", "failed", "why")
        await store.plan(owner, planned(head, "unfinished"))
    sums = await store.call_days(ANNA), await store.compaction_days(ANNA)
    if request.param == "sqlite":
        with apsw.Connection(str(path)) as connection:
            for statement in FORGET:
                connection.execute(statement.format(no=0))
    else:
        with psycopg.connect(url) as connection:
            for statement in FORGET:
                connection.execute("SET search_path = refold")
                connection.execute(statement.format(no="false"))
    yield store, sums
    await store.close()
    if request.param == "postgres":
        empty(url)


async def test_calls_that_are_not_counted_are_added_in_and_compactions_are_not(old):
    store, (calls, _) = old

    assert await store.call_days(ANNA) == calls
    assert await store.compaction_days(ANNA) == []
    assert await store.uncounted(ANNA) == (7, 3)


async def test_a_backfill_counts_every_row_once_in_batches(old):
    store, sums = old

    done = []
    while sum(some := await store.backfill(ANNA, 2)):
        done.append(some)
        assert await store.call_days(ANNA) == sums[0], "at every step the calls are the same"
    assert done == [(2, 2), (2, 1), (2, 0), (1, 0)]
    assert (await store.call_days(ANNA), await store.compaction_days(ANNA)) == sums
    assert await store.uncounted(ANNA) == (0, 0)
    assert await store.uncounted(BORIS) == (7, 3), "another owner's rows wait for their own backfill"


async def test_rows_are_counted_once_whatever_happens_to_them_before_the_backfill(old):
    store, sums = old
    head = await store.head(ANNA, "talk")
    await store.commit(head, Batch(at=9.0, undoes=f"{head.branch}/a3", calls=(call(head, "a0"),)))

    assert await store.compaction_days(ANNA) == [], "an undo of a row that is not counted waits with it"
    while sum(await store.backfill(ANNA, 100)):
        pass
    assert await store.call_days(ANNA) == sums[0]
    found = [(one.kind, one.outcome, one.count) for one in await store.compaction_days(ANNA)]
    assert found == [
        ("arrival", "installed", 1),
        ("arrival", "undone", 1),
        ("summarise", "failed", 1),
        ("summarise", "installed", 1),
        ("summarise", "undone", 1),
    ]


async def test_calls_of_an_earlier_version_that_are_deleted_before_a_backfill_are_not_known(old):
    store, _ = old
    await store.delete(ANNA, "talk")

    assert await store.backfill(ANNA, 100) == (0, 0)
    assert await store.call_days(ANNA) == []
