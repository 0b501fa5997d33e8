"""Adapters without their frameworks: nothing is imported before it is used, and a missing framework is named with its extra."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import refold

ROOT = Path(__file__).parents[2]
ADAPTERS = {
    "langchain": "langchain",
    "litellm": "litellm",
    "openai_agents": "openai-agents",
    "pydantic_ai": "pydantic-ai",
}
"""The extra of each adapter that needs a framework, by its module."""
FRAMEWORKS = {
    "agents",
    "anthropic",
    "langchain",
    "langchain_core",
    "langgraph",
    "litellm",
    "llms",
    "mcp",
    "openai",
    "pydantic_ai",
}


@pytest.mark.parametrize("module", ADAPTERS)
def test_a_missing_framework_is_named_with_its_extra(module, monkeypatch):
    for name in FRAMEWORKS:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"refold.integrations.{module}", raising=False)

    with pytest.raises(refold.MissingExtra) as raised:
        importlib.import_module(f"refold.integrations.{module}")

    assert f"refold[{ADAPTERS[module]}]" in str(raised.value.hint)


def test_every_adapter_has_an_extra_versions_and_a_test():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    folder = ROOT / "tests" / "integrations" / "frameworks"
    versions = tomllib.loads((folder / "versions.toml").read_text(encoding="utf-8"))

    assert set(ADAPTERS.values()) <= extras.keys()
    assert {f"test_{name}.py" for name in versions} == {path.name for path in folder.glob("test_*.py")}


BLOCKED = """
import importlib, json, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            tried.append(name)
            raise ImportError(name)

blocked, tried, found = set(json.loads(sys.argv[1])), [], {}
sys.meta_path.insert(0, Block())
import refold.integrations
from refold.model.errors import MissingExtra

for one in pkgutil.iter_modules(refold.integrations.__path__):
    try:
        importlib.import_module(f"refold.integrations.{one.name}")
        found[one.name] = ""
    except MissingExtra as error:
        found[one.name] = error.hint
refold.wrap
print(json.dumps([found, tried, sorted(blocked & sys.modules.keys())]))
"""


def test_every_adapter_can_be_imported_or_names_its_extra_where_no_framework_is_there():
    """In a process of its own. What needs no framework asks for none; what does asks for its own only."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps([*FRAMEWORKS])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found, tried, loaded = json.loads(done.stdout)

    needs = {name for name, hint in found.items() if hint}
    assert needs == {*ADAPTERS, "mcp"}
    assert all(f"refold[{extra}]" in found[name] for name, extra in {**ADAPTERS, "mcp": "mcp"}.items())
    assert len({name.partition(".")[0] for name in tried}) == len(needs), "each asked for its own"
    assert loaded == []


def test_the_package_and_its_names_load_no_framework():
    code = "import sys, refold, refold.integrations; refold.wrap, refold.Chat, refold.Engine; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert FRAMEWORKS.isdisjoint(result.stdout.split())
    assert not [name for name in ADAPTERS if f"refold.integrations.{name}" in result.stdout.split()]


def test_the_extension_of_llms_py_is_a_folder_with_an_install_function(tmp_path, monkeypatch, capsys):
    from refold.integrations import llms_py

    monkeypatch.setenv("LLMS_EXTENSIONS_DIR", str(tmp_path))
    llms_py.main()
    folder = tmp_path / "context_compaction"
    spec = importlib.util.spec_from_file_location("context_compaction", folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert capsys.readouterr().out == f"{folder}\n"
    assert module.__install__ is llms_py.install


def test_the_settings_of_the_extension_are_checked_as_a_whole():
    from refold.integrations.llms_py import ExtensionConfig, updated

    assert updated(ExtensionConfig(), {"threshold": 0.5, "model": "small"}).threshold == 0.5
    for wrong, named in (
        ({"threshold": 80}, "threshold"),
        ({"treshold": 0.5}, "treshold"),
        ({"enabled": "no"}, "enabled"),
    ):
        with pytest.raises(refold.ConfigError, match=named):
            updated(ExtensionConfig(), wrong)
