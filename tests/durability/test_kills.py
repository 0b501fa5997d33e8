"""Killed at any moment, a program loses nothing that it acknowledged, and what it left is seen to by the next one."""

from __future__ import annotations

import random
import sys

import pytest

from tests.contract.postgres import get_server, make_database
from tests.durability.harness import Figures, campaign, failpoints

SEED = 20_261_115
"""The moments of the kills depend on the machine all the same; what is killed is the same with every run."""


@pytest.fixture
def killed_url(pytestconfig: pytest.Config) -> str:
    """A database of its own on the server of this run."""
    return make_database(get_server(pytestconfig), "killed")


def judge(figures: Figures, kills: int, capsys: pytest.CaptureFixture[str], label: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{label}: {figures}\n")
    assert figures.faults == []
    assert figures.kills == kills
    assert figures.messages
    assert figures.repeated_after_reply == 0
    assert figures.repeated <= figures.in_flight + figures.stopped


@pytest.mark.feature("L1", "L17")
async def test_killed_now_and_then_with_sqlite(tmp_path, capsys):
    points = failpoints()
    figures = await campaign(tmp_path, f"sqlite:///{tmp_path}/talks.db", 5, seed=SEED, points=tuple(points))
    judge(figures, 5 + len(points), capsys, "SQLite")


async def test_killed_now_and_then_with_postgres(tmp_path, capsys, killed_url):
    figures = await campaign(tmp_path, killed_url, 2, seed=SEED)
    judge(figures, 2, capsys, "PostgreSQL")


@pytest.mark.slow
async def test_killed_again_and_again_with_sqlite(tmp_path, capsys):
    points = failpoints() * 3
    seed = random.SystemRandom().randrange(1 << 30)
    figures = await campaign(tmp_path, f"sqlite:///{tmp_path}/talks.db", 300, seed=seed, points=tuple(points))
    judge(figures, 300 + len(points), capsys, f"SQLite, seed {seed}")


@pytest.mark.slow
async def test_killed_again_and_again_with_postgres(tmp_path, capsys, killed_url):
    points = failpoints(alone=False)
    seed = random.SystemRandom().randrange(1 << 30)
    figures = await campaign(tmp_path, killed_url, 40, seed=seed, points=tuple(points))
    judge(figures, 40 + len(points), capsys, f"PostgreSQL, seed {seed}")
