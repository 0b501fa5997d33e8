"""Limits of the requests that are served at the same time, at the gateway's door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anthropic
import openai
import pytest

from refold.config.tree import ServerSettings
from refold.gateway.admission import MIB, Admission
from refold.model.errors import Busy, TooManyRequests
from tests.gateway.conftest import served
from tests.gateway.faults.wires import connected

LARGE = "word " * (MIB // 5)


@asynccontextmanager
async def unfinished(gate, size: int) -> AsyncIterator[None]:
    """A request of which so many bytes have come, and no more come."""
    async with connected(gate.url) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size + 9}\r\n\r\n"
        client.writer.write(head.encode() + b" " * size)
        await client.writer.drain()
        await until(lambda: gate.gateway.admission.total_bytes >= size)
        async with aiohttp.ClientSession() as session, session.get(f"{gate.url}/refold/status") as told:
            assert (await told.json())["in_flight"]["bytes"] >= size
        yield
    await until(lambda: gate.gateway.admission.total_bytes == 0)


async def until(is_so) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  # counters raise no event
            await asyncio.sleep(0.001)


def ask(client, text: str):
    return client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": text}])


async def test_requests_that_are_too_large_together_are_refused_until_there_is_room(upstream):
    async with (
        served(upstream, server_max_in_flight_mb=2, summariser_enabled=False) as gate,
        gate.openai() as client,
    ):
        async with unfinished(gate, MIB + MIB // 2):
            with pytest.raises(openai.InternalServerError, match="too large together") as raised:
                await ask(client, LARGE)
            assert (raised.value.status_code, raised.value.response.headers["retry-after"]) == (503, "1")
            assert (await ask(client, "small ones go on")).choices
        assert (await ask(client, LARGE)).choices, "there is room again"
        await until(lambda: not gate.gateway.admission.requests)


async def test_one_owner_has_a_smaller_share_and_gets_another_status(upstream):
    async with (
        served(upstream, server_max_owner_in_flight_mb=2, summariser_enabled=False) as gate,
        gate.anthropic() as client,
        unfinished(gate, MIB + MIB // 2),
    ):
        with pytest.raises(anthropic.RateLimitError, match="of this owner") as raised:
            await client.messages.create(
                model="claude", max_tokens=9, messages=[{"role": "user", "content": LARGE}]
            )
        assert raised.value.response.headers["retry-after"] == "1"
        assert raised.value.body["error"]["type"] == "rate_limit_error"


async def test_a_body_without_a_stated_length_is_counted_as_it_comes(upstream):
    async with (
        served(upstream, server_max_in_flight_mb=1) as gate,
        unfinished(gate, MIB),
        connected(gate.url) as client,
    ):
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(4):
            client.writer.write(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
        head = await client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in head.lower()


async def test_a_single_request_may_be_larger_than_the_room_of_all(upstream):
    limits = {"server_max_in_flight_mb": 1, "server_max_owner_in_flight_mb": 1}
    async with served(upstream, **limits, summariser_enabled=False) as gate, gate.openai() as client:
        assert (await ask(client, 2 * LARGE)).choices


async def test_an_owner_has_so_many_requests_at_a_time(upstream):
    async with (
        served(upstream, server_max_requests_per_owner=1) as gate,
        gate.openai() as client,
    ):
        async with unfinished(gate, 1_000):
            with pytest.raises(openai.RateLimitError, match="1 requests of this owner") as raised:
                await ask(client, "Hello")
            assert raised.value.code == "rate_limit_exceeded"
        assert (await ask(client, "Hello")).choices


async def test_an_owner_has_so_many_requests_in_a_minute(upstream):
    async with (
        served(upstream, server_max_requests_per_minute=2) as gate,
        gate.openai() as client,
    ):
        for _ in range(2):
            await ask(client, "Hello")
        with pytest.raises(openai.RateLimitError, match="in a minute") as raised:
            await ask(client, "Hello")
        assert 1 <= int(raised.value.response.headers["retry-after"]) <= 31


def test_the_allowance_of_a_minute_refills_evenly_and_each_owner_has_one():
    now = [100.0]
    admission = Admission(ServerSettings(max_requests_per_minute=60), lambda: now[0])
    for _ in range(60):
        admission.enter("anna")
    with pytest.raises(TooManyRequests) as refused:
        admission.enter("anna")
    assert refused.value.retry_s == 1
    admission.enter("bob")
    now[0] += 1.0
    admission.enter("anna")
    with pytest.raises(TooManyRequests):
        admission.enter("anna")


async def test_an_owner_at_its_limit_leaves_room_for_others():
    admission = Admission(ServerSettings(max_in_flight_mb=10, max_owner_in_flight_mb=5))
    with admission.enter("anna") as first, admission.enter("bob") as second:
        first.grow(5 * MIB)
        with pytest.raises(TooManyRequests):
            admission.enter("anna", MIB)
        second.grow(4 * MIB)
        with pytest.raises(Busy, match="served are too large"):
            admission.enter("eve", 2 * MIB)
    assert (admission.total_bytes, dict(admission.requests)) == (0, {})
