"""The shape of the source, where the linters cannot see it: docstrings, names, and imports of single files."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "refold"
MODULES = sorted(SOURCE.rglob("*.py"))
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_owns(path):
    assert ast.get_docstring(parse(path)), "the module has no docstring"


def test_modules_are_named_after_what_they_own():
    assert not {name_of(path) for path in MODULES if path.stem in VAGUE_NAMES}


def test_no_backtracking_pattern_meets_a_provider_s_text():
    overflow = [path for path in MODULES if name_of(path).startswith("core/overflow")]

    assert overflow
    for path in overflow:
        assert "re" not in set(imported_modules(parse(path))), f"{name_of(path)} imports re"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("core", "import refold.wire"),
        ("wire", "import refold.core"),
        ("core", "import time"),
        ("wire", "from os import environ"),
        ("model", "import refold.core"),
        ("core", "import refold.tokens"),
        ("model", "import rich"),
    ],
)
def test_the_layers_are_really_checked(tmp_path, place, line):
    """A copy of the project with one wrong import must not pass `lint-imports`."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "src" / "refold"
    for folder in ("model", "core", "wire", "tokens"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    (package / "__init__.py").touch()
    assert lint_imports(tmp_path) == 0

    (package / place / "wrong.py").write_text(f"{line}\n")

    assert lint_imports(tmp_path) == 1


def lint_imports(root: Path) -> int:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    ]
    env = {"PYTHONPATH": str(root / "src")}
    args = [*command, "--no-cache"]
    return subprocess.run(args, cwd=root, env=env, capture_output=True, timeout=60, check=False).returncode


PRESET_NAMES = {"lis", "opal", "llms", "picoclaw", "librechat"}


def test_no_module_outside_of_the_presets_names_a_preset():
    """What systems differ in is data; code that asks for a name would hide a difference."""
    named = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "presets" in path.parts:
            continue
        words = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value.lower())
            elif isinstance(node, ast.Name | ast.FunctionDef | ast.ClassDef):
                words.add((node.id if isinstance(node, ast.Name) else node.name).lower())
        if found := words & PRESET_NAMES:
            named[path.name] = found
    assert named == {}
