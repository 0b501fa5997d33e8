"""Connections that are lost: nothing is half stored, and what nobody knows is said."""

from __future__ import annotations

import asyncio

import pytest

from refold.model.errors import Conflict, StoreError
from refold.ports.records import Batch, Head
from refold.ports.store import Store
from tests.contract.talks import ANNA, begin, call, messages, read, say
from tests.stores.postgres.trouble import SHORT, by_hand, kill, lock_branch, opened, waiting_backend


async def settle(store: Store, head: Head, text: str) -> Head:
    """Something said, and what it took: several statements in one transaction, where `say` is one that commits itself."""
    batch = Batch(at=2.0, messages=messages(head, text), calls=(call(head, text, input=1),))
    return await store.commit(head, batch)


async def test_connections_that_died_while_nobody_used_them_are_not_noticed(url, store):
    head = await say(store, await begin(store), "a")
    await asyncio.gather(*(store.owners() for _ in range(5)))
    kill(url)

    assert await read(store, await say(store, head, "b")) == ["a", "b"]
    kill(url)
    assert await store.owners() == [ANNA]


@pytest.mark.parametrize("write", [say, settle])
async def test_a_transaction_whose_connection_was_lost_is_begun_again(url, store, write):
    head = await begin(store)
    with by_hand(url) as connection:
        lock_branch(connection)
        writer = asyncio.create_task(write(store, head, "hello"))
        kill(url, f"pid = {await waiting_backend(url)}")
        connection.rollback()

    assert (await writer).next_seq == 1
    assert await read(store, head) == ["hello"]


@pytest.mark.parametrize(
    ("write", "outcome"), [(settle, "nothing was stored"), (say, "not known whether it was stored")]
)
async def test_a_connection_that_is_lost_again_and_again_is_an_error(url, store, write, outcome):
    head = await begin(store)
    with by_hand(url) as connection:
        lock_branch(connection)
        writer = asyncio.create_task(write(store, head, "hello"))
        first = await waiting_backend(url)
        kill(url, f"pid = {first}")
        while (second := await waiting_backend(url)) == first:
            pass
        kill(url, f"pid = {second}")
        with pytest.raises(StoreError) as error:
            await writer

    assert "lost" in error.value.message
    assert outcome in error.value.message
    assert error.value.hint
    assert await read(store, await say(store, head, "again")) == ["again"]


async def test_a_connection_that_is_lost_during_the_commit_is_an_unknown_outcome(url, store):
    head = await begin(store)
    with by_hand(url) as connection:
        connection.execute(
            "CREATE FUNCTION wait () RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON message DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait ()"
        )
        connection.commit()
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        writer = asyncio.create_task(settle(store, head, "hello"))
        kill(url, f"pid = {await waiting_backend(url)}")
        with pytest.raises(StoreError) as error:
            await writer

    assert "not known whether it was stored" in error.value.message
    assert "load the conversation" in error.value.hint
    assert not isinstance(error.value, Conflict)
    found = await store.head(ANNA, "talk")
    assert found
    assert (await say(store, found, "again")).next_seq == found.next_seq + 1


async def test_where_another_was_first_after_a_loss_nobody_knows_who_it_was(url, store):
    head = await begin(store)
    with by_hand(url) as connection:
        lock_branch(connection)
        writer = asyncio.create_task(say(store, head, "hello"))
        kill(url, f"pid = {await waiting_backend(url)}")
        connection.execute("UPDATE branch SET epoch = epoch + 1")
        connection.commit()
        with pytest.raises(StoreError) as error:
            await writer

    assert "not known whether it was stored" in error.value.message
    assert not isinstance(error.value, Conflict)


async def test_a_server_that_was_started_again_is_used_by_the_next_call(server, url, store):
    head = await say(store, await begin(store), "before")
    server.stop()
    server.ensure_postgres_running()

    assert await read(store, await say(store, head, "after")) == ["before", "after"]


async def test_a_writer_lives_through_a_restart_of_the_server(server, url, store):
    head = await begin(store)
    with by_hand(url) as connection:
        lock_branch(connection)
        writer = asyncio.create_task(say(store, head, "hello"))
        await waiting_backend(url)
        server.stop()
        server.ensure_postgres_running()
        assert (await writer).next_seq == 1
        connection.close()

    assert await read(store, head) == ["hello"]


async def test_a_server_that_stays_away_is_an_error_until_it_is_back(server, url):
    async with opened(url, SHORT) as store:
        head = await begin(store)
        server.stop()
        with pytest.raises(StoreError) as error:
            await say(store, head, "hello")
        server.ensure_postgres_running()
        assert "cannot be reached" in error.value.message
        assert await read(store, await say(store, head, "again")) == ["again"]
