"""Every store forks by reference: a branch reads what it shares from its base, and neither sees what the other adds."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.model.errors import Conflict, NotFound, StoreError
from refold.ports.records import Batch, Head, InheritedState, InstalledCompaction
from refold.ports.store import Store
from tests.contract.talks import (
    ANNA,
    BORIS,
    arrival,
    begin,
    compact,
    first_session,
    fold,
    message,
    new_head,
    ranges,
    read,
    reduce,
    say,
    written,
)


async def fork(store: Store, base: Head, at_seq: int, name: str = "side") -> Head:
    head = new_head(base.conversation, base.owner, f"{base.conversation}/{name}")
    return await store.fork(base, at_seq, head, first_session(head, at_seq))


async def test_a_fork_reads_the_first_messages_of_its_base(store):
    base = await say(store, await begin(store), *"abcd")
    side = await fork(store, base, 2)

    assert (side.base, side.base_seq, side.next_seq, side.epoch) == (base.branch, 2, 2, 0)
    assert await read(store, side) == ["a", "b"]
    side = await say(store, side, "x", "y")
    base = await say(store, base, "e")
    assert await read(store, side) == ["a", "b", "x", "y"]
    assert await read(store, base) == list("abcde")
    assert [one.seq for one in await store.messages(side, 1, 3)] == [1, 2]
    assert [one.seq for one in await store.messages(side, limit=3)] == [0, 1, 2]
    assert [one.seq for one in await store.pick(side, [3, 1])] == [1, 3]


async def test_a_fork_of_a_fork_reads_through_both(store):
    base = await say(store, await begin(store), *"abcd")
    side = await say(store, await fork(store, base, 3), *"xyz")
    deep = await say(store, await fork(store, side, 5, "deep"), "1")
    early = await say(store, await fork(store, side, 1, "early"), "2")

    assert await read(store, deep) == ["a", "b", "c", "x", "y", "1"]
    assert await read(store, early) == ["a", "2"]


async def test_a_fork_is_the_branch_that_a_conversation_goes_on_with(store):
    base = await say(store, await begin(store), *"ab")
    side = await fork(store, base, 1)

    assert await store.head(ANNA, "talk") == side
    assert await store.head(ANNA, "talk", base.branch) == base
    assert [one.branches for one in await store.conversations(ANNA)] == [2]


async def test_a_fork_has_sessions_of_its_own(store):
    base = await say(store, await begin(store), *"abcd")
    side = await say(store, await fork(store, base, 2), *"xyz")
    side = await compact(store, side, 4)

    assert await ranges(store, side) == [(2, 4), (4, None)]
    assert await ranges(store, base) == [(0, None)]


async def test_there_is_nothing_to_fork_after_the_end(store):
    base = await say(store, await begin(store), *"ab")

    with pytest.raises(StoreError):
        await fork(store, base, 3)
    with pytest.raises(StoreError):
        await fork(store, base, -1)
    with pytest.raises(NotFound):
        await fork(store, structs.replace(base, branch="nothing"), 1)
    with pytest.raises(NotFound):
        await fork(store, structs.replace(base, owner=BORIS), 1)
    assert await store.head(ANNA, "talk") == base
    assert await store.owners() == [ANNA]


async def test_a_branch_that_is_there_is_not_forked_over(store):
    base = await say(store, await begin(store), *"ab")
    side = await say(store, await fork(store, base, 1), "x")

    with pytest.raises(Conflict):
        await fork(store, base, 2)
    assert await read(store, side) == ["a", "x"]


async def test_keys_before_the_fork_are_known_after_it(store):
    base = await begin(store)
    base = await store.commit(
        base, Batch(at=2.0, messages=(message(0, "a", key="k0"), message(1, "b", key="k1")))
    )
    side = await fork(store, base, 1)

    assert await store.find_key(side, "k0") == 0
    assert await store.find_key(side, "k1") is None
    side = await store.commit(side, Batch(at=2.0, messages=(message(1, "other", key="k1"),)))
    assert await store.find_key(side, "k1") == 1
    with pytest.raises(Conflict):
        await store.commit(side, Batch(at=2.0, messages=(message(2, "again", key="k0"),)))


async def test_a_fork_is_shown_as_its_base_was_before_it(store):
    base = await say(store, await begin(store), *"abcd")
    base = await compact(store, base, 2, "early")
    base = await say(store, base, *"efgh")
    base = await compact(store, base, 6, "late")
    before, between, after = [
        await fork(store, base, at_seq, name) for at_seq, name in ((3, "x"), (6, "y"), (8, "z"))
    ]

    assert await store.latest(before) is None
    assert [(await store.latest(side)).size for side in (between, after)] == [4, 8]
    base = await say(store, base, "i")
    await compact(store, base, 9, "later")
    assert [(await store.latest(side)).size for side in (between, after)] == [4, 8]


async def test_a_change_of_the_base_at_the_place_of_the_fork_comes_too_late_for_it(store):
    base = await say(store, await begin(store), *"abcd")
    side = await fork(store, base, 4)
    base = await store.commit(base, Batch(at=3.0, changes=(reduce(base, "r"),)))

    assert await store.latest(side) is None
    assert (await store.latest(base)).id == "r"


async def test_a_fork_s_own_changes_come_before_those_of_its_base(store):
    base = await say(store, await begin(store), *"abcd")
    base = await store.commit(base, Batch(at=3.0, changes=(reduce(base, "r1"),)))
    side = await say(store, await fork(store, base, 4), "x")
    side = await store.commit(side, Batch(at=3.0, changes=(reduce(side, "r2"),)))

    assert (await store.latest(side)).id == "r2"
    assert (await store.latest(side, 4)).size == 4
    assert (await store.latest(side, 3)) is None
    assert (await store.latest(base)).id == "r1"
    assert [one.number for one in await store.compactions(ANNA, side.branch)] == [1, 2]


async def test_arrivals_that_were_taken_back_before_the_fork_are_raw_in_it(store):
    base = await say(store, await begin(store), *"abcd")
    base = await store.commit(base, Batch(at=3.0, changes=tuple(arrival(base, seq) for seq in range(4))))
    for seq in (1, 3):
        base = await store.commit(base, Batch(at=4.0, undoes=f"{base.branch}/a{seq}"))
    side = await fork(store, base, 3)

    assert await store.raw_arrivals(base, 0) == [1, 3]
    assert await store.raw_arrivals(base, 2) == [3]
    assert await store.raw_arrivals(side, 0) == [1]


async def test_a_fork_keeps_the_pins_of_what_it_shares_as_its_own(store):
    base = await say(store, await begin(store), *"abcd")
    base = await store.commit(base, Batch(at=1.0, pins=(0, 1, 3)))
    side = await fork(store, base, 2)
    side = await store.commit(side, Batch(at=1.0, unpins=(1,)))
    base = await store.commit(base, Batch(at=1.0, unpins=(0,)))

    assert await store.pins(side) == [0]
    assert await store.pins(base) == [1, 3]


async def test_a_fork_stays_as_it_was_when_its_base_is_undone_and_done_anew(store):
    base = await say(store, await begin(store), *"abcd")
    base = await compact(store, base, 2, "c1")
    side = await fork(store, base, 4)
    shown, kept = await store.latest(side), await store.summary(side, 0)
    base = await store.commit(base, Batch(at=4.0, undoes="c1"))
    assert await store.latest(base) is None
    base = await say(store, base, "e")
    base = await store.commit(base, Batch(at=5.0, changes=(fold(base, 2, "c2"),)))
    assert (await store.latest(base)).size == 5

    assert await store.latest(side) == shown
    assert (shown.shown, shown.size, shown.branch) == (b'{"shown":1}', 4, side.branch)
    assert kept == await store.summary(side, 0) == structs.replace(written("c1"), id=shown.id)
    deep = await fork(store, side, 4, "deep")
    assert (await store.latest(deep)).shown == shown.shown


async def test_what_a_fork_was_begun_with_is_not_taken_for_its_first_change(store):
    """It opened the session, as a new one is opened: there is nothing of the fork's own to take back."""
    base = await compact(store, await say(store, await begin(store), *"abcd"), 2, "c1")
    side = await fork(store, base, 4)

    first = await store.last_change(ANNA, side.session)
    assert (first.kind, first.session, first.state) == ("reduce", side.session, "installed")
    assert await store.count_summarised(ANNA, side.branch) == 0


