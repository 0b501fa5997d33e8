"""Two programs at the same conversations: whoever is second sees what the first did, and nothing forks."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from refold.engine.engine import Engine
from tests.contract.postgres import get_server, make_database
from tests.durability.checks import Log, faults_of, read_ledger
from tests.durability.harness import ROOT
from tests.durability.notes import OWNER, SETTINGS, clock_of
from tests.program import command


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request, tmp_path, pytestconfig) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    return make_database(get_server(pytestconfig), "shared")


def run_together(folder, url: str, acts: int) -> list[Log]:
    """Two programs that do so many acts in each of the same conversations; their logs."""
    programs = []
    for run in range(2):
        words = (url, folder / f"log{run}", folder / f"ledger{run}", run, 7 + run, acts, 0)
        worker = [*command("tests.durability.worker"), *map(str, words)]
        programs.append(subprocess.Popen(worker, cwd=ROOT, stderr=subprocess.PIPE))
    said = [program.communicate(timeout=300)[1].decode() for program in programs]
    assert [program.returncode for program in programs] == [0, 0], said
    return [Log.read(folder / f"log{run}") for run in range(2)]


@pytest.mark.feature("X12")
@pytest.mark.parametrize("acts", [15, pytest.param(300, marks=pytest.mark.slow)])
async def test_two_programs_compact_one_branch_and_it_stays_one_line(tmp_path, shared_url, acts, capsys):
    logs = run_together(tmp_path, shared_url, acts)
    async with Engine(shared_url, clock=clock_of(1), **SETTINGS) as engine:
        names = logs[0].conversations
        assert await faults_of(engine, logs, names, recalled=None) == []
        sessions = [one for name in names for one in await engine.sessions(name, limit=10**6)]
        children = [one for one in sessions if one.kind == "compaction" and one.state == "live"]
        assert len({one.parent for one in children}) == len(children)
        said = sum(len(log.said(name)) for log in logs for name in names)
        lines = [line for run in range(2) for line in read_ledger(tmp_path / f"ledger{run}")]
        asked, stopped = [
            Counter(one.id for one in lines if one.is_stopped is stop) for stop in (False, True)
        ]
        stored = {one.id for one in await engine.store.written(OWNER, sorted(asked))}
    with capsys.disabled():
        sys.stdout.write(
            f"\nTwo programs: {said} messages, {len(children)} live compactions, forks 0, "
            f"{asked.total()} summaries asked for, {stopped.total()} stopped, {asked.total() - len(asked)} repeated\n"
        )
    # Nobody died: every answer was kept, and nothing was asked for that somebody else had in hand.
    assert all(times <= 1 + stopped[which] for which, times in asked.items())
    assert {which for which, times in asked.items() if times > stopped[which]} <= stored
