"""Two gateways on one PostgreSQL behind Caddy, with the configuration of `deploy/`: each is restarted under load, and no request fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from refold.engine.engine import OWNER, Engine
from refold.gateway.auth import mint
from refold.stores.url import open_store
from refold.testing import ScriptedUpstream
from tests.contract.postgres import get_server, make_database
from tests.durability.checks import faults_of
from tests.durability.notes import clock_of
from tests.gateway.faults.clients import Talker, is_summary, named
from tests.gateway.faults.process import Program
from tests.program import command

ROOT = Path(__file__).parents[2]
HANG_S, TALKS = 180, 6


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


async def status(session: aiohttp.ClientSession, url: str) -> int:
    try:
        async with session.get(f"{url}/readyz") as response:
            return response.status
    except aiohttp.ClientError:
        return 0


@pytest.mark.slow
async def test_a_rolling_restart_fails_no_request(tmp_path, pytestconfig):
    caddy = shutil.which("caddy") or pytest.skip("there is no caddy here")
    store = make_database(get_server(pytestconfig), "rolling")
    opened = await open_store(store)
    key, kept = mint(OWNER, at=1.0)
    await opened.add_key(kept)
    await opened.close()
    ports, front = [free_port(), free_port()], free_port()
    talkers = [Talker(f"talk-{number}", number) for number in range(TALKS)]
    for talker in talkers:
        talker._headers["x-refold-key"] = key
    failed, is_over = list[str](), asyncio.Event()

    async def talk(talker: Talker, session: aiohttp.ClientSession) -> None:
        while not is_over.is_set():
            if not await talker.turn(session, f"http://127.0.0.1:{front}"):
                failed.append(talker.name)

    async with (
        asyncio.timeout(HANG_S),
        ScriptedUpstream(otherwise=named, window=None) as upstream,
        aiohttp.ClientSession() as session,
    ):
        flags = ("--window", "2500", "--server-drain-s", "3")
        gateways = [
            Program(
                store, f"{upstream.url}/v1", *flags, "--port", str(port), home=tmp_path, command=command()
            )
            for port in ports
        ]
        environ = {
            **os.environ,
            "HOME": str(tmp_path),
            "REFOLD_SITE": f"http://127.0.0.1:{front}",
            "REFOLD_GATEWAYS": " ".join(f"127.0.0.1:{port}" for port in ports),
        }
        argv = (caddy, "run", "--adapter", "caddyfile", "--config", str(ROOT / "deploy/Caddyfile"))
        async with gateways[0], gateways[1]:
            balancer = await asyncio.create_subprocess_exec(
                *argv, env=environ, stderr=asyncio.subprocess.DEVNULL, cwd=tmp_path
            )
            try:
                while await status(session, f"http://127.0.0.1:{front}") != 200:
                    assert balancer.returncode is None
                talking = [asyncio.create_task(talk(talker, session)) for talker in talkers]
                for gateway in gateways:
                    gateway.process.send_signal(signal.SIGTERM)
                    assert await gateway.ended() == 0
                    await gateway.start()
                    while await status(session, gateway.url) != 200:
                        pass
                    # The balancer, which asks every second, sends requests there again.
                    back = gateway.err.count(b"POST /v1/chat/completions")
                    while gateway.err.count(b"POST /v1/chat/completions") < back + TALKS:
                        await asyncio.wait(talking, timeout=0.05)
                is_over.set()
                await asyncio.gather(*talking)
            finally:
                balancer.terminate()
                await balancer.wait()
        assert any(map(is_summary, upstream.requests))
    async with Engine(store, clock=clock_of(1), embedder=None) as engine:
        found = await faults_of(
            engine, [one.log for one in talkers], [one.name for one in talkers], recalled=None
        )
    assert failed == []
    assert found == []
