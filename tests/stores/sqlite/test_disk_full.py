"""A full disk: what fits is stored, the rest is told, and nothing is half there."""

from __future__ import annotations

import asyncio

import pytest

from refold.model.errors import StoreError
from refold.ports.records import Batch
from refold.stores.sqlite.store import SqliteStore
from tests.contract.talks import ANNA, begin, call, fold, messages, read, say
from tests.stores.sqlite.inside import writer_of


def limit_pages(store: SqliteStore, more: int | None) -> None:
    """Let the file grow by so many pages and no more."""
    connection = writer_of(store)
    pages = connection.pragma("page_count")
    connection.pragma("max_page_count", pages + more if more is not None else 1_000_000)


async def test_a_full_disk_is_said_and_nothing_of_the_batch_is_there(store):
    head = await say(store, await begin(store), *"abc")
    limit_pages(store, 1)
    batch = Batch(
        at=5.0,
        messages=messages(head, "x" * 50_000),
        changes=(fold(head, 2),),
        calls=(call(head, "call", input=1),),
    )
    with pytest.raises(StoreError) as full:
        await store.commit(head, batch)

    assert "room" in str(full.value)
    assert "free" in full.value.hint
    assert await store.head(ANNA, "talk") == head
    assert await read(store, head) == ["a", "b", "c"]
    assert len(await store.sessions(ANNA, "talk")) == 1
    assert await store.compactions(ANNA, head.branch) == []
    limit_pages(store, None)
    assert (await store.commit(head, batch)).next_seq == 4, "it goes on without being opened again"
    assert await store.check() == []


async def test_with_a_full_disk_those_that_fit_are_stored_and_the_rest_are_told(store):
    heads = [await begin(store, f"talk{number}") for number in range(12)]
    limit_pages(store, 24)
    sizes = [50_000 if number % 4 == 1 else 10 for number in range(12)]
    jobs = [say(store, head, "x" * size) for head, size in zip(heads, sizes, strict=True)]
    results = await asyncio.gather(*jobs, return_exceptions=True)

    assert any(isinstance(result, StoreError) for result in results)
    for head, result in zip(heads, results, strict=True):
        is_stored = (await store.head(ANNA, head.conversation)).next_seq == 1
        assert is_stored == (not isinstance(result, BaseException)), "told what is true"
        assert len(await read(store, head)) == is_stored
    assert all(
        not isinstance(result, BaseException)
        for result, size in zip(results, sizes, strict=True)
        if size == 10
    )
    limit_pages(store, None)
    assert await store.check() == []
