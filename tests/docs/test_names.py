"""The pages for engineers name only modules, files and classes that exist, and the glossary has every word of a module border."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from refold.config.tree import all_keys
from tests.source_names import Resolver, nodes_of, project, resolver, with_planted

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "refold"
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = [ROOT / "docs" / "architecture.md", GLOSSARY, ROOT / "CONTRIBUTING.md"]
FILE = re.compile(r"(?<![\w/.*{-])[\w./-]+\.(?:py|sql|toml)\b(?!\.\w)")
SPAN = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
ROW = re.compile(r"^\| (?!word \||---)(.+?) \| (.+) \| (.+?) \|$", re.MULTILINE)


def bound(node: ast.AST) -> set[str]:
    """The names that a statement of a module or a class binds, those of its imports included."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.ImportFrom() | ast.Import():
            return {alias.asname or alias.name for alias in node.names}
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return set()


@cache
def names_in(module: str) -> set[str]:
    return set().union(*map(bound, project()[module].body))


@cache
def classes() -> dict[str, set[str]]:
    """The members of every class by its name: methods, fields, and the attributes that its methods set."""
    found: dict[str, set[str]] = {}
    for tree in project().values():
        for node in nodes_of(tree):
            if isinstance(node, ast.ClassDef):
                members = set().union(*map(bound, node.body))
                members |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
                found[node.name] = found.get(node.name, set()) | members
    return found


@cache
def setting_names() -> set[str]:
    return {key.name for key in all_keys()} | {key.name.partition(".")[0] for key in all_keys()}


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, to a name in one, or to a member of a class in one."""
    first, _, member = name.partition(".")
    if first in classes() and member.count(".") == 0:
        return member in classes()[first]
    whole = f".{name}"
    if any(f".{module}".endswith(whole) for module in project()):
        return True
    for module in project():
        for split in range(1, name.count(".") + 1):
            parts = name.split(".")
            if not f".{module}".endswith("." + ".".join(parts[:split])):
                continue
            held, *rest = parts[split:]
            if held in names_in(module) and (not rest or rest[0] in classes().get(held, ())):
                return True
    return False


def unknown_names(text: str) -> list[str]:
    """The names in a page that lead nowhere: dotted names and classes in code spans."""
    unknown = []
    for span in SPAN.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        name = span.partition("(")[0]
        if FILE.fullmatch(span) or span in setting_names() or span.startswith(("--", "make ", "$ ")):
            continue
        if DOTTED.fullmatch(name) and not name.endswith((".md", ".sql", ".toml", ".json", ".yml")):
            unknown += [] if is_there(name) else [name]
        elif CLASS.fullmatch(name) and not any(name in names_in(module) for module in project()):
            unknown.append(name)
    return unknown


def missing_files(text: str) -> list[str]:
    """The files in a page that are neither below the root of the project nor below `src/refold`."""
    named = [name for name in FILE.findall(text) if name not in ("pyproject.toml", "features.toml")]
    return [name for name in named if not ((ROOT / name).exists() or (SOURCE / name).exists())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_for_engineers_names_what_there_is(page):
    text = page.read_text(encoding="utf-8")

    assert missing_files(text) == []
    assert unknown_names(text) == []


def files_gone(package: Path, docstring: str) -> list[str]:
    """The files that the docstring of a package names and that are not below it; a quoted one is an example."""
    named = [
        name for name in FILE.findall(re.sub(r'"[^"\n]*"', "", docstring)) if name.endswith((".py", ".sql"))
    ]
    return [name for name in named if not any(package.rglob(name))]


@pytest.mark.parametrize("package", sorted(SOURCE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_a_package_names_the_files_that_it_has(package):
    docstring = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""

    assert files_gone(package.parent, docstring) == []


def test_a_file_that_a_package_no_longer_has_is_found():
    assert files_gone(SOURCE / "stores", "sql/ rows.py, shared.sql  migrations.py") == ["migrations.py"]


USER_PAGES = sorted({ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")} - set(PAGES))
INNER = re.compile(r"(?:refold|core|wire|ports|stores)\.[a-z_]+\.\w+(?:\.\w+)*")


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_a_page_for_users_names_no_module_that_is_gone(page):
    spans = [span.partition("(")[0] for span in SPAN.findall(page.read_text(encoding="utf-8"))]

    assert [name for name in spans if INNER.fullmatch(name) and not is_there(name)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`refold.engine.state`, `State.folded`, `actions.add`, `core.plan`, `store.url`", []),
        ("`refold.engine.keeping`", ["refold.engine.keeping"]),
        ("`State.nothing` of a `Memory`", ["State.nothing", "Memory"]),
        ("`actions.fold()`", ["actions.fold"]),
        ("`refold.engine.state.Memory`", ["refold.engine.state.Memory"]),
    ],
)
def test_a_name_that_is_gone_is_found(text, found):
    assert unknown_names(text) == found


def test_a_file_that_is_gone_is_found():
    assert missing_files("engine/state.py, engine/memory.py, tests/docs/test_names.py") == [
        "engine/memory.py"
    ]


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall(GLOSSARY.read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_word_of_the_glossary_lives_where_its_row_says(row):
    words, meaning, place = row
    homes = [name for name in SPAN.findall(place) if name in project()]

    assert meaning
    assert homes, f"the last column names no module: {place}"
    assert not [word for word in SPAN.findall(words) if not any(word in names_in(home) for home in homes)]


def test_every_line_of_a_table_of_the_glossary_is_a_row():
    """An empty line inside of a table ends it, and the rows after it are shown as text."""
    blocks = re.split(r"\n\s*\n", GLOSSARY.read_text(encoding="utf-8"))
    tables = [block for block in blocks if block.lstrip().startswith("|")]

    assert tables
    assert all(block.startswith("| word | meaning | where |\n|---|---|---|\n| ") for block in tables)


ELSEWHERE = {"refold.model.errors"}
"""Errors have a page of their own (errors.md, tested)."""
EXPORTS = {"refold", "refold.policies"}
"""Modules that only pass names on."""


def crossing(found: Resolver) -> set[str]:
    """The full names of classes and types that another module uses, whatever it calls them."""
    names = set()
    for user, name in found.imported():
        parts = name.split(".")
        ends = [at for at in range(1, len(parts)) if ".".join(parts[:at]) in found.sources]
        module, held = ".".join(parts[: ends[-1]]), parts[ends[-1]]
        if user not in EXPORTS and module not in ELSEWHERE and user != module:
            names |= {f"{module}.{held}"} if CLASS.fullmatch(held) else set()
    return names


def without_row(names: set[str]) -> list[str]:
    """The names that no row explains. A row stands for the modules that it names, and for those inside of a package."""
    homes: dict[str, list[str]] = {}
    for words, _, place in rows():
        for word in SPAN.findall(words):
            homes.setdefault(word, []).extend(SPAN.findall(place))

    def has_row(name: str) -> bool:
        module, _, word = name.rpartition(".")
        return any(f"{module}.".startswith(f"{home}.") for home in homes.get(word, ()))

    return sorted(name for name in names if not has_row(name))


def test_the_glossary_has_every_type_that_crosses_a_module_border():
    assert without_row(crossing(resolver())) == []


@pytest.mark.parametrize(
    "text",
    [
        "from refold.engine.conversation import _Received as Taken, UnsettledCommit",
        "from refold.engine.conversation import UnsettledCommit as U2",
        "import refold.engine.conversation as conv\nconv.UnsettledCommit",
        "def f():\n    from refold.engine import conversation\n    return conversation.UnsettledCommit",
    ],
)
@pytest.mark.parametrize("place", ["dashboard__planted", "engine__planted"])
def test_a_planted_type_without_a_row_is_found(text, place):
    planted = Resolver(with_planted(**{place: text}))
    found = {name for name in crossing(planted) if "engine.conversation" in name}

    assert without_row(found) == ["refold.engine.conversation.UnsettledCommit"]


def test_a_row_stands_for_the_types_of_its_own_modules():
    explained = {"refold.engine.engine.Engine", "refold.sync.Engine", "refold.core.stages.fit.Fit"}

    assert without_row(explained | {"refold.engine.state.Engine"}) == ["refold.engine.state.Engine"]


def missing_parts(text: str) -> list[str]:
    """The packages and root modules of the source that a text does not name."""
    parts = [path for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    parts += [path for path in (SOURCE / "core").iterdir() if (path / "__init__.py").exists()]
    names = {path.name if path.suffix else f"{path.name}/" for path in parts}
    return sorted(name for name in names if not re.search(rf"(?<![\w.]){re.escape(name)}", text))


def section(page: Path, title: str) -> str:
    return page.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_tree_of_the_contributing_page_has_every_package_and_root_module():
    assert missing_parts(section(ROOT / "CONTRIBUTING.md", "The tree")) == []
    assert missing_parts("core/ sync.py")[:2] == ["__init__.py", "__main__.py"]


def layer_names() -> set[str]:
    """The packages and root modules of the import contract."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return {name for line in layers for name in re.findall(r"\w+", line)} - {"__main__"}