async def test_what_is_taken_back_of_the_base_after_the_fork_is_not_the_fork_s(store):
    base = await say(store, await begin(store), *"abcd")
    base = await store.commit(base, Batch(at=3.0, changes=tuple(arrival(base, seq) for seq in range(4))))
    base = await store.commit(base, Batch(at=4.0, undoes=f"{base.branch}/a1"))
    side = await fork(store, base, 4)
    base = await store.commit(base, Batch(at=4.0, undoes=f"{base.branch}/a2"))

    assert await store.raw_arrivals(base, 0) == [1, 2]
    assert await store.raw_arrivals(side, 0) == [1]
    assert await store.raw_arrivals(await fork(store, side, 4, "deep"), 0) == [1]


async def test_a_fork_can_be_begun_as_it_was_shown_elsewhere(store):
    base = await compact(store, await say(store, await begin(store), *"abcd"), 2, "c1")
    head = new_head(branch="talk/side")
    opened = first_session(head, 4)
    shown = structs.replace((await store.compaction(ANNA, "c1")), id="own", branch=head.branch, kind="reduce")
    shown = structs.replace(shown, session=opened.id, shown=b"otherwise")
    side = await store.fork(
        base, 4, head, opened, InheritedState(InstalledCompaction(shown, written("own", "Else.")), (2, 9))
    )

    assert (await store.latest(side)).shown == b"otherwise"
    assert (await store.summary(side, 0)).summary.text == "Else."
    assert await store.raw_arrivals(side, 0) == [2]

    plain = new_head(branch="talk/plain")
    plain = await store.fork(base, 4, plain, first_session(plain, 4), InheritedState())
    assert [row.branch for row in await store.compactions(ANNA, plain.branch)] == []


async def test_the_branch_used_last_is_the_one_that_a_conversation_goes_on_with(store):
    base = await say(store, await begin(store), *"ab")
    side = await fork(store, base, 1)
    await store.commit(side, Batch(at=50.0, messages=(structs.replace(message(1, "x"), at=50.0),)))
    found = await store.head(base.owner, base.conversation)
    assert found is not None
    assert found.branch == side.branch

    await store.commit(base, Batch(at=60.0, messages=(structs.replace(message(2, "c"), at=60.0),)))

    found = await store.head(base.owner, base.conversation)
    assert found is not None
    assert found.branch == base.branch
    assert [one.branch for one in await store.conversations(base.owner)] == [base.branch]
