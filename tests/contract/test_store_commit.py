"""Every store takes a batch in whole or not at all, and only from a writer who saw where the branch is."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from refold.model.errors import Conflict, NotFound, StoreError
from refold.ports.records import Batch, Head, LearntValue, StoredMessage
from refold.ports.store import Store
from tests.contract.talks import (
    ANNA,
    begin,
    call,
    compact,
    first_session,
    fold,
    message,
    messages,
    new_head,
    next_session,
    read,
    reduce,
    say,
    summaries_of,
)


async def everything(store: Store, head: Head) -> list[object]:
    """All that can be asked about a conversation."""
    return [
        await store.head(head.owner, head.conversation, head.branch),
        await store.messages(head),
        await store.sessions(head.owner, head.conversation),
        await store.compactions(head.owner, head.branch),
        await summaries_of(store, head),
        await store.calls(head.owner, head.conversation),
        await store.conversations(head.owner),
        await store.search(head.owner, "storm"),
    ]


async def test_a_conversation_begins_empty_with_an_open_session(store):
    head = await begin(store, title="Boats", at=7.0)

    assert head == structs.replace(new_head(), session="talk/main/s0")
    assert await store.head(ANNA, "talk") == head
    assert await store.messages(head) == []
    assert await store.sessions(ANNA, "talk") == [first_session(head)]
    assert await store.latest(head) is None


async def test_a_conversation_that_is_begun_again_is_the_one_that_was_there(store):
    head = await say(store, await begin(store), "hello")

    assert await begin(store) == head
    assert await read(store, head) == ["hello"]
    assert len(await store.sessions(ANNA, "talk")) == 1


async def test_a_conversation_can_have_several_beginnings(store):
    first = await say(store, await begin(store), "hello")
    other = new_head(branch="talk/title")
    second = await store.create(other, first_session(other))

    assert await read(store, second) == []
    assert await store.head(ANNA, "talk") == second
    assert await store.head(ANNA, "talk", first.branch) == first


async def test_what_is_not_there_is_not_found(store):
    head = await begin(store)

    assert await store.head(ANNA, "other") is None
    assert await store.head(ANNA, "talk", "other") is None
    assert await store.session(ANNA, "other") is None
    assert await store.compaction(ANNA, "other") is None
    assert await store.find_key(head, "other") is None
    assert await store.written(ANNA, ["other"]) == []
    with pytest.raises(NotFound):
        await say(store, structs.replace(head, branch="other"), "hello")
    with pytest.raises(NotFound):
        await say(store, structs.replace(head, conversation="other"), "hello")


async def test_messages_come_back_as_they_were_given_but_for_whether_they_are_found(store):
    head = await begin(store)
    given = (
        StoredMessage(
            seq=0,
            role="user",
            format="chat",
            body=b'{"a":"\xc3\xa9"}',
            is_findable=False,
            key="k",
            tokens=3,
            at=1.5,
        ),
        StoredMessage(seq=1, role="tool", format="anthropic", body=b"", shown=b"[]", at=2.5),
    )
    await store.commit(head, Batch(at=2.0, messages=given))

    assert await store.messages(head) == [structs.replace(given[0], is_findable=True), given[1]]


@pytest.mark.parametrize(
    "text",
    [
        "a\x00b",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        "'; DROP TABLE message; --",
        "%s %(owner)s :owner ?",
    ],
    ids=["zero", "emoji", "sql", "placeholders"],
)
async def test_any_text_can_be_kept(store, text):
    head = await begin(store, title=text.replace("\x00", ""))
    head = await store.commit(
        head, Batch(at=2.0, messages=(message(0, text),), notes=text.encode(), model="m")
    )

    assert await read(store, head) == [text]
    assert (await store.head(ANNA, "talk")) == head
    assert head.notes == text.encode()


async def test_a_message_of_megabytes_can_be_kept_and_is_found_by_its_beginning(store):
    text = "harbour " + " ".join(f"word{number}" for number in range(150_000))
    head = await say(store, await begin(store), text)

    assert await read(store, head) == [text]
    assert [hit.seq for hit in await store.search(ANNA, "harbour")] == [0]


async def test_the_head_moves_by_the_messages_of_a_batch(store):
    head = await say(store, await begin(store), "a", "b")

    assert (head.next_seq, head.epoch) == (2, 0)
    assert await store.head(ANNA, "talk") == head


async def test_notes_and_model_stay_until_others_are_given(store):
    head = await begin(store)
    head = await store.commit(head, Batch(at=2.0, notes=b"one", model="large"))
    assert (head.notes, head.model) == (b"one", "large")

    head = await say(store, head, "hello")
    assert (head.notes, head.model) == (b"one", "large")

    head = await store.commit(head, Batch(at=2.0, notes=b"", model=""))
    assert (head.notes, head.model) == (b"", "")
    assert await store.head(ANNA, "talk") == head


async def test_a_writer_who_did_not_see_the_last_message_is_refused(store):
    seen = await begin(store)
    head = await say(store, seen, "first")
    before = await everything(store, head)

    with pytest.raises(Conflict):
        await say(store, seen, "second")
    with pytest.raises(Conflict):
        await say(store, seen, "second", "third")
    with pytest.raises(Conflict):
        await store.commit(seen, Batch(at=9.0, notes=b"old"))
    with pytest.raises(Conflict):
        await compact(store, seen, 0)

    assert await everything(store, head) == before


async def test_a_writer_who_did_not_see_the_last_change_is_refused(store):
    seen = await say(store, await begin(store), "a", "b")
    head = await store.commit(seen, Batch(at=2.0, changes=(reduce(seen),)))
    before = await everything(store, head)
    assert head.next_seq == seen.next_seq

    with pytest.raises(Conflict):
        await say(store, seen, "second")
    with pytest.raises(Conflict):
        await say(store, seen, "second", "third")
    with pytest.raises(Conflict):
        await compact(store, seen, 1)

    assert await everything(store, head) == before


def taken_key(head: Head) -> Batch:
    return Batch(at=9.0, messages=(message(head.next_seq, "storm", key="known"),))


def same_key_twice(head: Head) -> Batch:
    pair = (message(head.next_seq, "storm", key="x"), message(head.next_seq + 1, "b", key="x"))
    return Batch(at=9.0, messages=pair)


def gap_in_the_numbers(head: Head) -> Batch:
    return Batch(at=9.0, messages=(message(head.next_seq, "storm"), message(head.next_seq + 2, "b")))


def numbers_of_others(head: Head) -> Batch:
    return Batch(at=9.0, messages=(message(head.next_seq - 1, "storm"),))


def second_child(head: Head) -> Batch:
    change = fold(head, head.next_seq)
    assert change.opens
    opens = structs.replace(change.opens, parent="talk/main/s0")
    return Batch(at=9.0, changes=(structs.replace(change, opens=opens),))


def session_before_the_open_one(head: Head) -> Batch:
    return Batch(at=9.0, opens=next_session(head, 0, kind="new"))


def session_after_the_end(head: Head) -> Batch:
    return Batch(at=9.0, opens=next_session(head, head.next_seq + 5, kind="new"))


def session_that_is_there(head: Head) -> Batch:
    return Batch(at=9.0, opens=next_session(head, head.next_seq, "talk/main/s0", kind="new"))


def session_apart_from_its_cut(head: Head) -> Batch:
    change = fold(head, head.next_seq)
    compaction = structs.replace(change.compaction, cut=head.next_seq - 1)
    return Batch(at=9.0, changes=(structs.replace(change, compaction=compaction),))


def change_that_is_there(head: Head) -> Batch:
    return Batch(at=9.0, changes=(fold(head, head.next_seq, "known"),))


def undo_of_nothing(head: Head) -> Batch:
    return Batch(at=9.0, undoes="nothing")


@pytest.mark.parametrize(
    "make",
    [
        taken_key,
        same_key_twice,
        gap_in_the_numbers,
        numbers_of_others,
        second_child,
        session_before_the_open_one,
        session_after_the_end,
        session_that_is_there,
        session_apart_from_its_cut,
        change_that_is_there,
        undo_of_nothing,
    ],
)
async def test_a_batch_that_cannot_be_taken_in_whole_leaves_nothing_behind(store, make):
    head = await begin(store)
    head = await store.commit(head, Batch(at=2.0, messages=(message(0, "a", key="known"), message(1, "b"))))
    head = await compact(store, head, 1, "known")
    before = await everything(store, head)
    broken = make(head)
    said = broken.messages or messages(head, "storm")
    good = structs.replace(
        broken,
        messages=said,
        changes=(reduce(head, "good"), *broken.changes),
        calls=(call(head, "paid", input=5),),
        notes=b"new",
        model="new",
    )

    with pytest.raises(StoreError):
        await store.commit(head, good)

    assert await everything(store, head) == before
    assert (await say(store, head, "goes on")).next_seq == 3


async def write_lines(store: Store, name: str, count: int) -> int:
    """What a writer does who is told that another was first: look again. How often that happened."""
    lost, done = 0, 0
    while done < count:
        head = await store.head(ANNA, "talk")
        assert head
        try:
            await say(store, head, f"{name}{done}")
        except Conflict:
            lost += 1
        else:
            done += 1
    return lost


async def test_writers_at_the_same_time_leave_no_gap_and_lose_nothing(store):
    head = await begin(store)

    await asyncio.gather(*(write_lines(store, name, 5) for name in "abcdefgh"))

    kept = await store.messages(head)
    assert [one.seq for one in kept] == list(range(40))
    said = await read(store, head)
    for name in "abcdefgh":
        assert [text for text in said if text.startswith(name)] == [f"{name}{number}" for number in range(5)]


async def test_of_writers_who_saw_the_same_only_one_is_taken(store):
    head = await begin(store)

    outcomes = await asyncio.gather(*(say(store, head, name) for name in "abcdefgh"), return_exceptions=True)

    assert sum(isinstance(outcome, Head) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
    assert len(await read(store, head)) == 1


async def test_messages_are_read_by_range_and_one_by_one(store):
    head = await say(store, await begin(store), *"abcdef")

    async def seqs(first: int = 0, last: int | None = None, limit: int | None = None) -> list[int]:
        return [one.seq for one in await store.messages(head, first, last, limit)]

    assert await seqs(2) == [2, 3, 4, 5]
    assert await seqs(2, 4) == [2, 3]
    assert await seqs(limit=2) == [0, 1]
    assert await seqs(3, 100, 1) == [3]
    assert await seqs(4, 2) == []
    assert await seqs(limit=0) == []
    assert [one.seq for one in await store.pick(head, [5, 0, 3, 3, 17])] == [0, 3, 5]
    assert await store.pick(head, []) == []


async def test_a_message_is_found_by_the_key_it_came_with(store):
    head = await begin(store)
    keyed = (message(0, "a"), message(1, "b", key="k1"), message(2, "c", key="k2"))
    head = await store.commit(head, Batch(at=2.0, messages=keyed))
    other = await begin(store, "other")
    await store.commit(other, Batch(at=2.0, messages=(message(0, "x", key="k2"),)))

    assert await store.find_key(head, "k1") == 1
    assert await store.find_key(head, "k2") == 2
    assert await store.find_key(head, "") is None
    assert await store.find_key(other, "k1") is None


async def test_notes_that_another_wrote_meanwhile_are_not_written_over(store):
    head = await begin(store)
    mine = await store.commit(head, Batch(at=2.0, notes=b"mine"))
    assert mine.revision == head.revision + 1
    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=2.0, notes=b"yours"))
    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=2.0, model="yours"))

    found = await store.head(ANNA, head.conversation)
    assert found == mine
    assert (found.notes, found.model) == (b"mine", head.model)
    both = await store.commit(mine, Batch(at=2.0, notes=b"mine and yours"))
    assert (both.notes, both.place != mine.place) == (b"mine and yours", True)


async def test_a_conversation_that_was_deleted_and_begun_anew_is_another_one(store):
    """Same name, same branch, as many messages: only what was open tells."""
    old = await say(store, await begin(store), "old")
    await store.delete(ANNA, old.conversation)
    fresh = new_head(old.conversation)
    anew = await store.create(fresh, structs.replace(first_session(fresh), id="another"), at=3.0)
    anew = await say(store, anew, "new")
    assert (anew.branch, anew.next_seq, anew.epoch) == (old.branch, old.next_seq, old.epoch)

    with pytest.raises(NotFound):
        await say(store, old, "after the old one")
    assert anew.place != old.place
    assert await read(store, anew) == ["new"]


async def test_what_a_call_has_taught_is_stored_with_it_or_not_at_all(store):
    head = await begin(store)
    await store.learn(ANNA, "window", "gpt", b"8000", 1.0)
    taught = (LearntValue("calibration", "gpt", b"[1.2]"), LearntValue("window", "gpt", b"9000"))
    moved = await store.commit(head, Batch(at=2.0, calls=(call(head, "c1"),), notes=b"n", learnt=taught))

    assert await store.learnt(ANNA, "calibration", "gpt") == b"[1.2]"
    assert await store.learnt(ANNA, "window", "gpt") == b"9000"
    late = (LearntValue("calibration", "gpt", b"[3.0]"),)
    with pytest.raises(Conflict):
        await store.commit(head, Batch(at=3.0, calls=(call(head, "c2"),), learnt=late))
    one = Batch(at=4.0, messages=messages(moved, "hello"), learnt=taught[:1])
    await store.commit(moved, one)
    assert await store.learnt(ANNA, "calibration", "gpt") == b"[1.2]"
