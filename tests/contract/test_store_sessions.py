"""Every store keeps the sessions of a branch as ranges that leave nothing out and overlap nowhere."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.model.errors import Conflict, StoreError
from refold.ports.records import Batch, Head
from refold.ports.store import Store
from tests.contract.talks import (
    ANNA,
    BORIS,
    begin,
    compact,
    fold,
    message,
    messages,
    next_session,
    ranges,
    read,
    reduce,
    say,
    written,
)


async def open_new(store: Store, head: Head, first: int | None = None) -> Head:
    opens = next_session(head, head.next_seq if first is None else first, kind="new", at=5.0)
    return await store.commit(head, Batch(at=5.0, opens=opens))


@pytest.mark.feature("L5")
async def test_after_every_commit_each_message_is_in_exactly_one_session(store):
    head = await begin(store)
    assert await ranges(store, head) == [(0, None)]
    head = await say(store, head, *"abcd")
    assert await ranges(store, head) == [(0, None)]
    head = await compact(store, head, 3)
    assert await ranges(store, head) == [(0, 3), (3, None)]
    head = await say(store, head, "e", "f")
    head = await open_new(store, head)
    assert await ranges(store, head) == [(0, 3), (3, 6), (6, None)]
    head = await say(store, head, "g")
    head = await compact(store, head, 7)
    assert await ranges(store, head) == [(0, 3), (3, 6), (6, 7), (7, None)]
    head = await store.commit(head, Batch(at=6.0, undoes=f"{head.branch}/c2"))
    assert await ranges(store, head) == [(0, 3), (3, 6), (6, None)]
    assert await read(store, head) == list("abcdefg")


async def test_a_compaction_closes_a_session_at_the_cut_and_opens_the_next_one(store):
    head = await say(store, await begin(store), *"abcd")
    change = fold(head, 2, "c1")
    after = await store.commit(head, Batch(at=9.0, changes=(change,)))

    parent, child = await store.sessions(ANNA, "talk")
    assert (parent.last, parent.summary, parent.closed_at) == (2, "c1", 9.0)
    assert child == change.opens
    assert after.session == child.id
    assert after.epoch == head.epoch + 1
    assert await store.session(ANNA, child.id) == child


async def test_messages_of_the_same_batch_come_before_what_is_done_about_them(store):
    head = await say(store, await begin(store), "a")
    seen = structs.replace(head, next_seq=3)
    batch = Batch(at=3.0, messages=messages(head, "b", "c"), changes=(fold(seen, 3),))
    head = await store.commit(head, batch)

    assert await ranges(store, head) == [(0, 3), (3, None)]
    assert await read(store, head) == ["a", "b", "c"]


async def test_several_changes_of_a_batch_follow_each_other(store):
    head = await say(store, await begin(store), *"abcd")
    first = fold(head, 1, "c1")
    assert first.opens
    second = fold(structs.replace(head, session=first.opens.id), 3, "c2")
    head = await store.commit(head, Batch(at=3.0, changes=(first, reduce(head, "r"), second)))

    assert await ranges(store, head) == [(0, 1), (1, 3), (3, None)]
    kept = await store.compactions(ANNA, head.branch)
    assert [(one.id, one.number) for one in kept] == [("c1", 1), ("r", 2), ("c2", 3)]
    assert head.session == "c2/s"


async def test_what_was_said_while_a_summary_was_written_is_in_the_new_session(store):
    head = await say(store, await begin(store), *"abcd")
    change = fold(head, 3)
    head = await say(store, head, "while", "writing")
    head = await store.commit(head, Batch(at=3.0, changes=(change,)))

    assert await ranges(store, head) == [(0, 3), (3, None)]
    assert await read(store, head) == ["a", "b", "c", "d", "while", "writing"]


async def test_a_new_session_begins_before_the_message_that_asked_for_it(store):
    head = await say(store, await begin(store), *"ab")
    opens = next_session(head, 2, "fresh", kind="new", at=5.0)
    head = await store.commit(head, Batch(at=5.0, messages=messages(head, "behind"), opens=opens))

    assert await ranges(store, head) == [(0, 2), (2, None)]
    old, new = await store.sessions(ANNA, "talk")
    assert (old.summary, old.closed_at) == ("", 5.0)
    assert new == opens
    assert await read(store, head) == ["a", "b", "behind"]


async def test_a_resumed_session_says_what_it_goes_on_with(store):
    head = await say(store, await begin(store), *"ab")
    opens = next_session(
        head, 2, "again", kind="resume", parent=head.session, carries="summary", target="old"
    )
    head = await store.commit(head, Batch(at=5.0, opens=opens))

    assert await store.session(ANNA, "again") == opens


async def test_two_new_sessions_with_nothing_said_between_them_are_two_sessions(store):
    head = await open_new(store, await open_new(store, await begin(store)))

    assert await ranges(store, head) == [(0, 0), (0, 0), (0, None)]
    assert head.session == f"{head.branch}/s2"


async def test_a_session_has_one_live_compaction_after_it(store):
    """Also where a writer saw everything: the rule does not rest on the compare-and-swap alone."""
    head = await say(store, await begin(store), *"abc")
    parent = head.session
    head = await compact(store, head, 2, "c1")
    rival = fold(head, 3, "c2")
    assert rival.opens
    rival = structs.replace(rival, opens=structs.replace(rival.opens, parent=parent))

    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=4.0, changes=(rival,)))
    assert await store.compaction(ANNA, "c2") is None


async def test_two_who_compact_the_same_session_have_one_winner(store):
    head = await say(store, await begin(store), *"abc")
    await compact(store, head, 2, "c1")

    with pytest.raises(Conflict):
        await compact(store, head, 1, "c2")

    assert await ranges(store, head) == [(0, 2), (2, None)]
    assert await store.written(ANNA, ["c2"]) == []


async def test_a_compaction_that_is_taken_back_opens_the_range_before_it_again(store):
    head = await say(store, await begin(store), *"abcd")
    folded = await compact(store, head, 2, "c1")
    folded = await say(store, folded, "e")
    undone = await store.commit(folded, Batch(at=6.0, undoes="c1"))

    assert undone.session == head.session
    assert undone.epoch == folded.epoch + 1
    parent, child = await store.sessions(ANNA, "talk")
    assert (parent.last, parent.closed_at, parent.summary) == (None, None, "")
    assert child.state == "undone"
    assert await ranges(store, undone) == [(0, None)]
    assert await read(store, undone) == list("abcde")
    compaction = await store.compaction(ANNA, "c1")
    assert compaction
    assert compaction.state == "undone"
    assert await store.latest(undone) is None


async def test_after_it_was_taken_back_a_session_can_be_compacted_anew(store):
    head = await say(store, await begin(store), *"abcd")
    head = await compact(store, head, 2, "c1")
    head = await store.commit(head, Batch(at=6.0, undoes="c1"))
    head = await compact(store, head, 3, "c2")

    assert await ranges(store, head) == [(0, 3), (3, None)]
    latest = await store.latest(head)
    assert latest
    assert (latest.id, latest.number) == ("c2", 2)


async def test_compactions_are_taken_back_from_the_last_one_on(store):
    head = await say(store, await begin(store), *"abcd")
    head = await compact(store, head, 1, "c1")
    head = await compact(store, head, 3, "c2")

    with pytest.raises(StoreError):
        await store.commit(head, Batch(at=6.0, undoes="c1"))
    head = await store.commit(head, Batch(at=6.0, undoes="c2"))
    assert await ranges(store, head) == [(0, 1), (1, None)]
    head = await store.commit(head, Batch(at=6.0, undoes="c1"))
    assert await ranges(store, head) == [(0, None)]
    with pytest.raises(StoreError):
        await store.commit(head, Batch(at=6.0, undoes="c1"))


async def test_sessions_are_listed_oldest_first_for_a_conversation_or_an_owner(store):
    head = await begin(store)
    head = await open_new(store, await say(store, head, "a"))
    other = await begin(store, "other")
    head = await open_new(store, await say(store, head, "b"))

    names = [one.id for one in await store.sessions(ANNA, "talk")]
    assert names == ["talk/main/s0", "talk/main/s1", "talk/main/s2"]
    assert [one.id for one in await store.sessions(ANNA, "other")] == [other.session]
    everything = [one.id for one in await store.sessions(ANNA)]
    assert everything == ["talk/main/s0", "talk/main/s1", "other/main/s0", "talk/main/s2"]
    assert [one.id for one in await store.sessions(ANNA, limit=2)] == everything[-2:]
    assert await store.sessions(ANNA, "nothing") == []


async def test_a_closed_session_gets_the_summary_that_was_written_later_once(store):
    head = await open_new(store, await say(store, await begin(store), "a"))
    first = f"{head.branch}/s0"

    assert await store.attach_summary(ANNA, first, written("late"))
    assert not await store.attach_summary(ANNA, first, written("later"))
    assert not await store.attach_summary(ANNA, head.session, written("open"))
    assert not await store.attach_summary(ANNA, "nothing", written("lost"))

    session = await store.session(ANNA, first)
    assert session
    assert session.summary == "late"
    assert await store.written(ANNA, ["late", "later", "open", "lost"]) == [written("late")]


async def test_a_summary_takes_the_place_of_the_one_that_it_names_and_of_no_other(store):
    head = await open_new(store, await say(store, await begin(store), "a"))
    first = f"{head.branch}/s0"

    assert not await store.attach_summary(ANNA, first, written("early"), replaces="digest")
    assert await store.attach_summary(ANNA, first, written("digest"))
    assert await store.attach_summary(ANNA, first, written("model"), replaces="digest")
    assert not await store.attach_summary(ANNA, first, written("again"), replaces="digest")

    session = await store.session(ANNA, first)
    assert session
    assert session.summary == "model"
    assert await store.written(ANNA, ["early", "digest", "model", "again"]) == [
        written("digest"),
        written("model"),
    ]


@pytest.mark.feature("L1")
async def test_a_session_says_what_its_messages_took_once_it_is_closed(store):
    head = await say(store, await begin(store), "a", "bb", "ccc", "dddd")
    first = head.session
    new = (message(4, "eeeee"),)
    head = await store.commit(head, Batch(at=3.0, messages=new, changes=(fold(head, 3, "c1"),)))
    second = head.session
    await store.commit(head, Batch(at=4.0, opens=next_session(head, 5, "s2", kind="new")))

    assert [(await store.session(ANNA, one)).tokens for one in (first, second, "s2")] == [6, 9, 0]


async def test_a_session_that_is_open_again_has_no_sum_yet(store):
    head = await compact(store, await say(store, await begin(store), *"abcd"), 2, "c1")
    head = await store.commit(head, Batch(at=4.0, undoes="c1"))
    assert (await store.session(ANNA, head.session)).tokens == 0
    head = await say(store, head, "e")
    closed = head.session
    await compact(store, head, 5, "c2")

    assert (await store.session(ANNA, closed)).tokens == 5


async def test_sessions_are_found_by_the_beginning_of_their_name(store):
    head, other = await begin(store), await begin(store, "other")
    for one, name in ((head, "abc-1"), (other, "abc-2"), (await begin(store, "third"), "abd")):
        await store.commit(one, Batch(at=2.0, opens=next_session(one, 0, name, kind="new")))

    found = await store.find_sessions(ANNA, "abc")
    assert [(name, one.id) for name, one in found] == [("talk", "abc-1"), ("other", "abc-2")]
    assert found[0][1] == await store.session(ANNA, "abc-1")
    assert len(await store.find_sessions(ANNA, "ab", limit=2)) == 2
    assert await store.find_sessions(ANNA, "abcd") == []
    assert await store.find_sessions(BORIS, "abc") == []


async def test_the_session_that_holds_a_message_is_found(store):
    head = await begin(store)
    empty = head.session
    head = await store.commit(head, Batch(at=2.0, opens=next_session(head, 0, "s1", kind="new")))
    head = await compact(store, await say(store, head, *"abcd"), 2, "c1")
    undone = head.session
    head = await store.commit(head, Batch(at=2.0, undoes="c1"))
    head = await compact(store, head, 3, "c2")

    found = await store.holding(ANNA, [(head.branch, seq) for seq in (3, 0, 2, 2)])
    assert [one.id for one in found] == [head.session, "s1", "s1", "s1"]
    assert empty != "s1"
    assert undone != head.session
    assert await store.holding(ANNA, [("nothing", 1)]) == await store.holding(ANNA, []) == []
