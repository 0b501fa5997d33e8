"""The HTTP server of the gateway: how the parts of an answer leave."""

from __future__ import annotations

import asyncio

from tests.gateway.served_gateway import serving

HEAD = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]}


async def test_the_head_of_an_answer_leaves_with_the_body_that_is_there():
    async def app(_, __, send):
        await send(START)
        await send({"type": "http.response.body", "body": b"hello"})

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(HEAD)
            answered = await reader.read(65_536)  # one packet
            assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answered.endswith(b"\r\n\r\nhello")
        writer.close()


async def test_the_head_of_an_answer_does_not_wait_for_a_body_that_is_not_there():
    goes_on = asyncio.Event()

    async def app(_, __, send):
        await send(START)
        await goes_on.wait()
        await send({"type": "http.response.body", "body": b"hello"})

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        goes_on.set()
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_an_answer_without_a_body_leaves_before_its_connection_is_closed():
    async def app(_, __, send):
        headers = [(b"connection", b"close"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        assert (await reader.read()).startswith(b"HTTP/1.1 204")
        writer.close()
