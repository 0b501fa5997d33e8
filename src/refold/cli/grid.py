"""The window as a grid of cells, each one two-hundredth of it.

The grid is drawn to scale. A region that is not empty has at least one cell, every cell has the letter of its region so that colour
is never needed, and tokens beyond the window are drawn below a line that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from rich.text import Text

from refold.cli.output import ALARM, plural
from refold.model.tokens import Measurement, Region

CELLS = 200
"""Half a percent each: fine enough to see one large tool result, few enough to fit on a small screen."""
ROW_CELLS = 40
"""Two columns to a cell are about as wide as a line is high, and 40 of them fill 80 columns."""
MAX_SPILL_ROWS = 2
"""Enough to see which regions spill over; more would push the head of the page off a small screen."""


class Look(Struct, frozen=True):
    """The letter and the style of a region, and its meaning in a few words."""

    name: str
    glyph: str
    style: str
    meaning: str


LOOKS: dict[Region, Look] = {
    "system": Look("system", "S", "black on color(75)", "system prompt"),
    "tools": Look("tools", "T", "black on color(141)", "tool definitions"),
    "summary": Look("summary", "U", "black on color(252)", "what stands for earlier messages"),
    "history": Look("history", "H", "black on color(71)", "earlier turns"),
    "tool_results": Look("tool results", "R", "black on color(179)", "results in earlier turns"),
    "tail": Look("tail", "L", "black on color(44)", "the active turn so far"),
    "input": Look("input", "I", "black on color(211)", "what the next call adds"),
    "free": Look("free", ".", "dim", "room left"),
    "reserve": Look("reserve", "=", "white on color(240)", "kept for the reply"),
}
"""In the order of the grid: the reserve is at the end, where the reply goes."""


class Run(Struct, frozen=True):
    """Cells of one region in a row."""

    region: Region
    cells: int


def tokens_in(measurement: Measurement, region: Region) -> int:
    if region == "free":
        return measurement.free
    if region == "reserve":
        return measurement.reserve
    return int(getattr(measurement, region).tokens)


def lay_out(measurement: Measurement) -> tuple[Run, ...]:
    """The cells of every region, in order: 200 in all, more if the window is overfull."""
    sizes = {region: tokens_in(measurement, region) for region in LOOKS}
    cells = {
        region: max(1, round(size * CELLS / measurement.window)) for region, size in sizes.items() if size > 0
    }
    total, largest = sum(cells.values()), max(cells, key=cells.__getitem__)
    if measurement.free >= 0:
        cells[largest] += CELLS - total
    elif total <= CELLS:
        cells[largest] += CELLS + 1 - total
    return tuple(Run(region, count) for region, count in cells.items())


def draw(measurement: Measurement, width: int) -> Iterator[Text]:
    """The grid, line by line. `width` is that of the screen, in columns."""
    per_row = max(1, min(ROW_CELLS, width // 2))
    inside, spilled = split(lay_out(measurement), CELLS)
    yield from _rows(inside, per_row)
    if spilled:
        over = f" the window ends here: {plural(-measurement.free, 'token')} too many "
        yield Text(over.center(min(width, 2 * per_row) - 1, "-"), style=ALARM)
        shown, hidden = split(spilled, MAX_SPILL_ROWS * per_row)
        yield from _rows(shown, per_row)
        if hidden:
            yield Text(f"... and {sum(run.cells for run in hidden):,} cells more", style=ALARM)


def split(runs: Iterable[Run], at: int) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The first `at` cells, and the rest."""
    before: list[Run] = []
    after: list[Run] = []
    for run in runs:
        taken = min(run.cells, at)
        at -= taken
        before.append(Run(run.region, taken))
        after.append(Run(run.region, run.cells - taken))
    return tuple(run for run in before if run.cells), tuple(run for run in after if run.cells)


def _rows(runs: tuple[Run, ...], per_row: int) -> Iterator[Text]:
    while runs:
        row, runs = split(runs, per_row)
        line = Text()
        for run in row:
            look = LOOKS[run.region]
            line.append(f"{look.glyph} " * run.cells, style=look.style)
        line.right_crop(1)
        yield line
