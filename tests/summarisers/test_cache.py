from __future__ import annotations

import asyncio

import pytest

from refold.summarisers import MemoryCache, ModelSummariser
from tests.summarisers.scripted_upstream import GOOD, Scripted, said, task, writer


class Full(MemoryCache):
    """A disk without room, which cannot be read either."""

    async def get(self, key):
        raise OSError("the secret word xylophone")

    async def put(self, key, summary):
        raise OSError("the secret word xylophone")


class Slow(Scripted):
    """Answers when it is told to."""

    def __init__(self, *answers) -> None:
        super().__init__(*answers)
        self.go_on = asyncio.Event()

    async def ask(self, ask):
        self.asked.append(ask)
        await self.go_on.wait()
        return said(GOOD)


@pytest.mark.feature("X14")
async def test_a_cache_that_fails_costs_no_summary(caplog):
    summary = await ModelSummariser([writer(Scripted(GOOD))], cache=Full()).write(task())
    assert summary.text == GOOD
    assert {message.rpartition(":")[2] for message in caplog.messages} == {" OSError"}


@pytest.mark.feature("X14")
async def test_two_who_ask_the_same_at_once_pay_once():
    upstream = Slow()
    summariser = ModelSummariser([writer(upstream)])
    both = [asyncio.create_task(summariser.write(task())) for _ in range(2)]
    await asyncio.sleep(0)
    upstream.go_on.set()
    first, second = await asyncio.gather(*both)
    assert first.text == second.text == GOOD
    assert len(upstream.asked) == 1


async def test_when_the_first_of_two_gives_up_the_second_asks():
    upstream = Slow()
    summariser = ModelSummariser([writer(upstream)])
    first, second = [asyncio.create_task(summariser.write(task())) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    upstream.go_on.set()
    assert (await second).text == GOOD
    assert len(upstream.asked) == 2


async def test_only_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr("refold.summarisers.MOST", 2)
    cache, upstream = MemoryCache(), Scripted(GOOD)
    summariser = ModelSummariser([writer(upstream)], cache=cache)
    for focus in ("a", "b", "c", "c", "b"):
        await summariser.write(task(focus=focus))
    assert len(upstream.asked) == 3
    await summariser.write(task(focus="a"))
    assert len(upstream.asked) == 4
