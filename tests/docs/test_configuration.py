"""The page about settings has every setting, and its examples are settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from refold.config.formats import with_reference
from refold.config.layers import STORE_VARIABLE, UPSTREAM_FLAG, UPSTREAM_LIST, Layer, environment_layer, flat
from refold.config.resolution import resolve
from refold.config.tree import all_keys

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


@pytest.mark.feature("L14")
def test_the_table_is_the_tree():
    assert with_reference(PAGE) == PAGE, "run: python -m refold.config.formats docs/configuration.md"


@pytest.mark.feature("L14")
@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name)
def test_every_setting_has_a_row_with_its_variable_its_flag_and_its_range(key):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{key.name}` |"))
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert (cells[1], cells[2].split()[0]) == (f"`{key.variable}`", f"`{key.flag}`")
    assert all(cells[3:6])


@pytest.mark.parametrize("block", re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_every_example_is_one(block):
    assert resolve([Layer("project", flat(tomllib.loads(block)))]).settings


def test_variables_and_flags_in_the_text_are_there():
    text = PAGE.partition("## All settings")[0]
    known = {key.variable for key in all_keys()} | {UPSTREAM_LIST, STORE_VARIABLE, "REFOLD_CONFIG"}
    for variable, value in re.findall(r"`(REFOLD_[A-Z_]+)(?:=([^`]*))?`", text):
        assert variable in known or environment_layer({variable: value or "x"}).values
    flags = {flag for key in all_keys() for flag in key.flags} | {UPSTREAM_FLAG, "--origin", "--user"}
    flags |= {f"--no-{key.flag.removeprefix('--')}" for key in all_keys() if key.kind == "switch"}
    assert not set(re.findall(r"(?<!-)--[a-z][a-z-]+", text)) - flags
