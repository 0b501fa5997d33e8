"""Two gateways on one store, one of which is stopped now and then and goes on later: clients ask the other one again.

A process that is stopped in the middle of a transaction holds its locks, and one that goes on does what it was about to do, though
everybody else has moved on. Nothing that was acknowledged may be lost by either, and no conversation may become two.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from refold.engine.engine import Engine
from refold.testing import ScriptedUpstream
from tests.contract.postgres import get_server, make_database
from tests.durability.notes import clock_of
from tests.gateway.faults.clients import Talker, faults_after, named
from tests.gateway.faults.process import Program

WINDOW = "2500"
TALKS = 3
PATIENCE = aiohttp.ClientTimeout(total=3)
"""How long a client waits before it asks the other gateway."""
LONGEST_S = 6.0
"""That a gateway stands still: longer than clients and locks are waited for."""


async def talk(
    talker: Talker, urls: Sequence[str], session: aiohttp.ClientSession, is_over: asyncio.Event
) -> None:
    """Go on until it is over: each turn begins at the gateway that answered last, and goes to the other one where that does not answer."""
    at = 0
    while not is_over.is_set():
        if not await talker.turn(session, urls[at % len(urls)]) or talker.answered % 5 == 0:
            at += 1


async def freeze(programs: Sequence[Program], times: int, chance: random.Random) -> None:
    for _ in range(times):
        await asyncio.sleep(chance.random())
        stopped = chance.choice(programs).process
        stopped.send_signal(signal.SIGSTOP)
        await asyncio.sleep(chance.uniform(0.2, LONGEST_S))
        stopped.send_signal(signal.SIGCONT)


async def run_frozen(store: str, folder: Path, times: int, seed: int) -> str:
    """The figures of a run in which gateways stood still so many times."""
    talkers = [Talker(f"talk-{place}", seed + place, is_named=bool(place)) for place in range(TALKS)]
    async with (
        ScriptedUpstream(otherwise=named, window=None) as upstream,
        aiohttp.ClientSession(timeout=PATIENCE) as session,
    ):
        words = (store, f"{upstream.url}/v1", "--window", WINDOW)
        async with Program(*words, home=folder) as one, Program(*words, home=folder) as two:
            is_over, urls = asyncio.Event(), [one.url, two.url]
            talking = [asyncio.create_task(talk(talker, urls, session, is_over)) for talker in talkers]
            await freeze([one, two], times, random.Random(seed))
            is_over.set()
            await asyncio.gather(*talking)
            await asyncio.gather(one.stop(), two.stop())
    async with Engine(store, clock=clock_of(1), embedder=None) as engine:
        assert await faults_after(engine, talkers) == []
    replies = sum(len(talker.receipts) for talker in talkers)
    not_kept = sum(talker.not_kept for talker in talkers)
    return f"{times} times frozen: {replies} replies acknowledged, {not_kept} declared as not kept; lost 0, split 0"


@pytest.mark.feature("X12")
async def test_a_gateway_that_stands_still_and_goes_on_splits_nothing(tmp_path):
    await run_frozen(f"sqlite:///{tmp_path}/talks.db", tmp_path, 1, 20_261_116)


@pytest.mark.slow
@pytest.mark.feature("X12")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_gateways_that_stand_still_again_and_again_split_nothing(tmp_path, capsys, pytestconfig, kind):
    seed = random.SystemRandom().randrange(1 << 30)
    store = f"sqlite:///{tmp_path}/talks.db"
    if kind == "postgresql":
        store = make_database(get_server(pytestconfig), "frozen")
    told = await run_frozen(store, tmp_path, 20, seed)
    with capsys.disabled():
        sys.stdout.write(f"\nTwo gateways on {kind}, seed {seed}: {told}\n")
