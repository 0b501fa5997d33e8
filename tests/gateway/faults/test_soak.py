"""Many requests over many conversations: the memory of the gateway stays flat."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import aiohttp
import pytest

from refold.testing import ScriptedUpstream
from tests.gateway.faults.process import Program

AT_ONCE = 16
TURNS = 10
"""Requests of one conversation."""
TENTHS = 10
GROWTH = 1.10
"""Largest size at the end, as a multiple of the size at half: what is kept for conversations is bounded by then."""
ROOM_MB = 20


def rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1_024 for line in lines if line.startswith("VmRSS"))


async def soak(folder: Path, conversations: int) -> tuple[list[float], int]:
    """Hold so many conversations of ten requests each; the memory in MB at each tenth, and the requests that failed."""
    chance, failed, sizes = random.Random(7), 0, list[float]()
    todo = iter(range(conversations))
    async with (
        ScriptedUpstream(otherwise="It is done.", window=None) as upstream,
        Program(f"sqlite:///{folder}/talks.db", upstream.url, home=folder) as program,
        aiohttp.ClientSession(program.url) as session,
    ):

        async def talk(number: int) -> int:
            said, wrong = list[dict[str, str]](), 0
            for turn in range(TURNS):
                said.append(
                    {"role": "user", "content": f"{number}/{turn}: " + "word " * chance.randint(5, 60)}
                )
                async with session.post(
                    "/v1/chat/completions", json={"model": "gpt-5", "messages": said}
                ) as reply:
                    told = await reply.json()
                    wrong += reply.status != 200
                said.append(
                    told["choices"][0]["message"]
                    if "choices" in told
                    else {"role": "assistant", "content": ""}
                )
            return wrong

        async def work(limit: int) -> None:
            nonlocal failed
            for number in todo:
                failed += await talk(number)
                upstream.requests.clear()
                if number >= limit:
                    return

        for tenth in range(1, TENTHS + 1):
            await asyncio.gather(*(work(conversations * tenth // TENTHS - AT_ONCE) for _ in range(AT_ONCE)))
            sizes.append(rss_mb(program.process.pid))
    return sizes, failed


async def test_every_request_of_a_soak_is_answered(tmp_path):
    sizes, failed = await soak(tmp_path, 20)
    assert failed == 0
    assert len(sizes) == TENTHS


@pytest.mark.slow
async def test_memory_is_flat_over_two_hundred_thousand_requests(tmp_path, capsys):
    sizes, failed = await soak(tmp_path, 20_000)
    with capsys.disabled():
        told = " ".join(f"{size:.0f}" for size in sizes)
        sys.stdout.write(
            f"\nSoak: 200,000 requests of 20,000 conversations, {failed} failed; MB at each tenth: {told}\n"
        )
    assert failed == 0
    assert sizes[-1] <= GROWTH * sizes[TENTHS // 2 - 1] + ROOM_MB
