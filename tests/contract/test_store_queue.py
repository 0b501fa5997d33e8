"""Every store keeps queued input in order and out of sight, and takes it out of the queue with the commit that numbers it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from refold.model.errors import Conflict, NotFound
from refold.ports.records import Batch
from tests.contract.talks import ANNA, begin, command, first_session, messages, new_head, queued, read, say


async def ids(store, head):
    return [one.id for one in await store.queued(ANNA, head.branch)]


async def test_entries_wait_in_the_order_of_arrival(store):
    head = await begin(store)
    for which in ("b", "a", "c"):
        await store.enqueue(head, queued(which, which))
    await store.enqueue(head, queued("a", "again"))

    waiting = await store.queued(ANNA, head.branch)
    assert [one.id for one in waiting] == ["b", "a", "c"]
    assert waiting[1] == structs.replace(queued("a", "a"), branch=head.branch), "the first of an id counts"


async def test_what_is_queued_is_found_by_no_other_query(store):
    head = await say(store, await begin(store), "hello")
    before = (
        await store.conversations(ANNA),
        await store.outline(ANNA, "talk"),
        await store.head(ANNA, "talk"),
    )
    await store.enqueue(head, queued("q", "zanzibar"))

    assert await read(store, head) == ["hello"]
    assert await store.search(ANNA, "zanzibar") == []
    assert await store.pick(head, [0, 1]) == await store.messages(head)
    assert (
        await store.conversations(ANNA),
        await store.outline(ANNA, "talk"),
        await store.head(ANNA, "talk"),
    ) == before


async def test_a_commit_takes_messages_out_of_the_queue(store):
    head = await begin(store)
    for which in ("a", "b", "c"):
        await store.enqueue(head, queued(which, which))
    head = await store.commit(head, Batch(at=5.0, messages=messages(head, "a", "b"), takes=("a", "b")))

    assert await ids(store, head) == ["c"]
    assert await read(store, head) == ["a", "b"]
    assert len(await store.search(ANNA, "b")) == 1


async def test_a_single_message_leaves_the_queue_with_its_commit_too(store):
    head = await begin(store)
    await store.enqueue(head, queued("a", "a"))
    head = await store.commit(head, Batch(at=5.0, messages=messages(head, "a"), takes=("a",)))

    assert (await ids(store, head), await read(store, head)) == ([], ["a"])


async def test_a_message_is_taken_once(store):
    head = await begin(store)
    for which in ("a", "b"):
        await store.enqueue(head, queued(which, which))
    head = await store.commit(head, Batch(at=5.0, messages=messages(head, "a"), takes=("a",)))
    with pytest.raises(NotFound):
        await store.commit(head, Batch(at=6.0, messages=messages(head, "b", "a"), takes=("b", "a")))

    assert await ids(store, head) == ["b"], "of a batch that is refused nothing is taken"
    assert await read(store, head) == ["a"]


async def test_a_stale_writer_takes_nothing(store):
    seen = await begin(store)
    await store.enqueue(seen, queued("a", "a"))
    head = await say(store, seen, "first")
    with pytest.raises(Conflict):
        await store.commit(seen, Batch(at=5.0, messages=messages(seen, "a"), takes=("a",)))

    assert await ids(store, head) == ["a"]


async def test_two_programs_that_flush_at_once_store_a_message_once(store):
    head = await begin(store)
    await store.enqueue(head, queued("a", "a"))
    batch = Batch(at=5.0, messages=messages(head, "a"), takes=("a",))
    done = await asyncio.gather(*(store.commit(head, batch) for _ in range(2)), return_exceptions=True)

    assert sorted(isinstance(one, Conflict | NotFound) for one in done) == [False, True]
    assert await read(store, head) == ["a"]


async def test_a_command_leaves_the_queue_with_its_reply(store):
    head = await say(store, await begin(store), "hello")
    await store.enqueue(head, queued("n", "/new", kind="command"))
    assert await store.begin_command(ANNA, "n")
    waiting = await store.queued(ANNA, head.branch)
    assert (waiting[0].kind, waiting[0].body, waiting[0].is_begun) == ("command", b"/new", True)
    done = command(head, "n", "/new", "started \N{SPARKLES}")
    await store.keep_command(ANNA, done)
    await store.keep_command(ANNA, structs.replace(done, reply="another"))

    assert await ids(store, head) == []
    assert await store.commands(ANNA, head.branch) == [done]
    assert not await store.begin_command(ANNA, "n")
    assert await read(store, head) == ["hello"]
    assert await store.search(ANNA, "started") == []


async def test_a_command_that_never_waited_is_kept_as_well(store):
    head = await begin(store)
    await store.keep_command(ANNA, command(head, "1", "/status"))
    await store.keep_command(ANNA, command(head, "0", "/help"))

    assert [one.text for one in await store.commands(ANNA, head.branch)] == ["/status", "/help"]


async def test_each_branch_has_its_own_queue(store):
    base = await say(store, await begin(store), "a")
    side = new_head(branch="side")
    side = await store.fork(base, 1, side, first_session(side, 1))
    await store.enqueue(base, queued("q", "q"))
    await store.lease(ANNA, base.branch, "me", now=1.0, until=9.0)

    assert await ids(store, side) == []
    assert await store.lease(ANNA, side.branch, "you", now=1.0, until=9.0) == ""


async def test_the_lease_has_one_holder_until_it_expires(store):
    head = await begin(store)

    assert await store.lease(ANNA, head.branch, "me", now=1.0, until=5.0) == ""
    assert await store.lease(ANNA, head.branch, "you", now=4.9, until=9.0) is None
    assert await store.lease(ANNA, head.branch, "me", now=4.9, until=8.0) == "me", "its holder extends it"
    assert await store.lease(ANNA, head.branch, "you", now=5.0, until=9.0) is None
    assert await store.lease(ANNA, head.branch, "you", now=8.0, until=9.0) == "me", "me has crashed"
    assert await store.lease(ANNA, head.branch, "me", now=8.1, until=9.0) is None


async def test_the_lease_of_a_holder_that_has_ended_is_free_at_once(store):
    head = await begin(store)
    assert await store.lease_holder(ANNA, head.branch) == ""
    await store.lease(ANNA, head.branch, "me", now=1.0, until=5.0)
    assert await store.lease_holder(ANNA, head.branch) == "me"

    assert await store.lease(ANNA, head.branch, "you", now=2.0, until=9.0, ended="them") is None
    assert await store.lease(ANNA, head.branch, "you", now=2.0, until=9.0, ended="me") == "me"
    assert await store.lease_holder(ANNA, head.branch) == "you"


async def test_a_lease_is_given_back_by_its_holder_only(store):
    head = await begin(store)
    await store.lease(ANNA, head.branch, "me", now=1.0, until=5.0)
    await store.release(ANNA, head.branch, "you")
    assert await store.lease(ANNA, head.branch, "you", now=2.0, until=5.0) is None
    await store.release(ANNA, head.branch, "me")

    assert await store.lease(ANNA, head.branch, "you", now=2.0, until=5.0) == ""


async def test_of_many_that_ask_at_once_one_gets_the_lease(store):
    head = await begin(store)
    asked = (store.lease(ANNA, head.branch, f"p{n}", now=1.0, until=5.0) for n in range(8))

    assert sum(one is not None for one in await asyncio.gather(*asked)) == 1


async def test_nothing_waits_for_a_branch_that_is_gone(store):
    head = await begin(store)
    await store.enqueue(head, queued("a", "a"))
    await store.delete(ANNA, "talk")

    assert await ids(store, head) == []
    for act in (
        store.enqueue(head, queued("b", "b")),
        store.keep_command(ANNA, command(head, "c", "/new")),
        store.lease(ANNA, head.branch, "me", now=1.0, until=5.0),
    ):
        with pytest.raises(NotFound):
            await act
