"""Settings for the whole suite: the feature gate, how hard hypothesis tries, where the files of tests are, and how many
processes share the tests.

The fast profile always tries the same examples, so that a change and its test run never disagree by chance; new ones are
looked for by the thorough one (`make test-all`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.feature_gate"]

settings.register_profile(
    "fast", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("fast"), max_examples=500, derandomize=False)
settings.load_profile(os.environ.get("REFOLD_HYPOTHESIS", "fast"))

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 2 << 30


def keep_files_in_memory() -> None:
    """Where there is a file system in memory, temporary files are there, unless TMPDIR names another place.

    A database waits for the disk at every commit. No test pulls the plug on the whole machine, and on a disk these waits are
    most of the time that tests of SQLite take.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    may_run_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if may_run_programs and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # to be found anew


keep_files_in_memory()


def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: for a third of its time a test waits for a disk, a server or a program that it started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (cores + 1) // 2


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Typer makes its tree of commands anew for each call, which takes longer than most commands: make one per set of commands."""
    build = typer.main.get_command

    @lru_cache(maxsize=8)
    def built(app: typer.Typer, *_commands_and_groups: object):
        return build(app)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            typer.main,
            "get_command",
            lambda app: built(app, *app.registered_commands, *app.registered_groups),
        )
        yield
