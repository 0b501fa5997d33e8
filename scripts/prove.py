"""Prove that the tests of each feature notice when its behaviour is taken out.

.venv/bin/python -m scripts.prove               every feature marked done (about 20 CPU minutes)
.venv/bin/python -m scripts.prove L7 C5         these features
.venv/bin/python -m scripts.prove --group lis   the features of one file of tests
.venv/bin/python -m scripts.prove --alone       each mutation by itself before all tests (about 90 CPU minutes)
.venv/bin/python -m scripts.prove --json        for programs

`scripts/mutations.toml` names a mutation for each feature, and more of them as `ID-WORD`: one behaviour, changed in one place of
the source. The script changes
copies of the checkout and runs tests of `tests/features/` there. A feature is proven if

- at least one of its own tests fails, and
- no test of another group fails, unless that test names the feature as well.

A group is a file of `tests/features/`. Each feature's own tests run with its mutation alone. The tests of the other groups run
with all chosen mutations of the group in place; those that fail run again with one half of the mutations and the other, until
it is known which mutation they fail with. Two mutations whose effects cancel each other in every assertion would pass for
harmless: `--alone` leaves out that shortcut. The exit code is 0 if every chosen feature is proven.
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


class Trial(Struct, frozen=True):
    """A feature and the mutation that takes it out."""

    id: str
    """The key of the mutation: the id of the feature, and a dash and a word for each further mutation of it."""
    feature: Feature
    mutation: Mutation

    @property
    def group(self) -> str:
        return GROUPS[self.id[0]]


class Run(Struct, frozen=True):
    failed: tuple[str, ...] = ()
    problem: str = ""
    """Why the tests did not run."""


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
    parser.add_argument(
        "--alone", action="store_true", help="run the tests of other groups with one mutation at a time"
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(args)
    root = find_checkout(Path.cwd())
    features = {feature.id: feature for feature in read_features(root)}
    mutations = read_mutations(root)
    ids = chosen.ids or [key for key, one in features.items() if one.done and not one.proven_by]
    if unknown := [key for key in ids if key not in features]:
        parser.error(f"no such feature in features.toml: {', '.join(unknown)}")
    ids = [key for key in ids if chosen.group in (None, GROUPS[key[0]])]
    ids = [
        one for key in ids for one in dict.fromkeys((key, *(name for name in mutations if _id(name) == key)))
    ]
    problems = {
        key: problem for key in ids if (problem := problem_of(root, features[_id(key)], mutations.get(key)))
    }
    trials = [Trial(key, features[_id(key)], mutations[key]) for key in ids if key not in problems]
    groups = [[one] for one in trials] if chosen.alone else batches(trials)
    with ThreadPoolExecutor(max(chosen.jobs, 1)) as pool:
        harms = [pool.submit(find_harm, root, group, other_groups(root, group)) for group in groups]
        own = {one.id: pool.submit(run_own_tests, root, one) for one in trials}
        harm = {key: found for one in harms for key, found in one.result().items()}
        verdicts = []
        for key in ids:
            behaviour = mutations[key].behaviour if key in mutations else ""
            if key in problems:
                verdicts.append(Verdict(key, behaviour, (), (), problems[key]))
            else:
                failed, others = own[key].result(), harm.get(key, Run())
                problem = failed.problem or others.problem
                verdicts.append(Verdict(key, behaviour, failed.failed, others.failed, problem))
            if not chosen.as_json:
                print(render(verdicts[-1]), flush=True)
    proven = sum(verdict.is_proven for verdict in verdicts)
    if chosen.as_json:
        print(msgspec.json.format(msgspec.json.encode(verdicts), indent=2).decode())
    else:
        print(
            f"{proven} of {len(verdicts)} {'mutations' if any('-' in key for key in ids) else 'features'} are proven"
        )
    return 0 if proven == len(verdicts) else 1


def _id(key: str) -> str:
    """The feature of a mutation: `L16-dates` is one more of L16."""
    return key.partition("-")[0]


def read_mutations(root: Path) -> dict[str, Mutation]:
    table = tomllib.loads((root / "scripts" / "mutations.toml").read_text(encoding="utf-8"))
    return msgspec.convert(table, dict[str, Mutation])


def batches(trials: Iterable[Trial]) -> list[list[Trial]]:
    """The trials of each group, apart from those that change the same lines: they are tried one after the other."""
    found: list[list[Trial]] = []
    for trial in trials:
        for batch in found:
            if batch[0].group == trial.group and not any(_overlap(trial, one) for one in batch):
                batch.append(trial)
                break
        else:
            found.append([trial])
    return found


def _overlap(one: Trial, other: Trial) -> bool:
    """May one mutation keep the other from being applied? Texts that share a line are taken to."""
    if one.mutation.file != other.mutation.file:
        return False
    lines = [{line.strip() for line in trial.mutation.find.splitlines()} for trial in (one, other)]
    return any(a in b or b in a for a in lines[0] for b in lines[1] if a and b)


def other_groups(root: Path, trials: Sequence[Trial]) -> list[str]:
    """The files of tests that must stay green."""
    own = f"test_{trials[0].group}.py"
    files = sorted((root / "tests" / "features").glob("test_*.py"))
    return [path.relative_to(root).as_posix() for path in files if path.name != own]


def run_own_tests(root: Path, trial: Trial) -> Run:
    if not trial.feature.tests:
        return Run()
    return run_changed(root, [trial], trial.feature.tests)


def find_harm(root: Path, trials: Sequence[Trial], tests: Sequence[str]) -> dict[str, Run]:
    """For each mutation, by the id of its feature, the tests that fail with it; ids without an entry do no harm."""
    run = run_changed(root, trials, tests)
    if len(trials) == 1:
        named = trials[0].feature.tests
        harmed = tuple(test for test in run.failed if test not in named)
        return {trials[0].id: Run(harmed, run.problem)}
    if not run.failed and not run.problem:
        return {}
    half = len(trials) // 2
    again = tests if run.problem else run.failed
    return find_harm(root, trials[:half], again) | find_harm(root, trials[half:], again)


def run_changed(root: Path, trials: Sequence[Trial], tests: Sequence[str]) -> Run:
    """Apply the mutations to a copy of the checkout, and run these tests there."""
    with tempfile.TemporaryDirectory(prefix=f"refold-{trials[0].id}-") as folder:
        copy = Path(folder) / "checkout"
        try:
            copy_checkout(root, copy)
            for trial in trials:
                apply(trial.mutation, copy)
            return Run(failed_tests(copy, tests))
        except (MutationError, subprocess.TimeoutExpired) as error:
            return Run(problem=str(error))


def copy_checkout(root: Path, copy: Path) -> None:
    copy.mkdir()
    for name in _COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)


def problem_of(root: Path, feature: Feature, mutation: Mutation | None) -> str:
    """Why there is nothing to try, or nothing."""
    if feature.proven_by:
        return f"another command proves it: {feature.proven_by}"
    if mutation is None:
        return "no mutation is named for it"
    try:
        changed(mutation, root)
    except MutationError as error:
        return str(error)
    return ""


def apply(mutation: Mutation, root: Path) -> None:
    (root / mutation.file).write_text(changed(mutation, root), encoding="utf-8")


def changed(mutation: Mutation, root: Path) -> str:
    """The text of the file with the mutation."""
    path = root / mutation.file
    if not path.is_file():
        raise MutationError(f"there is no {mutation.file}")
    source = path.read_text(encoding="utf-8")
    if (found := source.count(mutation.find)) != 1:
        raise MutationError(f"{mutation.file} holds the text to replace {found} times, not once")
    return source.replace(mutation.find, mutation.replace)


def failed_tests(root: Path, tests: Sequence[str]) -> tuple[str, ...]:
    """The node ids (without parameters) of those tests that fail in this checkout."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-m", "not slow"]
    run = subprocess.run(
        [*command, "-p", "no:cacheprovider", *tests],
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
