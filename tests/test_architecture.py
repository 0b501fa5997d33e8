"""The shape of the source, where the linters cannot see it: docstrings, names, and imports of single files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.source_names import ROOT, SOURCE, Resolver, nodes_of, package_of, parse, resolver, with_planted

MODULES = sorted(SOURCE.rglob("*.py"))
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in nodes_of(tree):
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
IRREGULAR = set(
    "been begun bought broken brought built chosen done drawn driven fallen felt found given gone grown held kept known laid "  # noqa: SIM905
    "left lent lost made meant met paid said seen sent shown sold spent stood taken taught told understood won written".split()
)
"""Participles that do not end in -ed."""
NOUNS = {"reasoning", "testing"}
"""Words that are nouns of the field: a model's reasoning, and the package for tests of an application."""


def verbs_in(names: Iterable[str]) -> set[str]:
    """The names that end with a gerund or a participle, or begin with an auxiliary verb."""
    last = {name: name.rpartition("_")[2] for name in names}
    found = {name for name, word in last.items() if word.endswith(VERB_ENDINGS) or word in IRREGULAR}
    return (found | {name for name in last if name.startswith("must_")}) - NOUNS


def test_modules_and_packages_are_named_by_nouns():
    """A newcomer searches for a noun. The last word of a name is looked at: `summary_jobs` is about jobs."""
    names = {path.stem for path in MODULES} | {path.parent.name for path in MODULES}
    shared = {path.stem for path in (ROOT / "tests").rglob("*.py") if not path.stem.startswith("test_")}

    assert verbs_in(names) == set()
    assert verbs_in(shared) == set()
    assert verbs_in({"must_keep", "played", "kept", "plan", "unread"}) == {"must_keep", "played", "kept"}


CLASS_NOUNS = set(
    "embedding finding framing heading meaning pruning reading reasoning recording ring spending wording".split()  # noqa: SIM905
)
"""Last words of names that end like a verb and are nouns."""
PUBLIC_PARTICIPLES = {"Broken", "Done", "Listed", "Queued", "Received", "ToolEnded", "ToolStarted"}
"""Values that users import by these names: events of a chat, a row of a list, and parts of a test's script."""


def is_happening(node: ast.ClassDef) -> bool:
    """True for an error or an event: these are named after what happened."""
    return any(
        ast.unparse(base).endswith(("Error", "Exception", "Event", "BaseException")) for base in node.bases
    )


def classes_named_by_verbs(trees: Iterable[ast.Module]) -> set[str]:
    """The public classes whose last word is a gerund or a participle."""
    found = {
        node.name
        for tree in trees
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not is_happening(node)
    }
    last = {name: (re.findall("[A-Z][a-z]*", name) or [name])[-1].lower() for name in found}
    verbs = {name for name, word in last.items() if word.endswith(VERB_ENDINGS) or word in IRREGULAR}
    return {name for name in verbs if last[name] not in CLASS_NOUNS} - PUBLIC_PARTICIPLES


def test_classes_are_named_by_nouns():
    assert classes_named_by_verbs(map(parse, MODULES)) == set()
    planted = (
        "class Kept: ...\nclass Moving(Struct): ...\nclass Moved(RefoldError): ...\nclass SavedMessage: ..."
    )
    assert classes_named_by_verbs([ast.parse(planted)]) == {"Kept", "Moving"}


PROXIES = {"refold.sync.Chat", "refold.sync.Conversation", "refold.sync.Engine"}
"""The classes without `await`: they have the names of the classes that they stand for."""


def type_aliases() -> Iterator[str]:
    """The full names of all `NAME: TypeAlias = ...`."""
    for path in MODULES:
        for node in parse(path).body:
            is_alias = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
            if is_alias and isinstance(node.target, ast.Name):
                yield f"refold.{name_of(path)}.{node.target.id}"


def test_a_class_name_means_one_thing():
    """A second class or type of the same name sends a reader to the wrong file."""
    owners: dict[str, list[str]] = {}
    for full_name in (resolver().class_bases.keys() - PROXIES) | set(type_aliases()):
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
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # The exceptions name modules that are not here.
    lines = (line for line in text.splitlines() if not line.startswith("ignore_imports"))
    (tmp_path / "pyproject.toml").write_text("\n".join(lines), encoding="utf-8")
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
        if path.stem == "presets":
            continue
        words = set()
        for node in nodes_of(parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value.lower())
            elif isinstance(node, ast.Name | ast.FunctionDef | ast.ClassDef):
                words.add((node.id if isinstance(node, ast.Name) else node.name).lower())
        if found := words & PRESET_NAMES:
            named[path.name] = found
    assert named == {}


DEEPEST = 2
"""Levels of inheritance inside the project: a protocol, one that adds to it, and what implements that."""


def test_inheritance_is_shallow():
    """Errors apart: their tree is what a program catches by."""
    bases = resolver().class_bases

    def depth(name: str) -> int:
        return max((1 + depth(base) for base in bases.get(name, ())), default=0)

    deep = {name for name in bases if depth(name) > DEEPEST and not name.startswith("refold.model.errors.")}
    assert deep == set()
    assert depth("refold.model.errors.SettingLocked") > DEEPEST, "the check sees bases in other classes"


