"""Several processes that serve one port: `refold serve --workers N`.

The parent holds the listening socket and serves nothing itself. Each child is the program again, with the same arguments, and takes
the socket over a pipe (`Handover`). A child that dies is replaced. SIGTERM ends all of them, SIGHUP replaces one after the other:
the next one is ready before the last one stops, so no request fails. Children end when their parent does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import MutableMapping
from contextlib import suppress

import msgspec
from msgspec import Struct

HANDOVER = "REFOLD_HANDOVER"
"""The variable with the number of the pipe that a child reads its handover from."""
QUICK_S = 5.0
"""A child that lives shorter than this is replaced after a pause, twice as long each time."""
MAX_PAUSE_S = 10.0
END_S = 10.0
"""Seconds for a child to end after its answers in progress have ended: it stores its backlog and gives leases back."""

_log = logging.getLogger("refold.gateway")


class LocalModel(Struct, frozen=True):
    """The model on this machine that the parent runs for all children."""

    base_url: str
    key: str
    window: int
    description: str


class Handover(Struct, frozen=True):
    """What a child gets from its parent."""

    socket: int
    """The number of the listening socket."""
    ready: int
    """The number of the pipe that it writes to when it answers."""
    parent: int
    """The number of the pipe that ends with the parent."""
    index: int
    is_first: bool
    """Whether it writes the notice for people."""
    local: LocalModel | None = None


def take_handover(environ: MutableMapping[str, str] = os.environ) -> Handover | None:
    """Read what the parent hands over, once; None in a process that has none."""
    number = environ.pop(HANDOVER, "")
    if not number:
        return None
    with os.fdopen(int(number), "rb", closefd=False) as pipe:
        return msgspec.json.decode(pipe.readline(), type=Handover)


class Child:
    """A process that serves."""

    def __init__(self, process: asyncio.subprocess.Process, ready: int, parent: int, index: int) -> None:
        self.process, self.index = process, index
        self._ready = ready
        self._pipes: tuple[int, ...] = (ready, parent)
        self.serves = False
        self.began = time.monotonic()
        self.ended = asyncio.create_task(process.wait())

    async def is_ready(self) -> bool:
        """Wait until it answers; False if it ended before."""
        loop = asyncio.get_running_loop()
        answers = asyncio.Event()
        loop.add_reader(self._ready, answers.set)
        waiting = asyncio.create_task(answers.wait())
        try:
            await asyncio.wait({waiting, self.ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._ready)
            waiting.cancel()
        self.serves = answers.is_set() and bool(os.read(self._ready, 1))
        return self.serves

    async def stop(self, seconds: float) -> None:
        """Stop it while others serve: they take the new connections."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        await self._end_within(seconds)

    async def end(self, seconds: float) -> None:
        """Stop it with all others: it refuses new requests as one process alone does. The end of the pipe tells it; one that does
        not serve yet is just ended.
        """
        self.close()
        if not self.serves:
            with suppress(ProcessLookupError):
                self.process.terminate()
        await self._end_within(seconds)

    async def _end_within(self, seconds: float) -> None:
        await asyncio.wait({self.ended}, timeout=seconds)
        if not self.ended.done():
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.ended

    def close(self) -> None:
        pipes, self._pipes = self._pipes, ()
        for one in pipes:
            os.close(one)


class ProcessGroup:
    """The children of one port."""

    def __init__(
        self, listening: socket.socket, count: int, *, end_s: float, local: LocalModel | None
    ) -> None:
        self._listening, self._count, self._end_s = listening, count, end_s
        self._local = local
        self._children: list[Child] = []
        self._pause_s = 0.0

    async def run(self) -> int:
        """Serve until told to stop; the result is the exit code."""
        stopping, rolling = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        loop.add_signal_handler(signal.SIGINT, stopping.set)
        loop.add_signal_handler(signal.SIGHUP, rolling.set)
        try:
            for index in range(self._count):
                self._children.append(await self._start(index, is_first=index == 0))
            for child in self._children:
                if not await self._until_ready(child, stopping):
                    return 0 if stopping.is_set() else child.process.returncode or 1
            await self._watch(stopping, rolling)
            return 0
        finally:
            self._listening.close()  # once the children have closed theirs, a new connection does not wait for nobody
            await asyncio.gather(*(one.end(self._end_s) for one in self._children))

    async def _until_ready(self, child: Child, stopping: asyncio.Event) -> bool:
        waits = asyncio.create_task(child.is_ready()), asyncio.create_task(stopping.wait())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        waits[1].cancel()
        if not waits[0].done():
            waits[0].cancel()
            return False
        return waits[0].result()

    async def _watch(self, stopping: asyncio.Event, rolling: asyncio.Event) -> None:
        while not stopping.is_set():
            told = [asyncio.create_task(stopping.wait()), asyncio.create_task(rolling.wait())]
            ends = [one.ended for one in self._children]
            await asyncio.wait([*told, *ends], return_when=asyncio.FIRST_COMPLETED)
            for one in told:
                one.cancel()
            if stopping.is_set():
                return
            if rolling.is_set():
                rolling.clear()
                await self._roll(stopping)
            for child in [one for one in self._children if one.ended.done()]:
                await self._replace(child, stopping)

    async def _replace(self, child: Child, stopping: asyncio.Event) -> None:
        """Start another child in the place of one that died."""
        _log.warning("a process of the gateway ended with %s and is replaced", child.process.returncode)
        has_lived = time.monotonic() - child.began >= QUICK_S
        self._pause_s = 0.0 if has_lived else min(MAX_PAUSE_S, max(0.2, 2 * self._pause_s))
        if self._pause_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._pause_s)
        if not stopping.is_set():
            self._children[self._children.index(child)] = await self._start(child.index)
            child.close()

    async def _roll(self, stopping: asyncio.Event) -> None:
        """Replace each child, the next one after the last one is done."""
        for old in list(self._children):
            new = await self._start(old.index)
            if not await self._until_ready(new, stopping):
                await new.stop(self._end_s)
                new.close()
                _log.warning("a new process of the gateway did not start, and the old ones go on")
                return
            self._children[self._children.index(old)] = new
            await old.stop(self._end_s)
            old.close()

    async def _start(self, index: int, *, is_first: bool = False) -> Child:
        ready, child_ready = os.pipe()
        child_parent, parent = os.pipe()
        number = self._listening.fileno()
        handed = Handover(
            socket=number,
            ready=child_ready,
            parent=child_parent,
            index=index,
            is_first=is_first,
            local=self._local,
        )
        os.write(parent, msgspec.json.encode(handed) + b"\n")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "refold",
            *sys.argv[1:],
            pass_fds=(number, child_ready, child_parent),
            env={**os.environ, HANDOVER: str(child_parent)},
        )
        os.close(child_ready)
        os.close(child_parent)
        return Child(process, ready, parent, index)
