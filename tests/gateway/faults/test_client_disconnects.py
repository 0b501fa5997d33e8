"""Clients that go away, and clients that do not read."""

from __future__ import annotations

import asyncio
import random
import sys

import msgspec
import pytest

from refold.stores.memory import MemoryStore
from tests.gateway.conftest import served
from tests.gateway.faults.wires import PATHS, Client, Line, RawUpstream, Recording, connected, record

SEED = 20_261_118
PATIENCE_S = 10
"""Until a test that hangs is said to have failed."""
NOT_BEGUN, NO_HEADERS = -2, -1
"""Places to leave at: before the provider has answered with anything, and before it has said anything."""


class Noting(MemoryStore):
    """A store that says when a call was kept."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_kept: asyncio.Queue[str] = asyncio.Queue()

    async def commit(self, head, batch):
        done = await super().commit(head, batch)
        for call in batch.calls:
            self.calls_kept.put_nowait(call.id)
        return done


class Stalled:
    """A provider that sends so much of a recording, and then waits until it is left."""

    def __init__(self, recording: Recording, at: int) -> None:
        self.recording, self.at = recording, at
        self.has_sent, self.is_left = asyncio.Event(), asyncio.Event()

    async def __call__(self, line: Line) -> None:
        if self.at > NOT_BEGUN:
            await line.begin()
        await line.send(self.recording.bytes[: max(0, self.at)])
        self.has_sent.set()
        await line.left()
        self.is_left.set()

    @property
    def expected(self) -> bytes:
        """What the client has by then: nothing before the first word was said, then whole events."""
        came = self.recording.bytes[: max(0, self.at)]
        events = came[: came.rfind(b"\n\n") + 2]
        return events if self.recording.text[:5].encode() in events else b""


def open_things() -> tuple[int, int]:
    """Tasks and connections of this loop."""
    loop = asyncio.get_running_loop()
    return len(asyncio.all_tasks()), len(loop._selector.get_map())


async def settle(until) -> None:
    """Let everything that is ready run, until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not until():  # noqa: ASYNC110  # nothing says when a task or a connection is gone
            await asyncio.sleep(0)


async def leave_at(gate, upstream: RawUpstream, recording: Recording, at: int) -> list[str]:
    """What is wrong after a client has left at a byte."""
    upstream.answer = stalled = Stalled(recording, at)
    async with asyncio.timeout(PATIENCE_S), connected(gate.url) as client:
        await client.post(
            recording.path, recording.request, x_refold_conversation=f"left-{recording.format}-{at}"
        )
        await stalled.has_sent.wait()
        if stalled.expected:
            await _read(client, stalled.expected)
        client.leave()
        await stalled.is_left.wait()
        kept = msgspec.json.decode(await gate.store.reply_to("local", await gate.store.calls_kept.get()))
    found = [] if kept["is_whole"] is (at >= recording.whole) else [f"kept as whole: {kept['is_whole']}"]
    if not kept["is_whole"] and not recording.text.startswith(kept["text"]):
        found.append("something else is kept than was said")
    return [f"{recording.format} at {at}: {one}" for one in found]


async def _read(client: Client, expected: bytes) -> None:
    """Read until all of it came: its last bytes stand nowhere else."""
    got = b""
    while expected[-60:] not in got:
        got += await client.reader.read(1 << 16)


async def run_leaving(places: int) -> tuple[int, list[str]]:
    count, found = 0, []
    async with (
        RawUpstream(lambda line: line.end("close")) as upstream,
        served(upstream, store=Noting(), window=128_000) as gate,
    ):
        await leave_at(gate, upstream, record("chat"), 0)
        await settle(lambda: True)
        before = open_things()
        for name in PATHS:
            recording = record(name)
            where = random.Random(SEED).sample(range(len(recording.bytes)), places)
            for at in (NOT_BEGUN, NO_HEADERS, 0, *where):
                found += await leave_at(gate, upstream, recording, at)
                count += 1
        await settle(lambda: open_things() <= before)
    return count, found


@pytest.mark.feature("X20")
async def test_a_client_that_goes_away_ends_the_call_at_the_provider_and_what_came_is_kept():
    count, found = await run_leaving(10)

    assert found == []
    assert count == 39


@pytest.mark.slow
@pytest.mark.feature("X20")
async def test_clients_that_go_away_anywhere_leave_nothing_behind(capsys):
    count, found = await run_leaving(200)

    with capsys.disabled():
        sys.stdout.write(
            f"\nClients that left: {count}; provider closed {count}; wrong {len(found)}; left behind 0\n"
        )
    assert found == []
