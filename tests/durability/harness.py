"""Kill the worker, look at what it left, start the next one; and count.

python -m tests.durability.harness KILLS [URL]     runs a campaign and prints its figures
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from msgspec import Struct

import refold.stores
from refold.engine.engine import Engine
from tests.durability.checks import RECALLED, Log, faults_of, read_ledger
from tests.durability.notes import CONVERSATIONS, OWNER, SETTINGS, clock_of, name_of
from tests.embedder import Subjects
from tests.program import command

ROOT = Path(__file__).parents[2]
ENDLESS = 1_000_000
PATIENCE_S = 60
"""For a program to come to where it is to die: far longer than any takes."""


class Figures(Struct):
    """What came of a campaign."""

    kills: int = 0
    messages: int = 0
    acts: int = 0
    compactions: int = 0
    asked: int = 0
    """Summaries that were asked for, as the author counts them."""
    repeated: int = 0
    """Of these, for work that was asked for before."""
    repeated_after_reply: int = 0
    stopped: int = 0
    """Of these, given up by the program itself before an answer came, because something else was to be summarised."""
    in_flight: int = 0
    """Work for which the author was asked, and the program killed before the answer was kept."""
    faults: list[str] = []
    seconds: float = 0.0

    def __str__(self) -> str:
        wrong = Counter(fault.split(": ")[1] if ": " in fault else fault for fault in self.faults)
        return (
            f"{self.kills} kills in {self.seconds:.0f} s: {self.messages} messages acknowledged in {self.acts} acts, "
            f"{self.compactions} compactions; wrong: {dict(wrong) or 0}; "
            f"summaries asked for {self.asked}, repeated {self.repeated} "
            f"({self.repeated_after_reply} after a stored reply; {self.in_flight} were killed in flight, "
            f"{self.stopped} stopped)"
        )


class Campaign:
    """One store, many programs."""

    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self.url, self.figures, self.run = url, Figures(), 0
        self.log, self.ledger = folder / "log", folder / "ledger"
        self.chance = random.Random(seed)
        self._stored: set[str] = set()

    def kill_somewhere(self) -> None:
        """Kill a program at a moment that nobody chose, now and then while it begins."""
        worker, begun = self._start(), self._size
        if self.chance.random() < 0.8:
            self._wait_until(lambda: self._size > begun, worker)
            time.sleep(self.chance.random() * 0.3)
        else:
            time.sleep(self.chance.random() * 0.8)
        worker.kill()
        self._ended(worker)

    def kill_at(self, failpoint: str, times: int) -> None:
        """Let a program die at a named place."""
        self._ended(self._start(f"{failpoint}:kill:{times}"))

    async def look(self, *, at_all: bool = False) -> None:
        """Check everything with another program; every finding is kept with the run that it was found after.

        `at_all` looks at every conversation once more, in the end; by then what the last run was paid for is accounted for.
        """
        log, engine = (
            Log.read(self.log),
            # Whoever looks mends nothing: a vector that is missing is to be seen.
            await Engine(self.url, clock=clock_of(self.run + 1), **{**SETTINGS, "embedder": None}).start(),
        )
        async with engine:
            names = [name_of(self.run, place) for place in range(CONVERSATIONS)]
            chosen = log.conversations if at_all else names
            found = await faults_of(engine, [log], chosen, recalled=None if at_all else RECALLED)
            lacking = await engine.store.unembedded(OWNER, Subjects.name)
            found += [f"{one.branch}: closed without a vector: {one.id}" for one in lacking]
            if at_all:
                self.figures.compactions = await _count_compactions(engine, log)
            else:
                await self._account(engine)
        self.figures.faults += [f"run {self.run}: {fault}" for fault in found]
        self.figures.messages = sum(len(log.said(name)) for name in log.conversations)
        self.figures.acts = log.acts.total()
        self.run += 1

    async def _account(self, engine: Engine) -> None:
        """What was paid for: the author's own ledger against the replies that are kept."""
        lines, figures = read_ledger(self.ledger), self.figures
        known = {one.id for one in lines if one.run < self.run}
        new = [one for one in lines if one.run == self.run]
        asked, stopped = (Counter(one.id for one in new if one.is_stopped is stop) for stop in (False, True))
        figures.asked += asked.total()
        figures.stopped += stopped.total()
        figures.repeated += asked.total() - len(asked.keys() - known)
        # Whoever is asked twice in one run without having been stopped had answered by then.
        answered = sum(max(0, times - stopped[which] - 1) for which, times in asked.items())
        figures.repeated_after_reply += answered + sum(
            asked[which] for which in asked if which in self._stored
        )
        self._stored |= {one.id for one in await engine.store.written(OWNER, sorted(asked))}
        figures.in_flight += len(asked.keys() - stopped.keys() - self._stored)

    @property
    def _size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def _start(self, failpoint: str = "") -> subprocess.Popen[bytes]:
        seed = self.chance.randrange(1 << 30)
        words = (self.url, self.log, self.ledger, self.run, seed, ENDLESS, self.run)
        return subprocess.Popen(
            [*command("tests.durability.worker"), *map(str, words)],
            cwd=ROOT,
            env={**os.environ, "REFOLD_FAILPOINT": failpoint},
            stderr=subprocess.PIPE,
        )

    def _wait_until(self, condition, worker: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition() and worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)

    def _ended(self, worker: subprocess.Popen[bytes]) -> None:
        try:
            _, words = worker.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()
            words = b"it never died"
        self.figures.kills += 1
        if worker.returncode != -signal.SIGKILL or words == b"it never died":
            self.figures.faults.append(
                f"run {self.run}: it did not die as it should: {words.decode()[-800:]}"
            )


async def _count_compactions(engine: Engine, log: Log) -> int:
    total = 0
    for name in log.conversations:
        head = await engine.store.head(OWNER, name)
        found = await engine.store.compactions(OWNER, head.branch, limit=10**9) if head else []
        total += sum(one.kind == "summarise" and one.state in {"installed", "undone"} for one in found)
    return total


def failpoints(*, alone: bool = True) -> list[str]:
    """Every name that the stores reach. A message that comes `alone` has a way of its own into SQLite: nothing else goes it, and
    in PostgreSQL it is one statement.
    """
    texts = [path.read_text() for path in Path(refold.stores.__file__).parent.rglob("*.py")]
    found = sorted({name for text in texts for name in re.findall(r'reach\("([\w.]+)"\)', text)})
    return found if alone else [name for name in found if not name.startswith(("append.", "here."))]


async def campaign(folder: Path, url: str, kills: int, *, seed: int, points: tuple[str, ...] = ()) -> Figures:
    """So many kills at random moments, and one at each of the named places."""
    begun, held = time.monotonic(), Campaign(folder, url, seed)
    plan: list[str] = [""] * kills + [*points]
    held.chance.shuffle(plan)
    for point in plan:
        if point:
            held.kill_at(point, held.chance.randint(1, 4))
        else:
            held.kill_somewhere()
        await held.look()
    held.run -= 1
    await held.look(at_all=True)
    held.figures.seconds = time.monotonic() - begun
    return held.figures


if __name__ == "__main__":
    count, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        chosen = rest[0] if rest else f"sqlite:///{place}/talks.db"
        done = asyncio.run(
            campaign(Path(place), chosen, int(count), seed=int(time.time()), points=tuple(failpoints()))
        )
    sys.stdout.write("\n".join((str(done), *done.faults[:40], "")))
