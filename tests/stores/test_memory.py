"""What only the store in memory does: forget."""

from __future__ import annotations

from refold.stores.memory import MemoryStore
from tests.contract.talks import ANNA, begin, read, say


async def test_a_store_in_memory_forgets_everything_when_it_is_closed():
    store = MemoryStore()
    head = await say(store, await begin(store), "hello")

    await store.close()

    assert await store.owners() == []
    assert await store.head(ANNA, "talk") is None
    assert await store.messages(head) == []


async def test_two_stores_in_memory_share_nothing():
    one, other = MemoryStore(), MemoryStore()
    head = await say(one, await begin(one), "hello")

    assert await read(one, head) == ["hello"]
    assert await other.owners() == []


async def test_a_look_at_somebody_unknown_leaves_no_trace():
    store = MemoryStore()

    await store.conversations("nobody")
    await store.search("nobody", "word")
    await store.delete("nobody")

    assert await store.owners() == []
