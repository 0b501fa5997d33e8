from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.cli.commands.context import CELLS, LOOKS, MAX_SPILL_ROWS, ROW_CELLS, Run, draw, lay_out, split
from refold.model.tokens import Measurement, TokenCount


def measured(*, window: int = 1000, reserve: int = 0, **regions: int) -> Measurement:
    counts = {region: TokenCount.of(tokens, "counted") for region, tokens in regions.items()}
    return Measurement(**counts, reserve=reserve, window=window)


def lines(measurement: Measurement, width: int = 80) -> list[str]:
    return [line.plain for line in draw(measurement, width)]


def test_every_region_has_a_glyph_and_a_colour_of_its_own():
    assert set(LOOKS) == {*Measurement.__struct_fields__, "free"} - {"window"}
    assert len({look.glyph for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.style for look in LOOKS.values()}) == len(LOOKS)


def test_cells_are_to_scale_with_the_reserve_at_the_end():
    runs = lay_out(measured(system=100, history=250, reserve=50))

    assert runs == (Run("system", 20), Run("history", 50), Run("free", 120), Run("reserve", 10))


def test_the_smallest_region_is_still_seen():
    runs = lay_out(measured(window=1_000_000, system=1, input=1))

    assert runs == (Run("system", 1), Run("input", 1), Run("free", 198))


def test_five_lines_of_forty_cells_fit_into_80_columns():
    drawn = lines(measured(system=100, history=250, reserve=50))

    assert len(drawn) == 5
    assert drawn[0] == " ".join("S" * 20 + "H" * 20)
    assert drawn[4] == " ".join("." * 30 + "=" * 10)
    assert {len(line) for line in drawn} == {79}


def test_a_wider_screen_shows_the_same_and_a_narrower_one_folds_it():
    measurement = measured(system=100, history=250)

    assert lines(measurement, 200) == lines(measurement, 80)
    assert " ".join(lines(measurement, 50)) == " ".join(lines(measurement, 80))
    assert max(map(len, lines(measurement, 50))) < 50


def test_what_does_not_fit_is_drawn_below_a_line():
    drawn = lines(measured(history=900, reserve=150))

    assert drawn[4] == " ".join("H" * 20 + "=" * 20)
    assert drawn[5].strip("-") == " the window ends here: 50 tokens too many "
    assert drawn[6:] == [" ".join("=" * 10)]


def test_one_token_too_many_is_shown_too():
    assert lines(measured(window=1_000_000, history=1_000_001))[-1] == "H"


def test_a_window_exactly_full_is_not_overfull():
    assert len(lines(measured(history=1000))) == 5


def test_an_endless_surplus_is_only_told():
    drawn = lines(measured(window=1, history=10**12))

    assert len(drawn) == 5 + 1 + MAX_SPILL_ROWS + 1
    assert drawn[-1] == f"... and {10**12 * CELLS - CELLS - MAX_SPILL_ROWS * ROW_CELLS:,} cells more"


def test_splitting_takes_a_run_apart():
    assert split((Run("system", 3), Run("free", 2)), 4) == (
        (Run("system", 3), Run("free", 1)),
        (Run("free", 1),),
    )


@given(
    st.integers(1, 10**7),
    st.lists(st.integers(0, 10**7), min_size=8, max_size=8),
)
def test_the_grid_is_never_longer_nor_shorter_than_the_window(window, sizes):
    *content, reserve = sizes
    names = ("system", "tools", "summary", "history", "tool_results", "tail", "input")
    measurement = measured(window=window, reserve=reserve, **dict(zip(names, content, strict=True)))

    runs = lay_out(measurement)

    total = sum(run.cells for run in runs)
    assert total == CELLS if measurement.free >= 0 else total > CELLS
    assert all(run.cells > 0 for run in runs)
    present = [region for region in LOOKS if region != "free" and sizes[[*names, "reserve"].index(region)]]
    assert [run.region for run in runs if run.region != "free"] == present


@pytest.mark.parametrize("width", [1, 2, 3])
def test_no_screen_is_too_narrow(width):
    assert len(lines(measured(history=1000), width)) == CELLS
