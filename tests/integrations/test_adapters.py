"""Adapters without their frameworks: nothing is imported before it is used, and a missing framework is named with its extra."""

from __future__ import annotations

import importlib
import importlib.util
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
    "litellm",
    "llms",
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


def test_no_framework_is_imported_before_it_is_used():
    code = "import sys, refold, refold.integrations, refold.integrations.histories; refold.wrap; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert FRAMEWORKS.isdisjoint(result.stdout.split())


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
