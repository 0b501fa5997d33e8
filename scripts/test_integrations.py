"""Runs the adapters of `refold.integrations` with the real frameworks, each in an environment of its own.

.venv/bin/python -m scripts.test_integrations                     all of them
.venv/bin/python -m scripts.test_integrations langchain litellm   some of them
.venv/bin/python -m scripts.test_integrations --require           fail where a framework cannot be installed

The versions are in tests/integrations/frameworks/versions.toml. An environment in .venv-integrations/ is made once, and again when its
versions change. Each session has a hundred turns with parallel tools in a window of 8,192 tokens before the scripted provider, which
refuses what real ones refuse. A framework that cannot be installed is skipped with the reason; the last lines say which ran, and whether the
features that `features.toml` leaves to this command are proven: if all the frameworks whose tests name one have passed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from scripts.features import Feature, read_features

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".venv-integrations"
TESTS = ROOT / "tests" / "integrations" / "frameworks"
TARGET = "make test-integrations"
BESIDES = ("pytest", "pytest-asyncio")
COLUMNS = ("framework", "version", "turns", "requests", "refusals", "orphans", "recalls")
INSTALL_S, RUN_S = 1_200, 1_800


def main(argv: list[str]) -> int:
    versions = tomllib.loads((TESTS / "versions.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description="Runs the adapters with the real frameworks.")
    parser.add_argument("names", nargs="*", choices=[[], *versions], help="the frameworks; by default all")
    parser.add_argument("--require", action="store_true", help="fail where a framework cannot be installed")
    asked = parser.parse_args(argv)
    ran, failed, skipped = list[str](), list[str](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        for name in asked.names or versions:
            if problem := install(name, versions[name]):
                skipped[name] = problem
                continue
            ran.append(name)
            if run(name, rows):
                failed.append(name)
        print_table([json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else [])
    print(f"ran: {', '.join(ran) or 'none'}")
    for feature in features_proven_here():
        missing = [one for one in feature_frameworks(feature) if one not in ran or one in failed]
        state = f"not proven: {', '.join(missing)} did not pass" if missing else "proven"
        print(f"{feature.id} {feature.title}: {state}")
    for name, problem in skipped.items():
        print(f"skipped: {name}: {problem}")
    if failed:
        print(f"error: failed: {', '.join(failed)}")
    return 1 if failed or (skipped and asked.require) else 0


def features_proven_here() -> list[Feature]:
    """The features that `features.toml` calls done and that these tests prove."""
    return [one for one in read_features(ROOT) if one.done and one.proven_by == TARGET]


def feature_frameworks(feature: Feature) -> list[str]:
    """The frameworks whose tests name a feature: all of them have to pass."""
    return sorted({Path(test.partition("::")[0]).stem.removeprefix("test_") for test in feature.tests})


def install(name: str, wanted: dict[str, list[str]]) -> str:
    """Make the environment of a framework; return why that is not possible, or nothing."""
    extras = ",".join(["sqlite", "testing", *wanted.get("extras", [])])
    packages = [*wanted["packages"], *BESIDES]
    stamp, place = PLACE / f"{name}.json", PLACE / name
    state = json.dumps([extras, packages, (ROOT / "pyproject.toml").read_text(encoding="utf-8")])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == state:
        return ""
    print(f"installing {', '.join(wanted['packages'])} ...", flush=True)
    PLACE.mkdir(exist_ok=True)
    python = place / "bin" / "python"
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(place)],
        [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            *packages,
            "-e",
            f"{ROOT}[{extras}]",
        ],
    ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            return f"the installation took more than {INSTALL_S} s"
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return errors[-1] if errors else f"the installation ended with status {done.returncode}"
    stamp.write_text(state, encoding="utf-8")
    return ""


def run(name: str, rows: Path) -> int:
    # Without tests/conftest.py, which needs the environment of `make test`; the warnings of a framework are its own.
    options = ["--noconftest", "-o", "filterwarnings=ignore", "-q"]
    argv = [str(PLACE / name / "bin" / "python"), "-m", "pytest", *options, str(TESTS / f"test_{name}.py")]
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("REFOLD_") or key == "REFOLD_TURNS"
    }
    print(f"{name}:", flush=True)
    environ = {**own, "REFOLD_ROWS": str(rows), "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, cwd=ROOT, env=environ, timeout=RUN_S, check=False).returncode


def print_table(rows: list[dict[str, object]]) -> None:
    if not rows:
        return
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for row in rows:
        print(f"| {' | '.join(str(row[column]) for column in COLUMNS)} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
