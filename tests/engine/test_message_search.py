"""When vectors of messages are made: requests come first, and a search does not wait for a quiet moment."""

import asyncio
from math import inf

import pytest

import refold
from refold.engine import message_search
from tests.embedder import Subjects

MANY = 3 * message_search.TOGETHER


class Told(Subjects):
    """Tells when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.texts = 0

    async def embed(self, texts):
        self.texts += len(texts)
        self.asked.set()
        return await super().embed(texts)


async def say(engine: refold.Engine, count: int) -> None:
    talk = await engine.conversation("talk", model="gpt-4o")
    await talk.add(*(f"the boat {number}" for number in range(count)))


@pytest.mark.feature("L16")
async def test_vectors_wait_until_no_message_is_added(monkeypatch, tmp_path):
    monkeypatch.setattr(message_search, "IDLE_S", inf)
    monkeypatch.setattr(message_search, "MOST_DELAY_S", 3600.0)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        assert not told.asked.is_set()
        assert await engine.search("ships at sea")
        assert told.texts > MANY, "a search does not wait for a quiet moment"


@pytest.mark.parametrize("name", ["IDLE_S", "MOST_DELAY_S"])
async def test_vectors_are_made_in_a_quiet_moment_and_at_the_latest_after_a_delay(
    monkeypatch, tmp_path, name
):
    monkeypatch.setattr(message_search, "IDLE_S", inf)
    monkeypatch.setattr(message_search, "MOST_DELAY_S", 3600.0)
    monkeypatch.setattr(message_search, name, 0.0)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        async with asyncio.timeout(20):
            await told.asked.wait()


async def test_the_rests_between_blocks_end_when_a_search_waits(monkeypatch, tmp_path):
    monkeypatch.setattr(message_search, "IDLE_S", 0.0)
    monkeypatch.setattr(message_search, "RESTS", 1e9)
    async with refold.Engine(f"sqlite:///{tmp_path}/one.db", embedder=(told := Told())) as engine:
        await say(engine, MANY)
        async with asyncio.timeout(20):
            await told.asked.wait()
        assert told.texts == message_search.PAGE, "the second block waits for the end of a rest"
        assert await engine.embed_messages() == 0, "the background work has finished them"
        assert told.texts == MANY
