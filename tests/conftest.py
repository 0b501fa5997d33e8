"""Settings of the whole suite: the feature gate, the profiles of hypothesis, the folder of temporary files, the
number of worker processes, the certificates that are trusted, and what is made once instead of for every test.

The fast profile always tries the same examples, so that a change and its test run never disagree by chance; new ones are
looked for by the thorough one (`make test-all`).
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.feature_gate"]

settings.register_profile(
    "fast", max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("fast"), max_examples=500, derandomize=False)
settings.load_profile(os.environ.get("REFOLD_HYPOTHESIS", "fast"))

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 2 << 30


def keep_files_in_memory() -> None:
    """Put temporary files into a file system in memory if there is one and TMPDIR is not set.

    A database waits for the disk at every commit. No test cuts the power of the machine, and on a disk these waits
    are most of the time that tests of SQLite take.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    may_run_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if may_run_programs and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # so that it is looked up again


keep_files_in_memory()


def trust_one_certificate() -> None:
    """Let clients, and the programs that are started, read one certificate instead of the machine's 150.

    Each client of an SDK and each start of the gateway reads all of them, which takes longer than most requests do. No
    test leaves this machine.
    """
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("certificate.pem"))


trust_one_certificate()


def pytest_xdist_auto_num_workers() -> int:
    """Start half as many workers again as there are cores, and four for two: tests often wait for a server or a program that
    they started, and where cores are few it often happens that several workers wait at once.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + max(min(cores, 2), (cores + 1) // 2)


TESTS = Path(__file__).parent


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each worker begin to collect at another folder, where it collects all tests.

    pytest rewrites the assertions of a module where it is imported for the first time, which is half of the work of the first
    collection, and keeps the result in a file. Workers that collect in one order all rewrite all modules.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != [TESTS.name]:
        return
    number, parts = int(worker["workerid"].removeprefix("gw")), _parts()
    share = sum(parts.values()) * number / worker["workercount"]
    before = accumulate(parts.values(), initial=0)
    first = next(at for at, size in enumerate(before) if size >= share)
    names = [f"{TESTS.name}/{name}" for name in parts]
    session.config.args = [*names[first:], *names[:first]]


def _parts() -> dict[str, int]:
    """The folders and modules of tests, in the order of their names, each with its size in bytes."""
    found = {}
    for path in sorted(TESTS.iterdir()):
        modules = [path] if path.is_file() else [*path.rglob("*.py")]
        if any(one.match("test_*.py") for one in modules):
            found[path.name] = sum(one.stat().st_size for one in modules)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of a worker into the order that they have in every worker."""
    parts = {
        path: path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
        for path in {item.path for item in items}
    }
    items.sort(key=lambda item: parts[item.path])


def pytest_collection() -> None:
    """Let the garbage collector rest while modules are imported and tests collected: nothing of them goes."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep the garbage collector away from the modules and tests that were collected.

    They live until the end, and going through their 600,000 objects again and again took a sixth of the time. Of the
    rest it looks at 10,000 new objects at a time, not 700: hypothesis adds a call of Python to each look, and the replays
    of `tests/replay` took an eighth longer.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Build one tree of commands per set of commands. Typer builds one per call, which takes longer than most commands."""
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
