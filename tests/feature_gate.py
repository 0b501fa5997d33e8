"""The gate: a feature marked done in features.toml needs a test in `tests/features/` that passed in this run.

Only those tests count: they go through the doors that users have.

One idea: a skipped or merely collected test proves nothing, so the gate listens to the reports of finished tests. A test
carries its ids to the controlling process in `user_properties`, which is what survives the way from a worker. The gate
speaks only about whole runs; when a part of the suite was chosen it cannot know.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict

import pytest

PROOFS = "tests/features/"
WHOLE_RUN_MARKS = frozenset({"", "not slow"})
NARROWING_OPTIONS = ("keyword", "deselect", "ignore", "ignore_glob", "collectonly", "lf", "stepwise")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FeatureGate(config), "feature-gate")


class FeatureGate:
    def __init__(self, config: pytest.Config) -> None:
        path = config.rootpath / "features.toml"
        self.features = tomllib.loads(path.read_text(encoding="utf-8"))
        self.is_whole_run = _is_whole_run(config)
        self.passed: set[str] = set()
        self.skipped: dict[str, set[str]] = defaultdict(set)
        self.unproven: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makeitem(self):
        result = yield
        for node in result if isinstance(result, list) else [result]:
            if isinstance(node, pytest.Item):
                self._attach_ids(node)
        return result

    def _attach_ids(self, item: pytest.Item) -> None:
        ids = sorted({key for mark in item.iter_markers("feature") for key in mark.args})
        if unknown := [key for key in ids if key not in self.features]:
            raise pytest.Collector.CollectError(
                f"{item.name}: no such feature in features.toml: {', '.join(map(str, unknown))}"
            )
        if ids:
            item.user_properties.append(("features", ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        ids = [key for name, value in report.user_properties if name == "features" for key in value]
        if report.when == "call" and report.passed and report.nodeid.startswith(PROOFS):
            self.passed.update(ids)
        if report.skipped:
            for key in ids:
                self.skipped[key].add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        has_run = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not (self.is_whole_run and has_run) or session.shouldstop or session.shouldfail:
            return
        # One that needs what `make test` does not install names the command that proves it, which has a gate of its own.
        done = [key for key, one in self.features.items() if one["done"] and not one.get("proven_by")]
        self.unproven = [key for key in done if key not in self.passed]
        if self.unproven:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.unproven:
            return
        terminalreporter.section("features marked done without a test that passed", sep="=", red=True)
        for key in self.unproven:
            tests = ", ".join(sorted(self.skipped[key]))
            reason = f"skipped: {tests}" if tests else "no test passed"
            terminalreporter.line(f"{key}  {self.features[key]['title']} ({reason})")


def _is_whole_run(config: pytest.Config) -> bool:
    """Is this the controlling process of a run that nothing was taken out of?"""
    is_worker = hasattr(config, "workerinput")
    has_paths = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    is_narrowed = any(config.getoption(name, None) for name in NARROWING_OPTIONS)
    return not (is_worker or has_paths or is_narrowed) and config.getoption("markexpr", "") in WHOLE_RUN_MARKS
