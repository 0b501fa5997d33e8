from __future__ import annotations

import pytest

from refold.replay.baselines import BASELINES, DropOldest
from refold.replay.facts import REFERENCE
from refold.replay.run import run
from refold.replay.table import WIDTH, percent, render, tabulate
from tests.replay.recordings import recordings


class LongName(DropOldest):
    name = "a candidate whose name is longer than any column"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    own = recordings(tmp_path_factory.mktemp("own"))
    return render(tabulate(run(own, [*BASELINES, LongName], [1_500, 90_000]), REFERENCE))


@pytest.mark.feature("N6")
def test_every_candidate_has_a_row_in_every_window(text):
    first, second = text.split("window 90,000")

    assert first.startswith("window 1,500: 2 recordings, 116 calls; demands: ")
    for make in BASELINES:
        (row,) = [line for line in first.splitlines() if line.startswith(make.name)]
        assert len(row.split()) - len(make.name.split()) == 19
    assert "no recording is longer than this window" in second


def test_it_fits_into_its_width(text):
    assert max(map(len, text.splitlines())) == WIDTH
    assert "a candidate whose…" in text
    assert "- lines --" in text


def test_it_says_what_was_counted_and_what_the_columns_mean(text):
    assert "tokens: reference: (characters + 3) // 4" in text
    assert "2nd: old by another way to find literals" in text
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
