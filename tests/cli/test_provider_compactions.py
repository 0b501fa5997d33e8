"""Stores that move, and the compactions of providers in them."""

from __future__ import annotations

import asyncio

from refold import Engine
from tests.engine.test_provider_compactions import ITEM, compactions, user


def test_in_a_copy_of_a_store_one_is_still_that_of_the_conversations_model(refold, tmp_path):
    """An archive holds what was said, and not who made what."""
    first, second = (f"sqlite:///{tmp_path / name}.db" for name in ("first", "second"))

    async def make() -> None:
        async with Engine(first, embedder=None, format="responses") as engine:
            talk = await engine.conversation("talk", model="one")
            await talk.add(user("Fix the build."), ITEM, user("go on"))

    async def contexts() -> list[dict]:
        async with Engine(second, embedder=None, format="responses") as engine:
            return [
                await (await engine.conversation("talk", model=name)).context()
                for name in ("two", "one", "two")
            ]

    asyncio.run(make())
    refold("db", "export", str(tmp_path / "all.jsonl"), "--store", first)
    refold("db", "import", str(tmp_path / "all.jsonl"), "--store", second)
    found = [compactions(fields, "responses") for fields in asyncio.run(contexts())]
    assert found == [[], [(1, ITEM)], []]
