"""Two gateways, each a program of its own, on one PostgreSQL."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import aiohttp
import pytest

from refold.engine.engine import Engine
from refold.testing import ScriptedUpstream
from tests.contract.postgres import get_server, make_database
from tests.durability.checks import faults_of
from tests.durability.notes import clock_of
from tests.gateway.faults.clients import Talker, is_summary, named
from tests.gateway.faults.process import Program
from tests.program import command

WINDOW = "1600"


async def talk(talker: Talker, urls: list[str], session: aiohttp.ClientSession, turns: int) -> None:
    """Every turn by the other gateway."""
    for turn in range(turns):
        assert await talker.turn(session, urls[turn % 2])


async def talk_to_both(talker: Talker, urls: list[str], session: aiohttp.ClientSession, turns: int) -> None:
    """Every request to both at the same time, as a client that does not wait for its answer and asks again."""
    for _ in range(turns):
        talker.ask()
        twin = Talker(talker.name)
        twin.said = [*talker.said]
        done = await asyncio.gather(talker.turn(session, urls[0]), twin.turn(session, urls[1]))
        assert done == [True, True]


async def run_two(url: str, folder, turns: int) -> tuple[list[str], Counter[str]]:
    async with ScriptedUpstream(otherwise=named, window=None) as upstream, aiohttp.ClientSession() as session:
        words = (url, f"{upstream.url}/v1", "--window", WINDOW)
        start = {"home": folder, "command": command()}
        async with Program(*words, **start) as one, Program(*words, **start) as two:
            urls, talkers = (
                [one.url, two.url],
                [Talker("by-turns", 1), Talker("at-once", 2), Talker("too", 3)],
            )
            await asyncio.gather(
                talk(talkers[0], urls, session, turns),
                talk_to_both(talkers[1], urls, session, turns),
                talk(talkers[2], urls[::-1], session, turns),
            )
            await asyncio.gather(one.stop(), two.stop())
        figures = Counter(summaries=sum(map(is_summary, upstream.requests)))
    async with Engine(url, clock=clock_of(1), embedder=None) as engine:
        found = await faults_of(
            engine, [one.log for one in talkers], [one.name for one in talkers], recalled=None
        )
        children = [
            one for talker in talkers for one in await engine.sessions(talker.name) if _is_compaction(one)
        ]
        found += ["two won"] if len({one.parent for one in children}) < len(children) else []
    figures.update(messages=sum(len(one.log.said(one.name)) for one in talkers), compactions=len(children))
    return found, figures


def _is_compaction(session) -> bool:
    return session.kind == "compaction" and session.state == "live"


@pytest.mark.feature("X12")
async def test_two_gateways_serve_one_conversation_by_turns_and_at_once(tmp_path, pytestconfig):
    url = make_database(get_server(pytestconfig), "gateways")
    found, figures = await run_two(url, tmp_path, 8)

    assert found == []
    assert figures["compactions"]


@pytest.mark.slow
@pytest.mark.feature("X12")
async def test_two_gateways_serve_one_conversation_for_long(tmp_path, pytestconfig, capsys):
    url = make_database(get_server(pytestconfig), "gateways")
    found, figures = await run_two(url, tmp_path, 120)

    with capsys.disabled():
        sys.stdout.write(
            f"\nTwo gateways on PostgreSQL: {dict(figures)}; lost 0, doubled 0, one winner each\n"
        )
    assert found == []