@pytest.mark.parametrize(
    "page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"], ids=lambda page: page.name
)
def test_the_drawn_layers_are_those_of_the_contract(page):
    drawn = section(page, "Layers").partition("```\n")[2].partition("```")[0]
    names = set(re.findall(r"\w+", drawn))

    assert layer_names() - names == set()


NOT_IN_MAP = {"__init__", "__main__"}


def map_faults(table: str) -> list[str]:
    """Modules that the row of their package lacks, and names in a row that are no module or folder of its package. The modules
    of the commands are not listed one by one.
    """
    faults, packages = (
        [],
        {path.parent for path in SOURCE.rglob("__init__.py")} - {SOURCE / "cli" / "commands"},
    )
    for row in (line for line in table.splitlines() if line.startswith(("| `", "| root "))):
        cell, _, rest = row.removeprefix("| ").partition(" | ")
        folders = [SOURCE / name for name in SPAN.findall(cell)] or [SOURCE]
        modules = {path.stem for folder in folders for path in folder.glob("*.py")} - NOT_IN_MAP
        parts = {path.name for folder in folders for path in folder.iterdir() if path.is_dir()}
        listed = {span for span in SPAN.findall(rest) if re.fullmatch("[a-z_]+/?", span)}
        faults += [f"{cell} lacks {name}" for name in sorted(modules - listed)]
        faults += [f"{cell} has {name}" for name in sorted(listed) if name.rstrip("/") not in modules | parts]
        packages -= {*folders}
    return [*faults, *(f"no row for {path.name}" for path in sorted(packages))]


def test_the_map_of_the_packages_has_every_module_and_no_other():
    table = section(ROOT / "docs" / "architecture.md", "Map of the packages")

    assert map_faults(table) == []
    assert "`chat/` lacks holder" in map_faults(table.replace("`holder`", "holder"))
    assert "`chat/` has keeper" in map_faults(table.replace("`holder`", "`holder`, `keeper`"))
    assert "no row for chat" in map_faults(table.replace("| `chat/` |", "| chat |"))
