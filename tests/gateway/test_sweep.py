"""A gateway that starts after a kill finishes what the killed process had in hand, once its leases have ended."""

from __future__ import annotations

import asyncio
import time

from refold.config import flag_layer, resolve
from refold.engine.summary_jobs import LEASE_S
from refold.gateway import server
from refold.stores.url import open_store
from tests.durability.conversations import Author, compacted, engine, turn

LEFT_S = 2.0
"""What is left of the killed process's lease when the gateway starts."""


async def test_the_doctor_is_content_soon_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "AFTER_LEASES_S", LEFT_S + 0.5)
    url, dead, began = f"sqlite:///{tmp_path}/talks.db", Author(waits=True), time.time()
    store = await open_store(url)
    talk = await engine(
        store, clock=lambda: began - LEASE_S + LEFT_S, summariser=dead, window=100_000
    ).conversation("talk")
    for number in range(10):
        await talk.add(*turn(number))
    writing = asyncio.create_task(compacted(talk))
    await dead.is_asked.wait()
    doctor = engine(store, window=100_000)
    settings = {"store.url": url, "upstreams": ["http://127.0.0.1:9/v1"]}
    async with server.open_gateway(resolve([flag_layer(settings)]), environ={}), asyncio.timeout(60):
        while time.time() < began + LEFT_S + 0.1:  # noqa: ASYNC110  # the lease ends by the clock
            await asyncio.sleep(0.05)
        while await doctor.examine("talk"):  # noqa: ASYNC110  # the sweep says nothing
            await asyncio.sleep(0.05)
        assert not [one for one in await store.unfinished(doctor.owner) if one.state == "running"]
    writing.cancel()
    await asyncio.wait({writing})
    await store.close()
