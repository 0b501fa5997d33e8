"""`scripts/smoke_clients.py`: one client that is always here, and a machine on which nothing may be run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.smoke_clients import count_folds

ROOT = Path(__file__).parents[2]


def smoke(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "scripts.smoke_clients", *args]
    env = {**os.environ, **environ}
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_a_client_goes_through_several_folds_without_a_refusal():
    done = smoke("--only", "openai-python chat", "openai-node chat", "--turns", "12", "--json")
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.strip())

    assert done.returncode == 0, done.stdout + done.stderr
    found, absent = json.loads(done.stdout)
    assert (found["calls"], found["refused"], found["failed"]) == (13, 0, "")
    assert found["folds"] >= 2
    assert {found["word"], found["number"], found["rule"]} <= {"window", "recall"}
    assert absent["skipped"]


def test_without_a_namespace_nothing_is_run(tmp_path):
    done = smoke("--only", "openai-python chat", PATH=str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "skipped: no network namespace can be made here, so no client is run\n"


def test_folds_are_counted_in_every_conversation():
    def line(conversation, tokens, action="folded"):
        return {"conversation": conversation, "tokens": tokens, "action": action}

    calls = [line("a", "10->10", "passed"), line("a", "20->8"), line("b", "30->9"), line("a", "25->13"), {}]
    assert count_folds([*calls, line("a", "30->7")]) == 3
