"""`refold context`: the regions that fill the window of a transcript.

The same report is drawn for people and printed for programs. Every number has its source: counted, estimated or reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

from refold.cli import output
from refold.cli.options import File, Json, SizeOptions, TranscriptOptions, expanded
from refold.cli.output import ALARM, percent, plural
from refold.model.tokens import Measurement, Region, Source

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from refold.cli.transcript import Sizing
    from refold.wire import Request
from collections.abc import Iterable

from rich.text import Text

WIDTH_WITH_WORDS = 76


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold context examples/coding-agent.json --model gpt-4o")(expanded(context))


def context(file: File, *, sizes: SizeOptions, reads: TranscriptOptions, as_json: Json = False) -> int:
    """Show what fills the context window.

    Draws the window as a grid of 200 cells and lists its regions, each with its tokens and where the number comes from:
    counted with the model's tokenizer, or estimated.
    """
    from refold.cli import transcript

    data = transcript.read_bytes(file, limit=reads.max_body_bytes)
    with output.busy("measuring", len(data)):
        request = transcript.decode(data, file, reads)
        report = inspect(request, transcript.shown_name(file), transcript.size_up(request, sizes))
    output.warn(report.sizing.warning)
    if as_json:
        output.write_json(as_document(report))
    else:
        output.show(*page(report, output.screen_width()))
    return 0


class ContextReport(Struct, frozen=True):
    """The measurement of one transcript."""

    file: str
    format: str
    messages: int
    """As many as the list in the file has, a leading system prompt included."""
    turns: int
    sizing: Sizing
    measurement: Measurement

    @property
    def window(self) -> int:
        return self.sizing.budget.window


def inspect(request: Request, file: str, sizing: Sizing) -> ContextReport:
    """Measure a transcript."""
    from refold.core.measure import count_fixed, measure
    from refold.core.view import View
    from refold.tokens import counter_for

    counter = counter_for(sizing.model)
    view = View.of(request.messages, request.dialect, counter)
    measurement = measure(view, count_fixed(request.fixed, counter), sizing.budget)
    size = len(view) + request.offset
    return ContextReport(file, request.dialect.name, size, len(view.turn_starts), sizing, measurement)


def page(report: ContextReport, width: int) -> Iterator[Text | Table]:
    """A report on a screen of so many columns."""
    from rich.text import Text

    from refold.core.budget import arithmetic

    yield from headline(report)
    yield Text()
    yield from draw(report.measurement, width)
    yield Text()
    yield region_table(report, width)
    yield Text()
    yield verdict(report)
    yield Text(f"room for input: {arithmetic(report.sizing.budget)}")


def headline(report: ContextReport) -> Iterator[Text]:
    from rich.text import Text

    from refold.cli.transcript import MODEL_SOURCES, WINDOW_SOURCES

    sizing = report.sizing
    counts = f"{plural(report.messages, 'message')}, {plural(report.turns, 'turn')}"
    yield Text.assemble((report.file, "bold"), f"  {report.format}, {counts}")
    yield Text.assemble(
        (output.plain(sizing.model), "bold"),
        f" ({MODEL_SOURCES[sizing.model_source]})",
        f"  window {report.window:,} tokens ({WINDOW_SOURCES[sizing.window_source]})",
    )


def region_table(report: ContextReport, width: int) -> Table:
    """The regions in numbers; on a narrow screen without the words."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("region", no_wrap=True)
    for name in ("tokens", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    if width >= WIDTH_WITH_WORDS:
        table.add_column("what it is", style="dim", no_wrap=True)
    columns = len(table.columns)
    for row in rows(report):
        if row.region == "free":
            table.add_row(*_total_cells(report)[:columns], style="bold")
        table.add_row(*_cells(row)[:columns], style=ALARM if row.tokens < 0 else "")
    return table


class RegionRow(Struct, frozen=True):
    """One region in numbers."""

    region: Region
    tokens: int
    share: float
    """Of the window."""
    source: Source | None
    """None where there is nothing to count, and for the reserve, which was chosen and not measured."""


def rows(report: ContextReport) -> list[RegionRow]:
    """Every region in the order of the grid; a summary only where there is one."""
    measured = report.measurement
    found = [(region, tokens_in(measured, region)) for region in LOOKS]
    return [
        RegionRow(region, tokens, tokens / report.window, _source(measured, region))
        for region, tokens in found
        if tokens or region != "summary"
    ]


def verdict(report: ContextReport) -> Text:
    """One sentence: how full the window is, and how far away compaction is."""
    from rich.text import Text

    from refold.core.budget import input_limit, tokens_of

    content, budget = report.measurement.content, report.sizing.budget
    full = f"{percent(content.tokens / report.window, digits=0)} full"
    if report.measurement.free < 0:
        reserve = report.measurement.reserve
        kept = f", with the {reserve:,} kept for the reply" if reserve else ""
        return Text(f"{full}: {plural(-report.measurement.free, 'token')} too many{kept}", style=ALARM)
    trigger, limit = tokens_of(budget.trigger, budget), input_limit(budget)
    at = min(trigger, limit)
    what = "compaction would start" if trigger <= limit else "what is kept for the reply starts"
    place = f"{full}; {what} at {percent(at / report.window, digits=0)}"
    if content.tokens < at:
        return Text(f"{place}: {plural(at - content.tokens, 'token')} from here")
    return Text(f"{place}: {plural(content.tokens - at, 'token')} ago", style="bold color(208)")


def as_document(report: ContextReport) -> dict[str, object]:
    """The report for programs; its keys are documented and stay."""
    from refold.core.budget import arithmetic, input_limit, tokens_of

    sizing, measured = report.sizing, report.measurement
    trigger = tokens_of(sizing.budget.trigger, sizing.budget)
    return {
        "file": report.file,
        "format": report.format,
        "messages": report.messages,
        "turns": report.turns,
        "model": sizing.model,
        "model_source": sizing.model_source,
        "window": {"tokens": report.window, "source": sizing.window_source, "warning": sizing.warning},
        "max_output": sizing.budget.max_output,
        "limit": {"tokens": input_limit(sizing.budget), "arithmetic": arithmetic(sizing.budget)},
        "regions": [_rounded(row) for row in rows(report)],
        "content": {
            "tokens": measured.content.tokens,
            "share": round(measured.content.tokens / report.window, 4),
            "source": measured.content.source,
        },
        "trigger": {"tokens": trigger, "remaining": trigger - measured.content.tokens},
        "fits": measured.free >= 0,
    }


def _rounded(row: RegionRow) -> dict[str, object]:
    return {"region": row.region, "tokens": row.tokens, "share": round(row.share, 4), "source": row.source}


def _source(measured: Measurement, region: Region) -> Source | None:
    if region == "reserve":
        return None
    if region == "free":
        return measured.content.source
    count = getattr(measured, region)
    return count.source if count.tokens else None


def _cells(row: RegionRow) -> tuple[Text | str, ...]:

    look = LOOKS[row.region]
    meaning = "what does not fit" if row.tokens < 0 else look.meaning
    return _swatch(look), look.name, f"{row.tokens:,}", percent(row.share), row.source or "", meaning


def _total_cells(report: ContextReport) -> tuple[str, ...]:
    content = report.measurement.content
    share = percent(content.tokens / report.window)
    return "", "content", f"{content.tokens:,}", share, content.source, "everything that is sent"


def _swatch(look: Look) -> Text:
    from rich.text import Text

    return Text(f"{look.glyph} ", style=look.style)


# The window as a grid of cells, each one two-hundredth of it. The grid is drawn to scale. A region
# that is not empty has at least one cell, every cell has the letter of its region so that colour is
# never needed, and tokens beyond the window are drawn below a line that says so.

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
