"""Clients that ask and do not read: what they are sent waits at the provider, not in the gateway's memory."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway.faults.bodies import HI, around, said
from tests.gateway.faults.process import PATIENCE_S, Program
from tests.gateway.faults.wires import Line, RawUpstream, connected, record, split_answer

CLIENTS = 50
REPLY_BYTES = 16 * 1024 * 1024
"""Of each reply: all of them together would be most of a gigabyte."""
MOST_EACH = 4 * 1024 * 1024
"""Of memory for a client that does not read: what the system keeps, the buffers on both sides, and what was read along."""
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"word " * 50) * 100
QUICK = around("chat", said(b'"be quick"'), b',"stream":true')


class Flood:
    """A provider that says more than anybody reads; to those who want it quick, a few words."""

    def __init__(self) -> None:
        self.sent: dict[Line, int] = {}

    async def __call__(self, line: Line) -> None:
        await line.begin()
        if not line.body:  # a question about the models
            await line.end("end")
            return
        if line.body == QUICK:
            await line.send(record("chat").bytes)
            await line.end("end")
            return
        self.sent[line] = 0
        while self.sent[line] < REPLY_BYTES:
            await line.send(PIECE)
            self.sent[line] += len(PIECE)
        await line.end("end")

    async def stalled(self) -> None:
        """Wait until nothing more is taken from any of them."""
        async with asyncio.timeout(PATIENCE_S):
            before: list[int] = []
            while (
                len(before) < CLIENTS or before != [*self.sent.values()] or not all(map(_is_full, self.sent))
            ):
                before = [*self.sent.values()]
                await asyncio.sleep(0.05)


def _is_full(line: Line) -> bool:
    return line._out.transport.get_write_buffer_size() > 0


@contextmanager
def deaf(url: str) -> Iterator[None]:
    """Clients that send a request each, and look at nothing."""
    host, port = url.removeprefix("http://").split(":")
    body, held = around("chat", HI, b',"stream":true'), []
    for number in range(CLIENTS):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        one.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-refold-conversation: deaf-{number}\r\n"
        one.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        held.append(one)
    try:
        yield
    finally:
        for one in held:
            one.close()


def peak_of(program: Program) -> int:
    """The most memory that a program ever had, in bytes."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def be_quick(program: Program) -> None:
    async with asyncio.timeout(PATIENCE_S), connected(program.url) as client:
        await client.post("/v1/chat/completions", QUICK, connection="close")
        _, got, is_ended = split_answer(await client.read_all())
        assert (got, is_ended) == (record("chat").bytes, True)


@pytest.mark.feature("X20")
@pytest.mark.skipif(sys.platform != "linux", reason="tells its memory elsewhere")
async def test_clients_that_do_not_read_cost_little_and_keep_nobody_waiting(tmp_path):
    flood = Flood()
    async with (
        RawUpstream(flood) as upstream,
        Program(
            f"sqlite:///{tmp_path}/talks.db",
            f"{upstream.url}/v1",
            "--compaction-window",
            "128k",
            "--store-embedder",  # it is loaded once, in the background: its memory is not that of a client
            "off",
            home=tmp_path,
        ) as program,
    ):
        await be_quick(program)
        before = peak_of(program)
        with deaf(program.url):
            await flood.stalled()
            grown = peak_of(program) - before
            await asyncio.gather(*(be_quick(program) for _ in range(5)))

    assert grown < CLIENTS * MOST_EACH
    assert max(flood.sent.values()) < REPLY_BYTES
