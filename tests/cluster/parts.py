"""The parts of a cluster, each a program of its own: gateways, workers, a scripted provider that writes down what it was asked.

A part is started with the settings that operators have. Its output is in a file, so that a pipe never stops it.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

from refold.testing import Received
from tests.e2e.test_gateway_sdks import prose
from tests.program import command

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""For a part to be where a test wants it: far longer than any takes."""
WINDOW = 4_000
DONE = "The books were squared away gladly."
SUMMARY = f"## Goal\nTell the story of the ships.\n## Progress\n### Done\n{DONE}"


def is_question(received: Received) -> bool:
    """Is it a summary that is asked for?"""
    return b"checkpoint" in received.body.lower() or b"summar" in received.body[-4_000:].lower()


def either(received: Received) -> str:
    return SUMMARY if is_question(received) else "Fine."


class Part:
    """A process of the cluster."""

    def __init__(
        self,
        folder: Path,
        name: str,
        args: Sequence[str],
        env: dict[str, str],
        *,
        before: Sequence[str] = (),
        forked: bool = True,
    ) -> None:
        self.name, self._args, self._env, self._before = name, [*args], env, [*before]
        self._forked = forked
        self._output, self.runs = folder / f"{name}.out", 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.runs += 1
        # A fork of a program with its modules in memory; a program in another network namespace is started anew.
        program = command() if self._forked and not self._before else [sys.executable, "-m", "refold"]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*self._before, *program, *self._args],
                cwd=ROOT,
                env={**os.environ, **self._env},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> Path:
        return self._output.with_suffix(f".{self.runs}.out")

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    async def until(self, pattern: str) -> str:
        """Wait until it has said something, and return that."""
        return await until(lambda: (found := re.search(pattern, self.said)) and found[0], self)

    async def ready(self) -> str:
        """Wait until it works; the address of a gateway."""
        return await self.until(r"(?m)^http://\S+$|the worker takes jobs")

    def send(self, which: signal.Signals) -> None:
        assert self.process
        os.killpg(self.process.pid, which)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process
        self.process.wait()

    async def stop(self, which: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to stop, and return its exit code."""
        process = self.process
        if process is None or process.poll() is not None:
            return process.returncode if process else 0
        process.send_signal(which)
        return await asyncio.to_thread(process.wait, PATIENCE_S)

    @property
    def pid(self) -> int:
        """The process itself, if it was not forked from one that has its modules in memory."""
        assert self.process
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


async def until(
    condition: Callable[[], Any], part: Part | None = None, patience_s: float = PATIENCE_S
) -> Any:
    """Wait until a condition holds, and return its value."""
    ends = time.monotonic() + patience_s
    while not (found := condition()):
        said = part.said if part else ""
        assert part is None or part.is_alive, said
        assert time.monotonic() < ends, f"it took too long: {said[-2_000:]}"
        await asyncio.sleep(0.01)
    return found


class Cluster:
    """Gateways and workers on one store and one provider."""

    def __init__(self, folder: Path, store: str, upstream: str, **settings: str) -> None:
        self._folder, self.store = folder, store
        self.parts: list[Part] = []
        self.env = {
            "REFOLD_STORE_URL": store,
            "REFOLD_UPSTREAMS_MAIN_URL": f"{upstream}/v1",
            "REFOLD_UPSTREAMS_MAIN_KEY_ENV": "OPERATORS_KEY",
            "OPERATORS_KEY": "operators-own",
            "REFOLD_COMPACTION_WINDOW": str(WINDOW),
            "REFOLD_CLUSTER_JOBS": "true",
            "REFOLD_CLUSTER_LEASE_S": "3",
            "XDG_CONFIG_HOME": str(folder),
            **{f"REFOLD_{name.upper()}": value for name, value in settings.items()},
        }

    def gateway(self, *args: str, name: str = "", port: int = 0, **options: Any) -> Part:
        return self._part(
            name or f"gateway{len(self.parts)}", ("serve", "--port", str(port), *args), **options
        )

    def worker(self, *args: str, name: str = "", **options: Any) -> Part:
        return self._part(name or f"worker{len(self.parts)}", ("worker", *args), **options)

    def _part(self, name: str, args: Sequence[str], **options: Any) -> Part:
        part = Part(self._folder, name, args, self.env, **options)
        self.parts.append(part)
        part.start()
        return part

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for part in self.parts:
            if part.is_alive:
                part.send(signal.SIGCONT)
        await asyncio.gather(*(part.stop() for part in self.parts), return_exceptions=True)
        for part in self.parts:
            if part.is_alive:
                part.kill()


class Client:
    """A client that sends its whole history with each request, as clients do, to any gateway."""

    def __init__(self, name: str, *, words: int = 60, **headers: str) -> None:
        self.name, self._words = name, words
        self.headers = {"x-refold-conversation": name, "content-type": "application/json", **headers}
        self.messages: list[dict[str, str]] = []
        self.actions: list[str] = []
        self.slowest_s = 0.0

    async def say(self, session: aiohttp.ClientSession, address: str, **more: object) -> str:
        """Send the next message, and return the reply. After an error the same message is sent again next time."""
        turn = len(self.messages) // 2
        asked = {"role": "user", "content": f"{self.name}, chapter {turn}: {prose(turn, self._words)}"}
        body = {"model": "gpt-5", "messages": [*self.messages, asked], "max_tokens": 100, **more}
        began = time.monotonic()
        async with session.post(
            f"{address}/v1/chat/completions", data=io.BytesIO(json.dumps(body).encode()), headers=self.headers
        ) as answer:
            found = await answer.json()
            assert answer.status == 200, found
            self.actions.append(answer.headers["x-refold-action"])
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        reply = found["choices"][0]["message"]["content"]
        self.messages += [asked, {"role": "assistant", "content": reply}]
        return reply
