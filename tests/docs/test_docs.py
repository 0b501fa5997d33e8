"""The documentation keeps its promises: examples run, links lead somewhere, nothing public is left out."""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from refold.cli.main import run
from refold.engine.doctor import RULES
from refold.model import errors

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STORIES = [ROOT / "docs" / name for name in ("recall.md", "stored-conversations.md", "gateway-security.md")]
"""Pages whose commands build on one another: run from the first to the last, in a folder of their own."""
VARIABLE = re.compile(r"\b(?:rf_[0-9a-f_]+|[0-9a-f]{8}|[0-9a-f]{12}|\d{4}-\d\d-\d\d \d\d:\d\d)\b")
"""Keys, ids and times."""
ADAPTER = re.compile(r"^from refold\.integrations\.\w+ import ", re.MULTILINE)
"""Pages with such a line need a framework: `make test-integrations` runs them where it is installed."""
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def needs_framework(page: Path) -> bool:
    return any(ADAPTER.search(block) for block in blocks(page, "python"))


def commands(block: str) -> list[tuple[str, list[str]]]:
    """The `$ ` lines of a console block, each with the output shown below it."""
    first, *rest = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not first.strip(), "a console block starts with a command"
    return [
        (lines[0], [line.rstrip() for line in lines[1:]]) for lines in (part.splitlines() for part in rest)
    ]


def matches(shown: list[str], printed: list[str]) -> bool:
    """Are these the lines that were printed? A line `...` stands for any number of them."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(matches(shown[1:], printed[skip:]) for skip in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and matches(shown[1:], printed[1:])


@pytest.fixture
def printed(monkeypatch, capsys):
    """The lines that a command prints, in a terminal of 80 columns without colour. It runs in this process, which takes a tenth of the
    time of a program of its own; a line for the shell does not.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, value in {"NO_COLOR": "1", "COLUMNS": "80", "TERM": "dumb", "PATH": path}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(command: str) -> list[str]:
        program, *args = shlex.split(command)
        assert program == "refold", f"only refold commands are run here: {command}"
        if {*args} & {">", "|", "<", "&&"}:
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=60, check=False
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            code, (out, err) = run(args), capsys.readouterr()
        assert code == 0, f"{command}: {err}"
        return [line.rstrip() for line in out.splitlines()]

    return call


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and not needs_framework(page)],
    ids=lambda page: page.name,
)
def test_python_examples_run(page, monkeypatch, request):
    """The blocks of one page run in order, as one script, in the root of the project."""
    if "_BASE_URL=" in page.read_text(encoding="utf-8"):
        for name, value in request.getfixturevalue("served").items():
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)
    namespace: dict[str, object] = {"__name__": "__example__"}
    for block in blocks(page, "python"):
        exec(compile(ast.parse(block), str(page), "exec"), namespace)


def test_every_guide_to_a_framework_is_run_by_its_test():
    tests = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests/integrations/frameworks").glob("test_*.py")
    ]
    pages = [page.name for page in PAGES if needs_framework(page)]

    assert [name for name in pages if not any(f'run_page("{name}"' in text for text in tests)] == []


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(command, shown, id=f"{page.name}: {command}")
        for page in PAGES
        if page not in STORIES
        for block in blocks(page, "console")
        if block.startswith("$ refold ")
        for command, shown in commands(block)
    ],
)
def test_console_examples_print_what_is_shown(command, shown, printed, monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = printed(command)

    if any(line.strip() for line in shown):
        assert matches(shown, lines), "\n".join(lines)


@pytest.mark.parametrize("page", STORIES, ids=lambda page: page.name)
def test_a_story_goes_as_it_is_told(page, printed, monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFOLD_STORE", "sqlite:///chats.db")
    for command, shown in (one for block in blocks(page, "console") for one in commands(block)):
        lines = [VARIABLE.sub("#", line) for line in printed(command)]
        told = [VARIABLE.sub("#", line) for line in shown]
        assert not any(told) or matches(told, lines), f"{command}:\n{lines}"


@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        (["a", "b"], True),
        (["a"], False),
        (["a", "..."], True),
        (["...", "b"], True),
        (["a", "...", "b"], True),
        (["b", "..."], False),
        (["a", "b", "c"], False),
    ],
)
def test_only_three_dots_may_hide_output(shown, fits):
    assert matches(shown, ["a", "b"]) is fits


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))

    assert not [target for target in targets if not (page.parent / target).exists()]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_sections_lead_to_one(page):
    found = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    targets = [(page.parent / name if name else page, anchor) for name, anchor in found]

    assert [f"{target.name}#{anchor}" for target, anchor in targets if anchor not in anchors(target)] == []


def test_the_doctor_s_rules_are_told_as_they_are():
    page = (ROOT / "docs" / "stored-conversations.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| (I-\d+) \| (.*) \|$", page, re.MULTILINE) == [*RULES.items()]


def error_classes() -> list[type[errors.RefoldError]]:
    found = [errors.RefoldError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == errors.__name__]


def test_every_error_is_documented_and_no_other():
    table = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `(\w+)` ", table, re.MULTILINE)) == {
        kind.__name__ for kind in error_classes()
    }


def test_the_tree_of_errors_is_drawn_as_it_is():
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)", (errors.__doc__ or "").split("`ConfigError`")[0], re.MULTILINE)

    assert {kind.__name__ for kind in error_classes()} <= set(drawn)


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    wanted = {re.split(r"[\[<>=]", need)[0] for need in sum(extras.values(), project["dependencies"])}

    assert not [name for name in wanted - {"refold"} if f"`{name}`" not in page]
    assert not [extra for extra in extras if f"`{extra}`" not in page]


def test_every_verb_of_make_is_explained():
    verbs = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert verbs
    assert not [verb for verb in verbs if f"`make {verb}`" not in page]


PUBLIC_MODULES = {
    "refold",
    "refold.local",
    "refold.plugins",
    "refold.policies",
    "refold.sync",
    "refold.testing",
}
"""The modules that a program imports from, with the adapters in `refold.integrations`."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def inner_imports(text: str) -> list[str]:
    """The modules of Refold in a program that nobody is asked to import."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    own = {name for name in found if name.split(".")[0] == "refold"}
    return sorted(name for name in own - PUBLIC_MODULES if not name.startswith("refold.integrations."))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_python_blocks_import_public_modules_only(page):
    assert [name for block in blocks(page, "python") for name in inner_imports(block)] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_import_public_modules_only(example):
    assert inner_imports(example.read_text(encoding="utf-8")) == []


def test_an_inner_import_is_found():
    text = "import refold\nfrom refold.testing import say\nimport refold.core.cut\nfrom refold.engine import engine"

    assert inner_imports(text) == ["refold.core.cut", "refold.engine"]
