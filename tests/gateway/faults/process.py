"""The real gateway, as a program of its own: started, killed, started again."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60
"""For a program to begin or to end: far longer than any takes."""


class Program:
    """`refold serve` with a store and an upstream. What it says on stdout and stderr is kept."""

    def __init__(
        self,
        store: str,
        upstream: str,
        *flags: str,
        home: Path,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "refold"),
    ) -> None:
        self._command = command
        self._words = ("serve", "--port", "0", "--store", store, "--upstream", f"stub={upstream}",
                       "--upstreams-formats", "stub=chat,responses,anthropic", *flags)  # fmt: skip
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
        self._environ = {
            **kept,
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home),
            "XDG_DATA_HOME": str(home),
            **(environ or {}),
        }
        self._home, self.url = home, ""
        self.out, self.err = bytearray(), bytearray()

    async def start(self, failpoint: str = "") -> Self:
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        environ = {**self._environ, "REFOLD_FAILPOINT": failpoint, "PYTHONPATH": path}
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *self._words,
            cwd=self._home,
            env=environ,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        first = asyncio.Event()
        self._readers = [
            asyncio.create_task(_collect(self._process.stdout, self.out, first)),
            asyncio.create_task(_collect(self._process.stderr, self.err)),
        ]
        async with asyncio.timeout(PATIENCE_S):
            await first.wait()
        lines = [line for line in self.out.decode().splitlines() if line.startswith("http://")]
        assert lines, self.err.decode()[-2_000:]
        self.url = lines[-1].strip()
        return self

    @property
    def process(self) -> Process:
        return self._process

    async def kill(self) -> None:
        """kill -9, at once."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self.ended()

    async def stop(self) -> None:
        """As an operator does."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        await self.ended()

    async def ended(self) -> int:
        """Wait for its end: how it ended."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._readers)
            return await self._process.wait()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


async def _collect(
    stream: asyncio.StreamReader | None, kept: bytearray, first: asyncio.Event | None = None
) -> None:
    assert stream is not None
    begun = len(kept)
    while piece := await stream.read(1 << 16):
        kept += piece
        if first is not None and b"\n" in kept[begun:]:
            first.set()
    if first is not None:
        first.set()
