from __future__ import annotations

import json

import pytest

from refold.cli.commands.models import MAX_ROWS, find, price, table
from refold.tokens import Model, find_model, search_models

SMALL = Model("acme", "tiny", 8192, 0, 0.0, 0.05, None, 0.1143)
LARGE = Model(
    "acme", "a-model-with-a-name-that-is-longer-than-most", 1_000_000, 64_000, 3.0, 15.0, 0.3, 3.75, 936_000
)


def test_the_table_has_one_line_to_a_model_with_the_name_last(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert table([LARGE, SMALL]).splitlines() == [
        "   window    input  output  $ in  $ out  $ read  $ write  provider/model",
        "1,000,000  936,000  64,000  3.00  15.00    0.30     3.75  acme/a-model-with-a-name-that-is-longer-than-most",
        "    8,192        -       -  0.00   0.05       -   0.1143  acme/tiny",
    ]


def test_the_table_fits_a_screen_of_80_columns(refold):
    every = refold("models", "--all").out.splitlines()

    assert max(map(len, every)) <= 80
    assert every[0].split() == ["window", "$", "in", "$", "out", "provider/model"]


@pytest.mark.parametrize(
    ("dollars", "text"), [(None, "-"), (0, "0.00"), (2.5, "2.50"), (0.075, "0.075"), (0.11428571, "0.1143")]
)
def test_a_price_that_is_not_known_is_not_zero(dollars, text):
    assert price(dollars) == text


@pytest.mark.feature("X8")
def test_the_model_that_is_meant_comes_first(refold):
    code, out, err = refold("models", "gpt-4o")

    assert code == 0
    assert out.splitlines()[1].endswith("  openai/gpt-4o")
    assert len(find("gpt-4o")) == len(set(search_models("gpt-4o")))
    assert f"of {len(find('gpt-4o')):,} models that match 'gpt-4o'" in err


def test_a_name_that_only_a_lookup_understands_is_found():
    assert find("openai/gpt-4o:free") == [find_model("gpt-4o")]


def test_few_rows_unless_all_are_wanted(refold):
    code, some, err = refold("models")
    _, every, told = refold("models", "--all")

    assert code == 0
    assert len(some.splitlines()) == MAX_ROWS + 1
    assert err.splitlines()[1] == "hint: --all shows every one, a pattern fewer"
    assert len(every.splitlines()) == len(search_models("")) + 1
    assert told == f"{len(search_models('')):,} models\n"


def test_no_match_is_said_with_a_hint(refold):
    code, out, err = refold("models", "nobody-knows-it")

    assert (code, out) == (1, "")
    assert err.startswith("no models that match 'nobody-knows-it'\nhint: ")


def test_programs_get_every_match(refold):
    code, out, err = refold("models", "claude", "--json")

    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["pattern"] == "claude"
    assert document["matched"] == len(document["models"]) > MAX_ROWS
    assert set(document["models"][0]) == {
        "provider",
        "id",
        "window",
        "max_input",
        "max_output",
        "input_price",
        "output_price",
        "cache_read_price",
        "cache_write_price",
    }


def test_programs_see_no_match_too(refold):
    code, out, err = refold("models", "nobody-knows-it", "--json")

    assert (code, err) == (1, "")
    assert json.loads(out) == {"pattern": "nobody-knows-it", "matched": 0, "models": []}
