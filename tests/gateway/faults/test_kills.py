"""kill -9 of a gateway that serves: whatever was answered is kept, once, and the next one goes on with it."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from refold.engine.engine import Engine
from refold.testing import Received, Say, ScriptedUpstream, Slow
from refold.testing.script import Scripted
from tests.contract.postgres import get_server, make_database
from tests.durability.harness import failpoints
from tests.durability.notes import clock_of
from tests.gateway.faults.clients import Talker, faults_after, is_summary, named
from tests.gateway.faults.process import PATIENCE_S, Program
from tests.program import command

SEED = 20_261_118
WINDOW = "2500"
TALKS = 3
LONG = "<a0> and so on and on" * 40
"""A reply that nobody hears to the end."""


class Campaign:
    """One store, many gateways one after the other, and three clients that go on."""

    def __init__(
        self,
        folder: Path,
        upstream: ScriptedUpstream,
        session: aiohttp.ClientSession,
        seed: int,
        store: str = "",
    ) -> None:
        self.store = store or f"sqlite:///{folder}/talks.db"
        self.upstream, self.session, self.chance = upstream, session, random.Random(seed)
        flags, copied = ("--window", WINDOW), command()
        self.program = Program(self.store, f"{upstream.url}/v1", *flags, home=folder, command=copied)
        self.talkers = [Talker(f"talk-{place}", seed + place, is_named=bool(place)) for place in range(TALKS)]
        self.kills: Counter[str] = Counter()

    async def go_on(self, turns: int) -> None:
        """So many turns in every conversation, with a gateway that lives."""
        await self.program.start()
        for talker in self.talkers:
            for _ in range(turns):
                assert await talker.turn(self.session, self.program.url)
        await self.program.stop()

    async def die_at(self, failpoint: str, times: int) -> None:
        """Talk until the gateway dies at a named place."""
        await self.program.start(f"{failpoint}:kill:{times}")
        await asyncio.gather(*(self._until_it_dies(talker) for talker in self.talkers))
        assert await self.program.ended() == -9
        self.kills[failpoint] += 1

    async def _until_it_dies(self, talker: Talker) -> None:
        while self.program.process.returncode is None and await talker.turn(self.session, self.program.url):
            pass

    async def die_somewhere(self) -> None:
        """Kill it at a moment that nobody chose."""
        await self.program.start()
        talking = asyncio.gather(*(self._until_it_dies(talker) for talker in self.talkers))
        await asyncio.sleep(self.chance.random() * 0.5)
        await self.program.kill()
        await talking
        self.kills["anywhere"] += 1

    async def die_in_a_summary(self) -> None:
        """Kill it while the provider is at work on a summary."""
        held = asyncio.Event()

        def answer(received: Received) -> Say | Slow:
            if not is_summary(received):
                return named(received)
            held.set()
            return Slow("never", before_s=float("inf"))

        await self._die_when(held, answer, "in a summary")

    async def die_in_a_stream(self) -> None:
        """Kill it when the client has heard the first words of a reply."""
        talker = self.chance.choice(self.talkers)
        talker.is_hearing.clear()

        def answer(received: Received) -> Say | Slow:
            is_its = f"<q-{talker.name}-" in received.text and not is_summary(received)
            return Slow(LONG, between_s=0.2) if is_its else named(received)

        await self._die_when(talker.is_hearing, answer, "in a stream")

    async def _die_when(self, moment: asyncio.Event, answer: Scripted, what: str) -> None:
        self.upstream.script(otherwise=answer)
        await self.program.start()
        talking = asyncio.gather(*(self._until_it_dies(talker) for talker in self.talkers))
        await asyncio.wait_for(moment.wait(), PATIENCE_S)
        await self.program.kill()
        await talking
        self.upstream.script(otherwise=named)
        self.kills[what] += 1

    async def faults(self) -> list[str]:
        """What is wrong, as another program sees it."""
        async with Engine(self.store, clock=clock_of(1), embedder=None) as engine:
            return await faults_after(engine, self.talkers)


@asynccontextmanager
async def campaign(folder: Path, seed: int = SEED, store: str = "") -> AsyncIterator[Campaign]:
    async with ScriptedUpstream(otherwise=named, window=None) as upstream, aiohttp.ClientSession() as session:
        held = Campaign(folder, upstream, session, seed, store)
        try:
            yield held
        finally:
            await held.program.kill()


def judge(held: Campaign, faults: list[str]) -> str:
    assert faults == []
    assert all(talker.answered for talker in held.talkers)
    messages = sum(len(talker.log.said(talker.lines[0].conversation)) for talker in held.talkers)
    replies = sum(len(talker.receipts) for talker in held.talkers)
    not_kept = sum(talker.not_kept for talker in held.talkers)
    summaries = sum(map(is_summary, held.upstream.requests))
    return (
        f"{held.kills.total()} kills ({dict(held.kills)}): {messages} messages and {replies} replies acknowledged, "
        f"{not_kept} declared as not kept, {summaries} summaries asked for, lost 0, doubled 0, forked 0"
    )


@pytest.mark.feature("X20")
async def test_a_gateway_that_is_killed_in_a_stream_and_in_a_compaction_loses_nothing(tmp_path):
    async with campaign(tmp_path) as held:
        await held.die_in_a_stream()
        await held.die_in_a_summary()
        await held.die_at("commit.after_closing", 1)
        await held.go_on(2)
        judge(held, await held.faults())


@pytest.mark.slow
@pytest.mark.feature("X20")
@pytest.mark.parametrize(("kind", "times"), [("sqlite", 4), ("postgresql", 1)])
async def test_a_gateway_that_is_killed_again_and_again_loses_nothing(
    tmp_path, capsys, pytestconfig, kind, times
):
    """About 130 kills on SQLite, and 32 on PostgreSQL."""
    seed = random.SystemRandom().randrange(1 << 30)
    store = make_database(get_server(pytestconfig), "killed") if kind == "postgresql" else ""
    async with campaign(tmp_path, seed, store) as held:
        places = failpoints(alone=False) if kind == "sqlite" else []
        plan = [lambda at=at: held.die_at(at, held.chance.randint(1, 4)) for at in places]
        plan += [held.die_somewhere] * 20 * times
        plan += [held.die_in_a_stream, held.die_in_a_summary] * 6 * times
        held.chance.shuffle(plan)
        for kill in plan:
            await kill()
        await held.go_on(2)
        told = judge(held, await held.faults())
    with capsys.disabled():
        sys.stdout.write(f"\nGateway on {kind}, seed {seed}: {told}\n")
