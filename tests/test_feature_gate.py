"""The gate, tried on small projects of its own: each test is a whole pytest run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INI = """
[pytest]
testpaths = tests
addopts = -p tests.feature_gate --strict-markers --import-mode=importlib
markers =
    feature(*ids): ids
    slow: long
"""
FEATURES = """
[A1]
title = "first"
done = true
[A2]
title = "second"
done = false
"""
PASSES = """
import pytest

@pytest.mark.feature("A1")
def test_a1():
    pass
"""
SKIPS = """
import pytest

@pytest.mark.feature("A1")
def test_a1():
    pytest.skip("no such service here")

def test_other():
    pass
"""
WORKERS = ("-p", "xdist.plugin", "-n", "2")
UNRELATED = "def test_other():\n    pass\n"

pytestmark = pytest.mark.feature("X0")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest on one test file in a project with the features A1 (done) and A2 (open)."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # The run inside must not take itself for a worker of the run outside.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # Loading every installed plugin takes longer than the tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makefile(".ini", pytest=INI)
    pytester.path.joinpath("features.toml").write_text(FEATURES)

    def run_tests(source: str, *args: str, place: str = "features") -> pytest.RunResult:
        folder = pytester.path / "tests" / place
        folder.mkdir(parents=True)
        folder.joinpath("test_it.py").write_text(source)
        return pytester.runpytest_inprocess(*args)

    return run_tests


def test_done_and_passed_is_fine(run):
    result = run(PASSES)

    assert result.ret == 0
    result.stdout.no_fnmatch_line("*features marked done*")


def test_done_and_skipped_fails_and_names_the_skipped_test(run):
    result = run(SKIPS)

    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*features marked done without a test that passed*",
            "A1  first (skipped: tests/features/test_it.py::test_a1)",
        ]
    )


def test_a_test_elsewhere_proves_nothing(run):
    result = run(PASSES, place="core")

    assert result.ret == 1
    result.stdout.fnmatch_lines(["A1  first (no test passed)"])


def test_done_without_a_test_fails(run):
    result = run(UNRELATED)

    assert result.ret == 1
    result.stdout.fnmatch_lines(["A1  first (no test passed)"])


def test_a_feature_that_another_command_proves_is_left_to_it(run, pytester):
    text = FEATURES.replace("done = true", 'done = true\nproven_by = "make other"')
    pytester.path.joinpath("features.toml").write_text(text)

    assert run(UNRELATED).ret == 0


def test_an_expected_failure_proves_nothing(run):
    result = run(PASSES.replace("    pass", "    pytest.xfail('not yet')"))

    assert result.ret == 1
    result.stdout.fnmatch_lines(["A1  first (skipped: tests/features/test_it.py::test_a1)"])


def test_one_passing_parameter_is_enough(run):
    source = """
import pytest

@pytest.mark.parametrize("there", [True, False])
@pytest.mark.feature("A1")
def test_a1(there):
    if not there:
        pytest.skip("not there")
"""
    assert run(source).ret == 0


def test_marks_of_the_module_count(run):
    source = 'import pytest\npytestmark = pytest.mark.feature("A1")\n\ndef test_a1():\n    pass\n'
    assert run(source).ret == 0


@pytest.mark.parametrize("workers", [(), WORKERS], ids=["alone", "xdist"])
def test_an_unknown_id_is_a_collection_error(run, workers):
    result = run(PASSES.replace("A1", "Z9"), *workers)

    assert result.ret != 0
    result.stdout.fnmatch_lines(["*test_a1: no such feature in features.toml: Z9*"])
    result.stdout.no_fnmatch_line("*1 passed*")


@pytest.mark.parametrize(
    "args",
    [
        ("tests/features/test_it.py",),
        ("-k", "other"),
        ("-m", "slow or not slow"),
        ("--deselect", "tests/features/test_it.py::test_a1"),
        ("--collect-only",),
        ("--last-failed",),
    ],
    ids=" ".join,
)
def test_a_partial_run_says_nothing(run, args):
    result = run(SKIPS, *args)

    assert result.ret == 0
    result.stdout.no_fnmatch_line("*features marked done*")


def test_the_default_selection_is_a_whole_run(run):
    assert run(SKIPS, "-m", "not slow").ret == 1


def test_a_passing_test_in_a_worker_counts(run):
    assert run(PASSES, *WORKERS).ret == 0


def test_a_skipped_test_in_a_worker_does_not(run):
    result = run(SKIPS, *WORKERS)

    assert result.ret == 1
    result.stdout.fnmatch_lines(["A1  first (skipped: tests/features/test_it.py::test_a1)"])
