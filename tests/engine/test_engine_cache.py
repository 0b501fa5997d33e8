"""What models wrote is kept by an engine for its conversations, where it may be, and goes when they do."""

import pytest

from refold.engine.engine import Engine
from refold.model.summary import Summary
from refold.model.tokens import Usage
from tests.engine.test_stored_conversation import engine, store

__all__ = ["store"]


@pytest.mark.feature("X14")
async def test_a_summary_that_one_program_paid_for_is_found_by_the_next(tmp_path):
    url, summary = (
        f"sqlite:///{tmp_path}/talks.db",
        Summary("what happened", 0, 4, 10, "model", usage=Usage(input=9)),
    )
    async with Engine(url) as first:
        await first.cache.put("key", summary)
    async with Engine(url) as second, await Engine(url, owner="another").start() as other:
        assert await second.cache.get("key") == summary
        assert await second.cache.get("no key") is None
        assert await other.cache.get("key") is None


async def test_a_summary_is_not_kept_where_content_may_not_be(store):
    secretive, written = engine(store, keeps_content=False), Summary("About a question.", 0, 1, 4)
    for made, is_stored in ((secretive, False), (engine(store), True)):
        assert await made.cache.get("key") is None
        await made.cache.put("key", written)
        assert await made.cache.get("key") == written, "it is not paid for twice"
        assert (await store.cached(made.owner, "key") is not None) == is_stored


async def test_a_summary_that_two_asked_for_does_not_come_back_when_all_is_deleted(store):
    made, written = engine(store), Summary("About a question.", 0, 1, 4)
    for _ in range(2):
        assert await made.cache.get("key") is None
    await made.cache.put("key", written)
    await made.delete()
    await made.cache.put("key", written)

    assert await store.cached(made.owner, "key") is None
