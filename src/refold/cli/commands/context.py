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

    from refold.cli.grid import Look
    from refold.cli.transcript import Sizing
    from refold.wire import Request

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

    from refold.cli.grid import draw

    yield from headline(report)
    yield Text()
    yield from draw(report.measurement, width)
    yield Text()
    yield region_table(report, width)
    yield Text()
    yield verdict(report)


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
    from refold.cli.grid import LOOKS, tokens_in

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
    from refold.core.budget import tokens_of

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
    from refold.cli.grid import LOOKS

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
