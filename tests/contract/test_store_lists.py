"""Every store lists conversations with what they hold, and calls with what they took."""

from __future__ import annotations

import pytest
from msgspec import structs

from refold.model.errors import Conflict
from refold.model.tokens import Usage
from refold.ports.records import Batch, Listed
from tests.contract.talks import (
    ANNA,
    begin,
    call,
    compact,
    first_session,
    new_head,
    next_session,
    reduce,
    say,
)


async def test_a_conversation_is_listed_with_what_it_holds(store):
    head = await say(store, await begin(store, title="Boats", at=5.0), *"abcd")
    head = await compact(store, head, 2, "c1")
    head = await store.commit(head, Batch(at=7.0, opens=next_session(head, 4, kind="new")))
    calls = (call(head, "x", input=10, cache_read=5, output=2), call(head, "y", input=20, cache_write=1))
    await store.commit(head, Batch(at=9.0, calls=calls, model="large"))

    assert await store.conversations(ANNA) == [
        Listed(
            id="talk",
            branch=head.branch,
            title="Boats",
            model="large",
            messages=4,
            compactions=1,
            sessions=3,
            usage=Usage(input=30, cache_read=5, cache_write=1, output=2),
            dollars=1.0,
            at=5.0,
            updated_at=9.0,
        )
    ]


async def test_when_a_conversation_was_used_is_known_to_the_second_and_never_goes_back(store):
    async def used(name: str = "talk") -> float:
        return next(one.updated_at for one in await store.conversations(ANNA) if one.id == name)

    head, other = await begin(store, at=10.0), await begin(store, "other", at=10.0)
    noted = []
    for at in (10.4, 11.2, 11.9, 12.2, 12.7, 112.0, 50.0, 112.9, 113.0):
        head = await say(store, head, "hello", at=at)
        other = await say(store, other, "hello", at=at + 1_000)
        noted.append(await used())
    assert noted == [10.0, 11.2, 11.2, 12.2, 12.2, 112.0, 112.0, 112.0, 113.0]
    assert await used("other") == 1_113.0

    await store.delete(ANNA, "talk")
    head = await begin(store, at=20.0)
    await say(store, head, "begun anew, with the clock set back", at=21.5)
    assert await used() == 21.5


async def test_what_is_no_summary_is_no_compaction(store):
    head = await say(store, await begin(store), *"abcd")
    head = await store.commit(head, Batch(at=2.0, changes=(reduce(head),)))

    (listed,) = await store.conversations(ANNA)
    assert (listed.compactions, await store.count_summarised(ANNA, head.branch)) == (0, 0)


async def test_what_was_taken_back_does_not_count(store):
    head = await compact(store, await say(store, await begin(store), *"abcd"), 2, "c1")
    await store.commit(head, Batch(at=3.0, undoes="c1"))

    (listed,) = await store.conversations(ANNA)
    assert (listed.compactions, listed.sessions) == (0, 1)


async def test_a_forked_conversation_counts_what_is_shared_once(store):
    base = await say(store, await begin(store), *"abcd")
    side = new_head(branch="talk/side")
    side = await store.fork(base, 3, side, first_session(side, 3))
    await say(store, side, "x")

    (listed,) = await store.conversations(ANNA)
    assert (listed.branch, listed.branches, listed.messages, listed.sessions) == (side.branch, 2, 5, 2)


async def test_the_conversation_of_the_last_word_comes_first(store):
    first = await begin(store, "first", at=1.0)
    await begin(store, "second", at=2.0)
    await begin(store, "third", at=3.0)
    await say(store, first, "hello", at=4.0)

    assert [one.id for one in await store.conversations(ANNA)] == ["first", "third", "second"]
    assert [one.id for one in await store.conversations(ANNA, limit=2)] == ["first", "third"]
    assert await store.conversations("nobody") == []


