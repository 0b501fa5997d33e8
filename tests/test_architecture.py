"""The shape of the source, where the linters cannot see it: docstrings, names, and imports of single files."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "refold"
MODULES = sorted(SOURCE.rglob("*.py"))
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


@cache
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


VERB_ENDINGS = ("ing", "ed")
NOUNS = {"reasoning", "testing"}
"""Gerunds that are nouns of the field: a model's reasoning, and the package for tests of an application."""


def test_modules_and_packages_are_named_by_nouns():
    """A newcomer searches for a noun. The last word of a name is looked at: `summary_jobs` is about jobs."""
    names = {path.stem for path in MODULES} | {path.parent.name for path in MODULES}

    found = {name for name in names if name.rpartition("_")[2].endswith(VERB_ENDINGS)}

    assert found - NOUNS == set()


PROXIES = {"refold.sync.Chat", "refold.sync.Conversation", "refold.sync.Engine"}
"""The classes without `await`: they have the names of the classes that they stand for."""


def test_a_class_name_means_one_thing():
    """A second class of the same name sends a reader to the wrong file."""
    owners: dict[str, list[str]] = {}
    for full_name in class_bases().keys() - PROXIES:
        module, _, name = full_name.rpartition(".")
        if not name.startswith("_"):
            owners.setdefault(name, []).append(module)

    assert {name: sorted(modules) for name, modules in owners.items() if len(modules) > 1} == {}


def test_no_backtracking_pattern_meets_a_provider_s_text():
    overflow = [path for path in MODULES if name_of(path).startswith("core/overflow")]

    assert overflow
    for path in overflow:
        assert "re" not in set(imported_modules(parse(path))), f"{name_of(path)} imports re"


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """A project of the same layers without any import."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "src" / "refold"
    for folder in ("model", "core", "wire", "tokens"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    for module in ("__init__.py", "svg.py"):
        (package / module).touch()
    return tmp_path


def test_layers_without_a_wrong_import_pass(layers):
    assert lint_imports(layers) == 0


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
        ("", "import refold.model"),
    ],
)
def test_the_layers_are_really_checked(layers, place, line):
    """A copy of the project with one wrong import must not pass `lint-imports`."""
    # At the root, any module that no layer names is wrong.
    (layers / "src" / "refold" / place / "wrong.py").write_text(f"{line}\n")

    assert lint_imports(layers) == 1


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
    for path in MODULES:
        if "presets" in path.parts:
            continue
        words = set()
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value.lower())
            elif isinstance(node, ast.Name | ast.FunctionDef | ast.ClassDef):
                words.add((node.id if isinstance(node, ast.Name) else node.name).lower())
        if found := words & PRESET_NAMES:
            named[path.name] = found
    assert named == {}


DEEPEST = 2
"""Levels of inheritance inside the project: a protocol, one that adds to it, and what implements that."""


@cache
def class_bases() -> dict[str, list[str]]:
    """The classes of the project by their full names, each with those of its bases that are the project's own."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        module = ".".join(("refold", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        tree = parse(path)
        known = {
            (alias.asname or alias.name): f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("refold")
            for alias in node.names
        }
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        known |= {node.name: f"{module}.{node.name}" for node in classes}
        for node in classes:
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            names = [known.get(base.id) for base in bases if isinstance(base, ast.Name)]
            found[f"{module}.{node.name}"] = [name for name in names if name]
    return found


def test_inheritance_is_shallow():
    """Errors apart: their tree is what a program catches by."""
    bases = class_bases()

    def depth(name: str) -> int:
        return max((1 + depth(base) for base in bases.get(name, ())), default=0)

    deep = {name for name in bases if depth(name) > DEEPEST and not name.startswith("refold.model.errors.")}
    assert deep == set()
    assert depth("refold.model.errors.SettingLocked") > DEEPEST, "the check sees bases in other classes"


SURFACES = ("cli", "gateway", "integrations", "demo", "replay", "testing")


def test_no_surface_inherits_from_the_engine():
    """A surface composes: it calls the engine's classes, and makes none of its own of them."""
    found = {
        name: base
        for name, bases in class_bases().items()
        for base in bases
        if name.split(".")[1] in SURFACES and base.startswith("refold.engine.")
    }
    assert found == {}


def test_no_surface_touches_a_private_of_another_package():
    """The linter's rule SLF001 finds every private member that is reached from outside; surfaces have no exception from it."""
    excused = [
        name_of(path)
        for path in MODULES
        if path.relative_to(SOURCE).parts[0].removesuffix(".py") in SURFACES
        and "SLF001" in path.read_text(encoding="utf-8")
    ]
    assert excused == []
