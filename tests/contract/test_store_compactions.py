"""Every store knows what was done to a branch: in which order, how it is shown since, and what was written."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.model.errors import Conflict, StoreError
from refold.ports.records import Batch, Head, InstalledCompaction
from tests.contract.talks import (
    ANNA,
    BORIS,
    arrival,
    begin,
    compact,
    first_session,
    fold,
    new_head,
    next_session,
    planned,
    ranges,
    reduce,
    say,
    summary,
    written,
)


async def test_a_change_comes_back_as_it_was_given_with_its_number(store):
    head = await say(store, await begin(store), *"abc")
    change = fold(head, 2, "c1")
    head = await store.commit(head, Batch(at=3.0, changes=(change,)))
    kept = structs.replace(change.compaction, number=1)

    assert await store.compaction(ANNA, "c1") == kept
    assert await store.latest(head) == kept
    assert await store.compactions(ANNA, head.branch) == [structs.replace(kept, shown=b"")]
    assert await store.written(ANNA, ["c1"]) == [change.written]


async def test_changes_are_numbered_in_the_order_in_which_they_took_effect(store):
    head = await say(store, await begin(store), *"abc")
    await store.plan(ANNA, planned(head, "slow"))
    head = await store.commit(head, Batch(at=3.0, changes=(reduce(head, "r1"), arrival(head, 2, "a1"))))
    slow = fold(head, 1, "slow")
    head = await store.commit(head, Batch(at=4.0, changes=(slow,)))
    await store.plan(ANNA, planned(head, "next"))

    rows = {one.id: one.number for one in await store.compactions(ANNA, head.branch)}
    assert rows == {"r1": 1, "a1": 2, "slow": 3, "next": 0}


async def test_the_newest_change_says_how_a_branch_is_shown(store):
    head = await say(store, await begin(store), *"abc")
    head = await store.commit(head, Batch(at=3.0, changes=(reduce(head, "r1"),)))
    head = await say(store, head, "d", "e")
    head = await compact(store, head, 4, "c1")
    head = await store.commit(head, Batch(at=3.0, changes=(arrival(head, 4, "a1"),)))
    await store.plan(ANNA, planned(head, "later"))

    assert (await store.latest(head)).id == "c1"
    assert (await store.latest(head, 5)).id == "c1"
    assert (await store.latest(head, 4)).id == "r1"
    assert await store.latest(head, 2) is None
    assert (await store.latest(head, before=2)).id == "r1"
    assert await store.latest(head, before=1) is None
    head = await store.commit(head, Batch(at=4.0, undoes="c1"))
    assert (await store.latest(head)).id == "r1"


async def test_what_is_shown_changes_with_every_change_but_an_arrival(store):
    head = await say(store, await begin(store), *"abc")
    shown = await store.commit(head, Batch(at=3.0, changes=(arrival(head, 2, "a1"),)))
    assert shown.epoch == head.epoch

    reduced = await store.commit(shown, Batch(at=3.0, changes=(reduce(shown, "r1"),)))
    assert reduced.epoch > shown.epoch
    raw = await store.commit(reduced, Batch(at=3.0, undoes="a1"))
    assert raw.epoch > reduced.epoch
    back = await store.commit(raw, Batch(at=3.0, undoes="r1"))
    assert back.epoch > raw.epoch


async def test_a_shortening_that_was_taken_back_is_remembered(store):
    head = await say(store, await begin(store), *"abc")
    changes = (arrival(head, 0), arrival(head, 1), arrival(head, 2))
    head = await store.commit(head, Batch(at=3.0, changes=changes))
    assert await store.raw_arrivals(head, 0) == []
    head = await store.commit(head, Batch(at=3.0, undoes=f"{head.branch}/a2"))
    head = await store.commit(head, Batch(at=3.0, undoes=f"{head.branch}/a0"))

    assert await store.raw_arrivals(head, 0) == [0, 2]
    assert await store.raw_arrivals(head, 1) == [2]


async def test_the_same_compaction_is_installed_once(store):
    head = await say(store, await begin(store), *"abc")
    head = await compact(store, head, 1, "c1")
    again = fold(head, 2, "c1")
    again = structs.replace(again, opens=next_session(head, 2, "s9", kind="compaction", parent=head.session))

    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=4.0, changes=(again,)))


async def test_a_compaction_that_was_in_effect_stays_what_it_was_also_when_it_was_taken_back(store):
    head = await say(store, await begin(store), *"abc")
    head = await compact(store, head, 2, "c1")
    head = await store.commit(head, Batch(at=4.0, undoes="c1"))
    known = await store.compaction(ANNA, "c1")
    other = structs.replace(fold(head, 2, "c1"), written=written("c1", "Other words."))
    other = structs.replace(other, opens=next_session(head, 2, "s9", kind="compaction", parent=head.session))

    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=5.0, changes=(other,)))
    assert await store.compaction(ANNA, "c1") == known
    assert await store.written(ANNA, ["c1"]) == [written("c1")]
    assert await store.head(ANNA, head.conversation, head.branch) == head


async def test_summaries_come_in_the_order_that_is_asked_for(store):
    head = await say(store, await begin(store), *"abc")
    for number in (1, 2, 3):
        head = await compact(store, head, number, f"c{number}")

    found = await store.written(ANNA, ["c3", "nothing", "c1"])
    assert found == [written("c3"), written("c1")]
    assert await store.written(ANNA, []) == []


async def test_the_last_changes_are_listed_where_there_are_many(store):
    head = await say(store, await begin(store), *"abcd")
    for number in (1, 2, 3):
        head = await compact(store, head, number, f"c{number}")

    assert [one.id for one in await store.compactions(ANNA, head.branch, limit=2)] == ["c2", "c3"]
    assert await store.compactions(ANNA, "nothing") == []


async def test_a_summary_that_was_paid_for_is_found_by_its_key(store):
    await begin(store)
    assert await store.cached(ANNA, "key") is None
    for key, text in (("key", "Paid."), ("other", "Paid too.")):
        await store.reserve(ANNA, key, 1.0)
        assert await store.cached(ANNA, key) is None
        await store.cache(ANNA, key, summary(text), 1.0)
    await store.reserve(ANNA, "key", 1.0)

    assert await store.cached(ANNA, "key") == summary("Paid.")
    await store.cache(ANNA, "key", summary("Paid."), 2.0)
    assert await store.cached(ANNA, "key") == summary("Paid.")


@pytest.mark.parametrize("gone", ["talk", ""])
async def test_a_summary_that_comes_when_its_conversation_is_deleted_is_not_kept(store, gone):
    await begin(store)
    await store.reserve(ANNA, "key", 1.0)
    await store.delete(ANNA, gone)
    await store.cache(ANNA, "key", summary("About what was deleted."), 2.0)

    assert await store.cached(ANNA, "key") is None
    assert await store.owners() == ([ANNA] if gone else [])


async def test_what_was_learnt_last_is_what_counts(store):
    assert await store.learnt(ANNA, "limit", "gpt") is None
    await store.learn(ANNA, "limit", "gpt", b"8000", 1.0)
    await store.learn(ANNA, "calibration", "gpt", b"[1.2]", 1.0)
    await store.learn(ANNA, "limit", "gpt", b"9000", 2.0)

    assert await store.learnt(ANNA, "limit", "gpt") == b"9000"
    assert await store.learnt(ANNA, "calibration", "gpt") == b"[1.2]"
    assert await store.learnt(ANNA, "limit", "claude") is None


async def test_the_last_change_of_a_session_is_found_among_any_number(store):
    head = await compact(store, await say(store, await begin(store), *"abcd"), 2, "c1")
    first = head.session
    for number in range(3):
        head = await store.commit(head, Batch(at=3.0, changes=(reduce(head, f"r{number}"),)))
    head = await store.commit(head, Batch(at=3.0, changes=(arrival(head, 3, "a3"),)))
    head = await store.commit(head, Batch(at=3.0, undoes="r2"))
    await compact(store, head, 3, "c2")

    async def last(*kinds: str, session: str = first) -> str | None:
        found = await store.last_change(ANNA, session, kinds)
        return found and found.id

    assert await last() == "a3"
    assert await last("summarise", "reduce") == "r1"
    assert await last("summarise") == "c1"
    assert await last("arrival") == "a3"
    assert await last(session="c2/s") == "c2"
    assert await last(session="nothing") is None
    assert await store.last_change(BORIS, first) is None
    assert (await store.last_change(ANNA, first, ["reduce"])) == await store.compaction(ANNA, "r1")


async def test_what_was_summarised_and_stands_is_counted(store):
    head = await say(store, await begin(store), *"abcd")
    head = await compact(store, head, 1, "c1")
    head = await store.commit(head, Batch(at=3.0, changes=(reduce(head, "r"),)))
    head = await compact(store, head, 2, "c2")
    head = await compact(store, head, 3, "c3")
    head = await store.commit(head, Batch(at=3.0, undoes="c3"))

    assert await store.count_summarised(ANNA, head.branch) == 2
    assert (
        await store.count_summarised(ANNA, "nothing") == await store.count_summarised(BORIS, head.branch) == 0
    )


async def test_a_summary_is_found_by_its_number(store):
    def numbered(head: Head, cut: int, name: str, number: int) -> InstalledCompaction:
        change = fold(head, cut, name)
        summary = structs.replace(change.written.summary, number=number, text=f"{name} as {number}")
        return structs.replace(change, written=structs.replace(change.written, summary=summary))

    head = await say(store, await begin(store), *"abcd")
    head = await store.commit(head, Batch(at=3.0, changes=(numbered(head, 1, "c0", 0),)))
    head = await store.commit(head, Batch(at=3.0, changes=(numbered(head, 2, "c1", 1),)))
    side = new_head(branch="talk/side")
    side = await store.fork(head, 4, side, first_session(side, 4))
    early = new_head(branch="talk/early")
    early = await store.fork(head, 3, early, first_session(early, 3))
    head = await store.commit(head, Batch(at=3.0, undoes="c1"))
    await store.plan(ANNA, planned(head, "work"))
    await store.claim(ANNA, "work", "me", now=1.0, until=2.0)
    unused = structs.replace(written("work"), summary=structs.replace(summary("not yet"), number=5))
    await store.reply(ANNA, "work", "me", unused)

    async def text(branch: Head, number: int) -> str | None:
        found = await store.summary(branch, number)
        return found and found.summary.text

    assert await text(head, 0) == "c0 as 0"
    assert await text(head, 1) == "c1 as 1", "it was taken back, and there is no other"
    head = await store.commit(head, Batch(at=3.0, changes=(numbered(head, 3, "c2", 1),)))
    assert await text(head, 1) == "c2 as 1"
    assert await text(head, 2) is None
    head = await store.commit(head, Batch(at=3.0, changes=(numbered(head, 4, "c3", 3),)))
    assert (await text(head, 3), await text(side, 3)) == ("c3 as 3", None), "it came after the fork"
    assert await text(head, 5) is None, "it is not in effect yet"
    assert [await text(side, number) for number in (0, 1, 2)] == ["c0 as 0", "c1 as 1", None]
    assert await text(early, 0) is None, "it was made when the base had more messages than are shared"


async def test_one_batch_replaces_a_compaction_by_another(store):
    """The undo comes first, so the new compaction begins in the session that is open again."""
    head = before = await say(store, await begin(store), *"abcde")
    head = await compact(store, head, 2, "old")
    head = await store.commit(head, Batch(at=3.0, changes=(reduce(head, "since"),)))
    head = await say(store, head, "f")
    again = fold(structs.replace(before, next_seq=head.next_seq), 3, "new")
    broken = structs.replace(again, opens=structs.replace(again.opens, first=2))
    with pytest.raises(StoreError):
        await store.commit(head, Batch(at=4.0, undoes="old", changes=(broken,)))
    assert await ranges(store, head) == [(0, 2), (2, None)]
    assert (await store.latest(head)).id == "since"

    head = await store.commit(head, Batch(at=4.0, undoes="old", changes=(again,)))
    states = {one.id: one.state for one in await store.compactions(ANNA, head.branch)}
    assert states == {"old": "undone", "since": "undone", "new": "installed"}
    assert await ranges(store, head) == [(0, 3), (3, None)]
    assert (head.session, (await store.latest(head)).id) == ("new/s", "new")
    assert head == await store.head(ANNA, head.conversation)
