"""List every feature id of features.toml: whether it is done, and the tests that prove it.

.venv/bin/python scripts/features.py            every feature
.venv/bin/python scripts/features.py --open     the features that are not finished (--done: those that are)
.venv/bin/python scripts/features.py --json     for programs

Nothing is run: the tests in `tests/features/`, and those of the frameworks, are read as source text and searched for `pytest.mark.feature(...)`. Whether they pass is decided by the
test run, which fails if a finished feature has no test that passed.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

PROOFS = ("tests/features", "tests/integrations/frameworks")
"""The tests that prove features: those that `make test` runs, and those of `make test-integrations`."""
State: TypeAlias = Literal["all", "done", "open"]


class Feature(Struct, frozen=True):
    id: str
    title: str
    done: bool
    closes: str
    """The piece of work that finishes it."""
    tests: tuple[str, ...] = ()
    """Node ids, as pytest prints them (without parameters)."""
    proven_by: str = ""
    """The command that proves it, if its tests need what `make test` does not install; empty for `make test`."""


class _FeatureEntry(Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    done: bool
    closes: str
    proven_by: str = ""


class FeatureListError(Exception):
    """The list of features cannot be read."""


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="List the features of Refold with the tests that prove them."
    )
    states = parser.add_mutually_exclusive_group()
    states.add_argument("--done", dest="state", action="store_const", const="done", help="only finished ones")
    states.add_argument("--open", dest="state", action="store_const", const="open", help="only the others")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(args)
    try:
        print(report(Path.cwd(), state=chosen.state or "all", as_json=chosen.as_json))
    except FeatureListError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def report(start: Path, *, state: State = "all", as_json: bool = False) -> str:
    """The list, as it is printed in the directory `start`."""
    features = select(read_features(find_checkout(start)), state)
    if as_json:
        return msgspec.json.format(msgspec.json.encode(features), indent=2).decode()
    return render(features)


def find_checkout(start: Path) -> Path:
    """The nearest directory, upwards from `start`, that holds the list of features and the tests."""
    for folder in (start, *start.parents):
        if (folder / "features.toml").is_file() and (folder / "tests").is_dir():
            return folder
    raise FeatureListError(
        "there is no features.toml with a tests folder beside it, here or above\nhint: run it in a checkout of the repository"
    )


def read_features(root: Path) -> tuple[Feature, ...]:
    """The features of a checkout in the order of `features.toml`, each with its tests."""
    try:
        table = tomllib.loads((root / "features.toml").read_text(encoding="utf-8"))
        entries = msgspec.convert(table, dict[str, _FeatureEntry])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise FeatureListError(f"features.toml cannot be read: {error}\nhint: mend the file there") from error
    proofs = find_proofs(root)
    return tuple(
        Feature(key, entry.title, entry.done, entry.closes, proofs.get(key, ()), entry.proven_by)
        for key, entry in entries.items()
    )


def find_proofs(root: Path) -> dict[str, tuple[str, ...]]:
    """For every id that a test in a folder of proofs names: the tests that name it. Only these count."""
    proofs: dict[str, list[str]] = defaultdict(list)
    for path in [one for folder in PROOFS for one in sorted((root / folder).rglob("test_*.py"))]:
        name = path.relative_to(root).as_posix()
        for test, ids in _marked_tests(ast.parse(path.read_bytes()).body, name, frozenset()):
            for key in ids:
                proofs[key].append(test)
    return {key: tuple(tests) for key, tests in proofs.items()}


def select(features: Iterable[Feature], state: State) -> tuple[Feature, ...]:
    return tuple(feature for feature in features if state == "all" or feature.done == (state == "done"))


def render(features: tuple[Feature, ...]) -> str:
    lines = [line for feature in features for line in _rows(feature)]
    done = sum(feature.done for feature in features)
    return "\n".join([*lines, f"{len(features)} features, {done} done"])


def _rows(feature: Feature) -> Iterator[str]:
    by = f" ({feature.proven_by})" if feature.proven_by else ""
    yield f"{feature.id:<4} {'done' if feature.done else 'open'}  {feature.title}{by}"
    for test in feature.tests:
        yield f"           {test}"


def _marked_tests(
    body: list[ast.stmt], prefix: str, inherited: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """The tests of a module or class with the ids they carry, those of their surroundings included."""
    inherited |= frozenset(key for node in body if _is_pytestmark(node) for key in _named_ids(node))
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            own = inherited | _decorated(node)
            yield from _marked_tests(node.body, f"{prefix}::{node.name}", own)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield f"{prefix}::{node.name}", inherited | _decorated(node)


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _decorated(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    return frozenset(key for decorator in node.decorator_list for key in _named_ids(decorator))


def _named_ids(tree: ast.AST) -> Iterator[str]:
    """The ids in every `mark.feature(...)` below a node, those in the marks of a parameter too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.feature"):
            yield from (
                argument.value
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


if __name__ == "__main__":
    sys.exit(main())
