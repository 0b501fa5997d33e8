"""Prove that the tests of each feature notice when its behaviour is taken out.

.venv/bin/python -m scripts.prove               every feature marked done (about an hour)
.venv/bin/python -m scripts.prove L7 C5         these features
.venv/bin/python -m scripts.prove --group lis   the features of one file of tests
.venv/bin/python -m scripts.prove --json        for programs

`scripts/mutations.toml` names one mutation per feature: one behaviour, changed in one place of the source. For each, the
script changes a copy of the checkout and runs `tests/features/` there. A feature is proven if

- at least one of its own tests fails, and
- no test of another group fails, unless that test names the feature as well.

A group is a file of `tests/features/`. The exit code is 0 if every chosen feature is proven.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from scripts.features import Feature, find_checkout, read_features

GROUPS = {
    "L": "lis",
    "O": "opal",
    "X": "llms",
    "P": "picoclaw",
    "C": "librechat",
    "N": "beyond",
}
"""The first letter of a feature's id, and the group its tests are in: `tests/features/test_GROUP.py`."""
LIMIT_S = 900
"""A mutation may make a test wait for ever: the run of one mutation ends after this time."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^ \[]+)", re.MULTILINE)
_COPIED = ("src", "tests", "scripts", "docs", "examples", "README.md", "pyproject.toml", "features.toml")


class Mutation(Struct, frozen=True, forbid_unknown_fields=True):
    """One behaviour taken out: `find` occurs exactly once in `file` and becomes `replace`."""

    behaviour: str
    """What no longer holds, in one sentence."""
    file: str
    find: str
    replace: str


class Verdict(Struct, frozen=True):
    id: str
    behaviour: str
    own: tuple[str, ...]
    """The feature's tests that failed."""
    others: tuple[str, ...]
    """Tests of other groups that failed and do not name the feature."""
    problem: str = ""
    """Why there is no result."""

    @property
    def is_proven(self) -> bool:
        return bool(self.own) and not self.others and not self.problem


class MutationError(Exception):
    """A mutation cannot be applied."""


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Take out one behaviour per feature and see whether its tests fail."
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="features to try (default: all that are done)")
    parser.add_argument("--group", choices=sorted(GROUPS.values()), help="only the features of this group")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="mutations at a time (default: one per core)"
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(args)
    root = find_checkout(Path.cwd())
    features = {feature.id: feature for feature in read_features(root)}
    mutations = read_mutations(root)
    ids = chosen.ids or [key for key, feature in features.items() if feature.done]
    if unknown := [key for key in ids if key not in features]:
        parser.error(f"no such feature in features.toml: {', '.join(unknown)}")
    ids = [key for key in ids if chosen.group in (None, GROUPS[key[0]])]
    with ThreadPoolExecutor(max(chosen.jobs, 1)) as pool:
        verdicts = []
        for verdict in pool.map(lambda key: prove(root, features[key], mutations.get(key)), ids):
            verdicts.append(verdict)
            if not chosen.as_json:
                print(render(verdict), flush=True)
    proven = sum(verdict.is_proven for verdict in verdicts)
    if chosen.as_json:
        print(msgspec.json.format(msgspec.json.encode(verdicts), indent=2).decode())
    else:
        print(f"{proven} of {len(verdicts)} features are proven")
    return 0 if proven == len(verdicts) else 1


def read_mutations(root: Path) -> dict[str, Mutation]:
    table = tomllib.loads((root / "scripts" / "mutations.toml").read_text(encoding="utf-8"))
    return msgspec.convert(table, dict[str, Mutation])


def prove(root: Path, feature: Feature, mutation: Mutation | None) -> Verdict:
    """Change a copy of the checkout, and run the tests of all features there."""
    if mutation is None:
        return Verdict(feature.id, "", (), (), "no mutation is named for it")
    with tempfile.TemporaryDirectory(prefix=f"refold-{feature.id}-") as folder:
        copy = Path(folder) / "checkout"
        try:
            copy_checkout(root, copy)
            apply(mutation, copy)
            failed = failed_tests(copy)
        except (MutationError, subprocess.TimeoutExpired) as error:
            return Verdict(feature.id, mutation.behaviour, (), (), str(error))
    own = tuple(test for test in failed if test in feature.tests)
    group = f"tests/features/test_{GROUPS[feature.id[0]]}.py::"
    others = tuple(test for test in failed if test not in own and not test.startswith(group))
    return Verdict(feature.id, mutation.behaviour, own, others)


def copy_checkout(root: Path, copy: Path) -> None:
    copy.mkdir()
    for name in _COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)


def apply(mutation: Mutation, root: Path) -> None:
    path = root / mutation.file
    if not path.is_file():
        raise MutationError(f"there is no {mutation.file}")
    source = path.read_text(encoding="utf-8")
    if (found := source.count(mutation.find)) != 1:
        raise MutationError(f"{mutation.file} holds the text to replace {found} times, not once")
    path.write_text(source.replace(mutation.find, mutation.replace), encoding="utf-8")


def failed_tests(root: Path) -> tuple[str, ...]:
    """The node ids (without parameters) of the tests in `tests/features/` that fail in this checkout."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-m", "not slow"]
    run = subprocess.run(
        [*command, "-p", "no:cacheprovider", "tests/features"],
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if run.returncode not in (0, 1):
        raise MutationError(f"the tests cannot run (exit code {run.returncode}): {run.stdout[-500:]}")
    return tuple(dict.fromkeys(_FAILED.findall(run.stdout)))


def render(verdict: Verdict) -> str:
    lines = [f"{verdict.id:<4} {'proven' if verdict.is_proven else 'NOT PROVEN'}  {verdict.behaviour}"]
    lines += _indented("", [verdict.problem] if verdict.problem else [])
    if not verdict.problem and not verdict.own:
        lines += _indented("", ["none of its own tests failed"])
    lines += _indented("fails: ", verdict.own)
    lines += _indented("fails in another group: ", verdict.others)
    return "\n".join(lines)


def _indented(label: str, lines: Iterable[str]) -> list[str]:
    return [f"           {label}{line}" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
