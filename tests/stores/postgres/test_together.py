"""Many at the same time, and no deadlock."""

from __future__ import annotations

import asyncio

import psycopg

from refold.model.errors import Conflict, NotFound
from refold.stores.postgres.store import PostgresStore
from tests.contract.talks import ANNA, begin, first_session, new_head, read, say
from tests.stores.postgres.trouble import waiting_backend


async def test_many_who_begin_the_same_conversation_get_the_same_branch(store):
    heads = await asyncio.gather(*(begin(store) for _ in range(8)))

    assert heads == [heads[0]] * 8
    assert len(await store.sessions(ANNA)) == 1


async def test_a_writer_who_is_in_a_deadlock_begins_again(url, store):
    head = await begin(store)
    other = await psycopg.AsyncConnection.connect(
        url, options="-c search_path=refold -c deadlock_timeout=20s"
    )
    async with other:
        await other.execute("SELECT 1 FROM branch FOR UPDATE")
        writer = asyncio.create_task(say(store, head, "hello"))
        await waiting_backend(url)
        # The writer has the conversation and waits for the branch; it is the first to notice.
        await other.execute("SELECT 1 FROM conversation FOR UPDATE")
        await other.rollback()

    assert (await writer).next_seq == 1
    assert await read(store, head) == ["hello"]


async def write_and_delete(store: PostgresStore, rounds: int) -> None:
    """Take a conversation away while another writes to it: each locks what the other needs."""
    for _ in range(rounds):
        head = new_head()
        try:
            head = await store.create(head, first_session(head))
            head = await say(store, head, "hello")
            await asyncio.gather(say(store, head, "more"), store.delete(ANNA, "talk"))
        except (Conflict, NotFound):
            continue


async def test_writing_and_deleting_at_once_never_ends_in_a_deadlock(store):
    await asyncio.gather(*(write_and_delete(store, 10) for _ in range(4)))

    await store.delete(ANNA)
    head = await say(store, await begin(store), "hello")
    assert await read(store, head) == ["hello"]
