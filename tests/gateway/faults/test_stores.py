"""A store that is full, or that few can use at a time, and bodies that some stores would not take."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest

from refold.stores.postgres.store import Patience, PostgresStore
from refold.stores.sqlite.store import SqliteStore
from refold.testing import ScriptedUpstream
from tests.contract.postgres import get_server, make_database
from tests.durability.test_disk_full import few_pages, small_files
from tests.gateway.conftest import served
from tests.gateway.faults.bodies import FIELDS, HI, LISTS, around, said
from tests.gateway.faults.clients import Talker, named
from tests.gateway.faults.wires import PATHS, Line, RawUpstream, connected, record

CHAT = PATHS["chat"]
STREAMS = 60


async def stored(gate, name: str) -> list[str]:
    head = await gate.store.head("local", name)
    return [msgspec.json.decode(one.body)["content"] for one in await gate.store.messages(head)]


@pytest.mark.parametrize("limited", [few_pages, small_files])
async def test_a_full_disk_stops_nobody_and_what_came_meanwhile_is_kept_when_there_is_room(tmp_path, limited):
    path, talker = tmp_path / "talks.db", Talker("talk")
    store = await SqliteStore.open(path)
    async with (
        ScriptedUpstream(otherwise=named, window=None) as upstream,
        aiohttp.ClientSession() as session,
        served(upstream, store=store, window=100_000, summariser_enabled=False) as gate,
    ):
        assert await talker.turn(session, gate.url)
        with limited(store, path):
            while talker.told["x-refold-action"] != "not-kept":
                assert await talker.turn(session, gate.url)
                assert len(talker.said) < 1_000
        assert await talker.turn(session, gate.url)

        assert talker.told["x-refold-action"] == "passed"
        assert await stored(gate, "talk") == [one["content"] for one in talker.said[:-1]]
        assert await (await gate.gateway.host("local")).engine.examine("talk") == []
    await store.close()


async def test_streams_that_go_on_for_long_hold_no_connection_to_the_database(pytestconfig):
    url, may_end = make_database(get_server(pytestconfig), "streams"), asyncio.Event()
    recording = record("chat")

    async def answer(line: Line) -> None:
        await line.begin()
        await line.send(recording.bytes[:600])
        await may_end.wait()
        await line.send(recording.bytes[600:])
        await line.end("end")

    store = await PostgresStore.open(url, Patience(connections=2, wait_s=5))
    async with (
        RawUpstream(answer) as upstream,
        served(upstream, store=store) as gate,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(connected(gate.url)) for _ in range(STREAMS)]
        for number, client in enumerate(clients):
            await client.post(
                CHAT, recording.request, x_refold_conversation=f"talk-{number}", connection="close"
            )
        begun = await asyncio.gather(*(client.read_until(b"\r\n\r\n") for client in clients))
        in_use = store._driver._pool.get_stats()
        may_end.set()
        ended = await asyncio.gather(*(client.read_all() for client in clients))
        kept = [await gate.store.calls("local", f"talk-{number}") for number in range(STREAMS)]

        assert all(b"x-refold-action: passed" in one for one in begun)
        assert (in_use.get("requests_waiting", 0), in_use["pool_available"]) == (0, in_use["pool_size"])
        assert all(b"[DONE]" in one for one in ended)
        assert [len(one) for one in kept] == [1] * STREAMS
    await store.close()


async def test_postgres_takes_what_a_client_may_say(pytestconfig):
    """It knows no NUL in a text: neither in a name, nor in what was said, nor in a path."""
    url = make_database(get_server(pytestconfig), "bodies")
    store, wrong = await PostgresStore.open(url), {}
    odd = {what: around("chat", HI, field) for what, field in FIELDS.items() if "NUL" in what}
    odd |= {what: around("chat", LISTS[what]) for what in ("a NUL in a text", "half a character")}
    odd["a call with a NUL"] = around(
        "chat", said(b'"a"', b'"assistant"', b',"tool_calls":[{"id":"a\\u0000","type":"function","function":{"name":"f\\u0000","arguments":"\\u0000"}}]')
    )  # fmt: skip
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, store=store, summariser_enabled=False) as gate,
    ):
        for what, body in odd.items():
            status, told, _ = await gate.post(CHAT, body)
            wrong |= {} if status < 500 and told["x-refold-action"] != "failed" else {what: (status, told)}
        async with aiohttp.ClientSession() as session:
            for path in ("conversations/%00", "conversations?words=%00", "conversations/x?branch=%00"):
                async with session.get(f"{gate.url}/refold/{path}") as response:
                    wrong |= {} if response.status in (200, 404) else {path: response.status}
    await store.close()

    assert wrong == {}
