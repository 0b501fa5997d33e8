"""When the power fails, everything that was acknowledged is on the disk, and the file is whole."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from msgspec import Struct

from refold.stores.sqlite.store import SqliteStore
from tests.durability.checks import Line, Log, faults_of
from tests.durability.conversations import Author, compacted, engine, names, turn
from tests.durability.notes import clock_of
from tests.durability.power import Power, powered

PAGES = 40
"""The log is brought into the file after so many pages instead of a thousand, so that this is cut off too."""


class Cut(Struct):
    """A picture of the disk, and what had been acknowledged when it was taken."""

    files: dict[str, bytes]
    lines: list[Line]


class Blackouts:
    """Takes pictures at steps that nobody chose, while a conversation goes on."""

    def __init__(self, seed: int, every: int) -> None:
        self.chance, self.every, self.lines = random.Random(seed), every, list[Line]()
        self.power: Power | None = None
        self.cuts: list[Cut] = []
        self._left = 1

    def step(self) -> None:
        self._left -= 1
        if self._left <= 0 and self.power:
            self._left = self.chance.randint(1, 2 * self.every)
            lines = list(
                self.lines
            )  # first what was acknowledged, then what is there: never the other way round
            self.cuts.append(Cut(self.power.cut(self.chance), lines))


@contextmanager
def blackouts(folder: Path, seed: int, every: int = 60) -> Iterator[Blackouts]:
    folder.mkdir()
    found = Blackouts(seed, every)
    with powered(folder, found.step) as found.power:
        yield found


async def talk_on(talk, blackout: Blackouts, number: int) -> None:
    """One turn, noted as it goes; with a compaction or an undo now and then."""
    messages = turn(number, 150)
    blackout.lines.append(Line("intent", talk.id, tuple(names(messages))))
    await talk.add(*messages)
    blackout.lines.append(Line("said", talk.id, tuple(names(messages))))
    if number % 4 == 3:
        await compacted(talk)
    if number % 11 == 10:
        await talk.undo()


def lay_out(cut: Cut, folder: Path) -> None:
    folder.mkdir()
    for name, content in cut.files.items():
        (folder / name).write_bytes(content)


async def faults_after(cut: Cut, folder: Path) -> list[str]:
    """What is wrong after the power came back."""
    lay_out(cut, folder)
    store = await SqliteStore.open(folder / "talks.db")
    try:
        found = [f"integrity: {fault}" for fault in await store.check()]
        log, watcher = Log(cut.lines), engine(store, clock=clock_of(1))
        await watcher.sweep()
        return found + await faults_of(watcher, [log], log.conversations, recalled=4)
    finally:
        await store.close()
        shutil.rmtree(folder)


async def campaign(tmp_path: Path, cuts: int, seed: int, synchronous: str = "FULL") -> tuple[int, list[str]]:
    """How many cuts there were, and what was wrong after them."""
    done, found = 0, list[str]()
    with blackouts(tmp_path / "live", seed) as blackout:
        store = await SqliteStore.open(tmp_path / "live" / "talks.db")
        connection = store._file._writer.connection
        connection.wal_autocheckpoint(PAGES)
        connection.pragma("synchronous", synchronous)
        number = 0
        while done < cuts:
            # Another conversation every so often: a check reads what it is about from its beginning.
            talk = await engine(store, window=1_600, summariser=Author()).conversation(f"talk-{number // 20}")
            await talk_on(talk, blackout, number)
            await talk.ready()
            number += 1
            taken, blackout.cuts = blackout.cuts, []
            for cut in taken[: cuts - done]:
                done += 1
                found += [f"cut {done}: {fault}" for fault in await faults_after(cut, tmp_path / "after")]
            blackout.lines = [line for line in blackout.lines if line.conversation == talk.id]
        await store.close()
    return done, found


def test_the_layer_forgets_what_was_not_synced(tmp_path):
    """The test's own disk: without a sync nothing is certain, with one everything is."""
    (tmp_path / "live").mkdir()
    with powered(tmp_path / "live", lambda: None) as power:
        for synchronous, is_certain in (("OFF", False), ("FULL", True)):
            path = tmp_path / "live" / f"{synchronous}.db"
            connection = apsw.Connection(str(path))
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", synchronous)
            connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES ('here')")
            files = [power.cut(random.Random(seed)) for seed in range(20)]
            found = {
                b"here" in b"".join(content for name, content in one.items() if path.name in name)
                for one in files
            }
            assert found == ({True} if is_certain else {True, False})
            connection.close()


async def test_nothing_acknowledged_is_lost_when_the_power_fails(tmp_path, capsys):
    done, found = await campaign(tmp_path, 30, seed=1)
    with capsys.disabled():
        sys.stdout.write(f"\nPower: {done} cuts, wrong: {len(found)}\n")
    assert found == []


async def test_a_disk_that_is_not_waited_for_loses_what_was_acknowledged(tmp_path):
    """The checks tell good from bad: with less than the setting that the promise rests on, they find the loss."""
    _, found = await campaign(tmp_path, 10, seed=1, synchronous="NORMAL")
    assert any("lost" in fault for fault in found)


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_when_the_power_fails_again_and_again(tmp_path, capsys):
    seed = random.SystemRandom().randrange(1 << 30)
    done, found = await campaign(tmp_path, 1_000, seed=seed)
    with capsys.disabled():
        sys.stdout.write(f"\nPower, seed {seed}: {done} cuts, wrong: {len(found)}\n")
    assert found == []
