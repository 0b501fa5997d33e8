"""Connections and waiting: nobody waits for ever, and nobody takes more than allowed."""

from __future__ import annotations

import asyncio

import pytest

from refold.model.errors import StoreError
from refold.stores.postgres.store import Patience
from tests.contract.talks import ANNA, begin, read, say
from tests.stores.postgres.trouble import backends, by_hand, lock_branch, opened, waiting_backend


async def test_no_more_connections_are_made_than_allowed(url):
    async with opened(url, Patience(connections=2)) as store:
        names = [f"talk{number}" for number in range(20)]
        heads = await asyncio.gather(*(begin(store, name) for name in names))
        await asyncio.gather(*(say(store, head, "hello") for head in heads))

        assert len(await store.conversations(ANNA)) == 20
        assert len(backends(url)) <= 2
        assert set(backends(url)) == {"idle"}, "nothing is left in a transaction"


async def test_a_store_with_all_connections_busy_says_so(url):
    async with opened(url, Patience(connections=1, wait_s=0.2)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            held = asyncio.create_task(say(store, head, "waits"))
            await waiting_backend(url)
            with pytest.raises(StoreError) as error:
                await store.owners()
            connection.rollback()
        assert (await held).next_seq == 1

    assert "all 1 connections were busy" in error.value.message


async def test_a_closed_store_says_so(url):
    async with opened(url) as store:
        await begin(store)

    with pytest.raises(StoreError, match="closed"):
        await store.owners()


async def test_a_writer_does_not_wait_for_another_for_ever(url):
    async with opened(url, Patience(lock_s=0.1)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            with pytest.raises(StoreError) as error:
                await say(store, head, "hello")

        assert "locked" in error.value.message
        assert error.value.hint
        assert await read(store, await say(store, head, "again")) == ["again"]


async def test_a_statement_does_not_take_for_ever(url):
    async with opened(url, Patience(statement_s=0.1)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            with pytest.raises(StoreError) as error:
                await say(store, head, "hello")

        assert "too long" in error.value.message
        assert await read(store, await say(store, head, "again")) == ["again"]


async def test_a_purge_takes_as_long_as_it_takes(url):
    async with opened(url, Patience(statement_s=0.1)) as store:
        await say(store, await begin(store), "hello")
        with by_hand(url) as connection:
            # Longer than a statement may take.
            connection.execute(
                "CREATE FUNCTION slow () RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM pg_sleep(0.3); RETURN OLD; END'"
            )
            connection.execute(
                "CREATE TRIGGER slow BEFORE DELETE ON message FOR EACH ROW EXECUTE FUNCTION slow ()"
            )

        assert await store.delete(ANNA) == 1


async def test_a_writer_who_is_called_off_leaves_nothing_and_blocks_nobody(url):
    async with opened(url, Patience(connections=1)) as store:
        head = await begin(store)
        with by_hand(url) as connection:
            lock_branch(connection)
            writer = asyncio.create_task(say(store, head, "never"))
            await waiting_backend(url)
            writer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writer

        assert await read(store, await say(store, head, "hello")) == ["hello"]