async def test_conversations_are_found_by_their_name_or_title(store):
    await begin(store, "alpha", title="Sailing North", at=1.0)
    await begin(store, "beta", title="100% wool_socks", at=2.0)

    async def ids(words: str) -> list[str]:
        return [one.id for one in await store.conversations(ANNA, words=words)]

    assert await ids("") == ["beta", "alpha"]
    assert await ids("sail") == ["alpha"]
    assert await ids("ALPHA") == ["alpha"]
    assert await ids("bet") == ["beta"]
    assert await ids("0%") == ["beta"]
    assert await ids("%") == ["beta"]
    assert await ids("_") == ["beta"]
    assert await ids("north sail") == ["alpha"]
    assert await ids("nothing") == []


async def test_the_newest_calls_are_listed_oldest_first(store):
    head = await begin(store)
    other = await begin(store, "other")
    for number in range(4):
        await store.commit(
            head, Batch(at=2.0, calls=(call(head, f"c{number}", input=number, last_prompt=7),))
        )
    await store.commit(other, Batch(at=2.0, calls=(call(other, "elsewhere"),)))

    assert [one.id for one in await store.calls(ANNA, "talk")] == ["c0", "c1", "c2", "c3"]
    assert await store.calls(ANNA, "talk", limit=2) == [
        call(head, f"c{number}", input=number, last_prompt=7) for number in (2, 3)
    ]
    assert await store.calls(ANNA, "nothing") == []


async def test_what_was_spent_is_told_for_each_kind_of_call(store):
    head = await begin(store)
    other = await begin(store, "other")
    summarised = structs.replace(call(head, "c1"), kind="summary", dollars=0.25)
    await store.commit(head, Batch(at=2.0, calls=(call(head, "c0"), summarised, call(head, "c2"))))
    await store.commit(other, Batch(at=2.0, calls=(call(other, "elsewhere"),)))

    assert await store.spent(ANNA, "talk", "reply") == 1.0
    assert await store.spent(ANNA, "talk", "summary") == 0.25
    assert await store.spent(ANNA, "other", "summary") == 0.0
    assert await store.spent(ANNA, "nothing", "reply") == 0.0


async def test_messages_can_be_pinned_and_let_go(store):
    head = await say(store, await begin(store), *"abcd")
    for seq in (3, 1, 1):
        head = await store.commit(head, Batch(at=2.0, pins=(seq,)))
    assert await store.pins(head) == [1, 3]

    head = await store.commit(head, Batch(at=2.0, unpins=(3, 0)))
    assert await store.pins(head) == [1]


async def test_a_batch_that_is_refused_pins_nothing(store):
    before = await say(store, await begin(store), *"ab")
    await say(store, before, "c")
    with pytest.raises(Conflict):
        await store.commit(before, Batch(at=2.0, pins=(1,), notes=b"{}"))
    assert await store.pins(before) == []


async def test_a_conversation_without_a_title_gets_one_with_a_batch_and_keeps_it(store):
    named, nameless = await begin(store, "named", title="Boats"), await begin(store, "nameless")
    for head in (named, nameless):
        head = await store.commit(head, Batch(at=2.0, title="When does the FERRY leave?"))
        await store.commit(head, Batch(at=3.0, title="Something else"))

    titles = {one.id: one.title for one in await store.conversations(ANNA)}
    assert titles == {"named": "Boats", "nameless": "When does the FERRY leave?"}
    assert [one.id for one in await store.conversations(ANNA, words="ferry")] == ["nameless"]


async def test_a_list_is_read_page_by_page_with_the_branch_used_last(store):
    for at, name in enumerate("abcde"):
        head = await begin(store, name, title=f"Boats {name}", at=100.0 + at)
        await say(store, head, "one", "two", at=100.0 + at)
    again = await say(store, await store.head(ANNA, "b"), "three", at=200.0)

    first = await store.latest_heads(ANNA, limit=2)
    second = await store.latest_heads(ANNA, limit=2, before=first[-1].place)
    third = await store.latest_heads(ANNA, limit=2, before=second[-1].place)

    assert [one.head.conversation for one in (*first, *second, *third)] == ["b", "e", "d", "c", "a"]
    assert first[0].head == again
    assert (first[0].title, first[0].branches, first[0].compactions) == ("Boats b", 1, 0)
    assert [one.head.conversation for one in await store.latest_heads(ANNA, words="boats C")] == ["c"]
    assert await store.latest_heads("other") == []