def subclasses_of_the_engine(found: Resolver) -> dict[str, str]:
    """The classes outside of the engine that inherit from one of its classes, with that class."""
    return {
        name: base
        for name, bases in found.class_bases.items()
        for base in bases
        if package_of(base) == "engine" and package_of(name) != "engine"
    }


def test_nothing_inherits_from_the_engine():
    """Whatever is above the engine composes: it calls the engine's classes, and makes none of its own of them."""
    assert subclasses_of_the_engine(resolver()) == {}


@pytest.mark.parametrize("package", ["gateway", "dashboard", "terminal", "chat", "integrations", "replay"])
@pytest.mark.parametrize(
    "text",
    [
        "from refold.engine.conversation import Conversation\nclass X(Conversation): ...",
        "import refold.engine.conversation as conv\nclass X(conv.Conversation): ...",
        "import refold.engine.conversation\nclass X(refold.engine.conversation.Conversation): ...",
        "from refold.engine import conversation as conv\nclass X(conv.Conversation): ...",
        "from refold import Conversation as C2\nclass X(C2): ...",
        "import refold\nclass X(refold.Conversation): ...",
        "from refold import Conversation\nBase = Conversation\nclass X(Base): ...",
    ],
)
def test_a_planted_subclass_of_the_engine_is_found(package, text):
    planted = Resolver(with_planted(**{f"{package}__planted": text}))

    assert subclasses_of_the_engine(planted) == {
        f"refold.{package}.planted.X": "refold.engine.conversation.Conversation"
    }


def test_a_subclass_in_a_module_of_the_root_is_found():
    planted = Resolver(with_planted(planted="from refold.engine.engine import Engine\nclass X(Engine): ..."))

    assert subclasses_of_the_engine(planted) == {"refold.planted.X": "refold.engine.engine.Engine"}


def privates_across_packages(found: Resolver) -> set[tuple[str, str]]:
    """Pairs of a module and the private name of another top-level package that it imports or reaches."""
    return {
        (module, name)
        for module, name in found.imported()
        if package_of(module) != package_of(name) and is_private(name)
    }


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def test_no_package_uses_a_private_name_of_another():
    assert privates_across_packages(resolver()) == set()


@pytest.mark.parametrize(
    "text",
    [
        "from refold.engine.conversation import _in_memory",
        "from refold.engine.conversation import _in_memory as in_memory",
        "import refold.engine.conversation as conv\nconv._in_memory",
        "from refold.engine import conversation\ndef f():\n    return conversation._in_memory(1)",
        "def f():\n    from refold.engine.conversation import _in_memory",
    ],
)
def test_a_planted_use_of_a_private_name_is_found(text):
    found = privates_across_packages(Resolver(with_planted(dashboard__planted=text)))

    assert found == {("refold.dashboard.planted", "refold.engine.conversation._in_memory")}


OWN_PRIVATES = {
    "embeddings.py": "`tokenizers` has no other way to switch the cache of a tokenizer from a file off",
    "engine/conversation.py": "`Conversation.stored` is a second constructor of its class",
    "summarisers.py": "an object sets a field of a copy of itself",
    "sync.py": "the proxies of one module know each other: an engine makes a conversation",
}
"""The only files with an exception from the linter's rule SLF001, which finds every private member that is reached
from outside of its object."""
EXCUSE = re.compile(r"#\s*(?:noqa(?!:)|noqa:[^#\n]*\bSLF|ruff:\s*noqa|flake8:\s*noqa)", re.IGNORECASE)
"""A comment that switches the rule off for a line, or every rule for a line or a file."""


def excused(files: Mapping[str, str]) -> set[str]:
    return {name for name, text in files.items() if EXCUSE.search(text)}


def test_only_the_stated_files_reach_a_private_member():
    files = {name_of(path): path.read_text(encoding="utf-8") for path in MODULES}

    assert excused(files) == set(OWN_PRIVATES)


@pytest.mark.parametrize(
    "comment",
    ["# noqa: SLF001", "#noqa:SLF001", "# noqa: ARG002, SLF001", "# noqa", "# ruff: noqa", "# noqa: SLF"],
)
def test_a_planted_exception_is_found(comment):
    assert excused({"dashboard/app.py": f"x = chat._state  {comment}\n"}) == {"dashboard/app.py"}
    assert excused({"dashboard/app.py": "x = 1  # noqa: A002  # the word users know\n"}) == set()


def test_the_rule_is_on_for_the_whole_source():
    """A table in the linter's configuration could switch it off for a folder."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    per_file = settings["per-file-ignores"]

    assert not {"SLF", "SLF001", "ALL"} & {*settings.get("ignore", ())}
    assert {pattern for pattern, rules in per_file.items() if "SLF001" in rules} == {
        "tests/**",
        "benchmarks/**",
    }
