from __future__ import annotations

import pytest
from rich.cells import cell_len

from refold.replay.candidate import BASELINES, DropOldest
from refold.replay.facts import REFERENCE
from refold.replay.run import run
from refold.replay.table import WIDTH, percent, render, tabulate
from tests.replay.recordings import recordings


class LongName(DropOldest):
    name = "a candidate whose name is longer than any column"


class WideName(DropOldest):
    name = "夜行船の要約"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    own = recordings(tmp_path_factory.mktemp("own"))
    return render(tabulate(run(own, [*BASELINES, LongName, WideName], [1_500, 90_000]), REFERENCE))


@pytest.mark.feature("N6")
def test_every_candidate_has_a_row_in_every_window(text):
    first, second = text.split("window 90,000")

    assert first.startswith("window 1,500: 2 recordings, 116 calls; demands: ")
    for make in BASELINES:
        held, costs = [line for line in first.splitlines() if line.startswith(make.name)]
        assert len(held.split()) - len(make.name.split()) == 11
        assert len(costs.split()) - len(make.name.split()) == 8
    assert "no recording is longer than this window" in second


def test_it_fits_into_80_columns(text):
    assert max(map(cell_len, text.splitlines())) == WIDTH == 80
    assert "- lines --" in text


def test_a_long_name_is_shown_whole_on_a_line_of_its_own(text):
    lines = text.split("window 90,000")[0].splitlines()
    held, costs = [at for at, line in enumerate(lines) if line == LongName.name]

    assert len(lines[held + 1].split()) == 11
    assert len(lines[costs + 1].split()) == 8


def test_a_name_in_wide_characters_keeps_the_columns_in_line(text):
    held, _ = [line for line in text.splitlines() if line.startswith(WideName.name)]
    head = next(line for line in text.splitlines() if line.startswith("candidate"))

    assert cell_len(held) == cell_len(head) == WIDTH


def test_it_says_what_was_counted_and_what_the_columns_mean(text):
    assert "tokens: reference: (characters + 3) // 4" in text
    assert "2nd: old by another way to find literals" in " ".join(text.split())
    assert "tariff anthropic" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (100.0, "100"),
        (99.97, "99.9"),
        (99.94, "99.9"),
        (0.0, "0.0"),
        (0.01, "<0.1"),
        (67.36, "67.4"),
    ],
)
def test_no_number_is_rounded_into_a_gate(value, shown):
    assert percent(value) == shown