async def test_conversations_of_the_same_second_are_all_in_the_list_once(store):
    for name in "abcd":
        await begin(store, name, at=7.0)
    found, before = [], None
    while page := await store.latest_heads(ANNA, limit=1, before=before):
        found += [one.head.conversation for one in page]
        before = page[-1].place

    assert sorted(found) == ["a", "b", "c", "d"]


async def test_the_list_tells_compactions_and_branches(store):
    head = await say(store, await begin(store), *"abcd")
    head = await compact(store, head, 2, "c1")
    (alone,) = await store.latest_heads(ANNA)
    fork = structs.replace(new_head("talk", branch="other"), session="other/s0")
    await store.fork(head, 2, fork, first_session(fork, first=2))

    (both,) = await store.latest_heads(ANNA)

    assert (alone.branches, alone.compactions) == (1, 1)
    assert both.branches == 2


async def test_the_newest_reply_of_each_branch_is_the_one_to_its_newest_messages(store):
    def answered(head, which, reply, **more):
        return structs.replace(call(head, which), reply=reply, **more)

    one = await say(store, await begin(store, "one"), *"ab")
    two = await say(store, await begin(store, "two"), *"abc")
    quiet = await say(store, await begin(store, "quiet"), "a")
    calls = (answered(one, "x", b"first"), answered(one, "y", b"again"), answered(one, "z", b"old", size=1))
    one = await store.commit(one, Batch(at=9.0, calls=calls))
    two = await store.commit(two, Batch(at=9.0, calls=(answered(two, "v", b"later"), call(two, "w"))))
    quiet = await store.commit(quiet, Batch(at=9.0, calls=(answered(quiet, "q", b"paid", kind="summary"),)))
    places = [(head.conversation, head.branch, head.next_seq) for head in (one, two, quiet)]

    assert await store.newest_replies(ANNA, places) == {one.branch: b"again"}
    assert await store.newest_replies(ANNA, [(two.conversation, two.branch, 2)]) == {}
    assert await store.newest_replies("other", places) == await store.newest_replies(ANNA, []) == {}


async def test_the_tokens_of_the_newest_messages_are_added_up_by_branch(store):
    one = await say(store, await begin(store, "one"), *"abcd")
    two = await say(store, await begin(store, "two"), *"ab")
    sizes = [each.tokens for each in await store.messages(one)]

    found = await store.tokens_since(ANNA, [(one.branch, 1), (two.branch, 2)])

    assert found == {one.branch: sum(sizes[1:]), two.branch: 0}
    assert await store.tokens_since("other", [(one.branch, 0)]) == {one.branch: 0}


async def test_a_call_has_as_many_before_it_as_were_stored_in_its_conversation(store):
    for at in range(3):
        for name in ("one", "two"):
            head = await begin(store, name) if not at else await store.head(ANNA, name)
            await store.commit(head, Batch(at=1.0, calls=(call(head, f"{name}-{at}"),)))

    assert [await store.calls_before(ANNA, "two", f"two-{at}") for at in range(3)] == [0, 1, 2]
    assert await store.calls_before(ANNA, "two", "never") == 0
    assert await store.calls_before("other", "two", "two-2") == 0


async def test_what_calls_of_a_kind_cost_is_told_by_conversation(store):
    for name in ("one", "two"):
        head = await begin(store, name)
        paid = structs.replace(call(head, name), kind="summary", dollars=0.25)
        await store.commit(head, Batch(at=1.0, calls=(paid, call(head, f"{name}-reply"))))
    await begin(store, "three")

    assert await store.spent_each(ANNA, ["one", "three"], "summary") == {"one": 0.25}
    assert await store.spent_each("other", ["one"], "summary") == {}
