"""The page with thousands of long conversations."""

from __future__ import annotations

import pytest

from benchmarks.dashboard.__main__ import VIEWS, fill
from refold.engine.engine import Engine
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from tests.dashboard.conftest import serve
from tests.dashboard.visitor import Visitor


@pytest.mark.slow
async def test_every_view_works_with_thousands_of_long_conversations(tmp_path):
    path = tmp_path / "large.db"
    await fill(path, 5_000, 10_000)
    store = await open_store(f"sqlite:///{path}")
    try:
        with serve(store, compaction_window="32000") as page:
            visitor = Visitor(page.port)
            for name, url in VIEWS.items():
                assert visitor.get(url).status == 200, name
            found, after = set(), ""
            while True:
                data = visitor.get(f"/index.json?limit=500&after={after}").json()
                found |= {one["id"] for one in data["conversations"]}
                if not (after := data["next"]):
                    break
            assert len(found) == 5_000
    finally:
        await store.close()


async def test_the_list_takes_as_many_queries_for_many_conversations_as_for_one():
    """However many there are, the store is asked a fixed number of times."""

    class CounterChoice:
        def __init__(self) -> None:
            self.store, self.asked = MemoryStore(), list[str]()

        def __getattr__(self, name: str):
            value = getattr(self.store, name)
            if callable(value):
                self.asked.append(name)
            return value

    store = CounterChoice()
    engine = Engine(store, model="gpt-4o", embedder=None)
    asked = []
    for count in (1, 40):
        for number in range(count):
            chat = await engine.conversation(f"talk {count}-{number}")
            await chat.add("Where is the ferry?")
        store.asked.clear()
        await engine.page(limit=50)
        asked.append([*store.asked])

    assert asked[0] == asked[1]
    assert len(asked[0]) <= 3
