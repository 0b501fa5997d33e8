"""`refold context`: what fills the window of a transcript.

One idea: the same report is drawn for people and printed for programs. It says what each number is worth (counted,
estimated or reported) and ends with one sentence about what it means.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from refold.cli import output, reading
from refold.cli.grid import ALARM, LOOKS, Look, draw, tokens_in
from refold.cli.output import plural
from refold.cli.sizing import ModelSource, Sizing, Wish, size_up
from refold.core.budget import input_limit, tokens_of
from refold.core.measure import count_fixed, measure
from refold.core.view import View
from refold.model.tokens import Measurement, Region, Source
from refold.wire import Request

MODEL_SOURCES: dict[ModelSource, str] = {
    "option": "--model",
    "file": "from the file",
    "default": "default: the file names none",
}
WINDOW_SOURCES = {
    "override": "--window",
    "catalogue": "catalogue",
    "pattern": "from its name",
    "default": "assumed",
}

WIDTH_WITH_WORDS = 76


class Report(Struct, frozen=True):
    """Everything `refold context` says about a transcript."""

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


def run(path: str, wish: Wish, *, format_name: str, max_body_bytes: int, as_json: bool) -> int:
    data = reading.read_bytes(path, limit=max_body_bytes)
    with output.busy("measuring", len(data)):
        request = reading.decode(data, path, format_name=format_name, limit=max_body_bytes)
        report = inspect(request, reading.shown_name(path), size_up(request, wish))
    output.warn(report.sizing.warning)
    if as_json:
        output.write_json(as_document(report))
    else:
        output.show(*page(report, output.screen_width()))
    return 0


def inspect(request: Request, file: str, sizing: Sizing) -> Report:
    """Measure a transcript."""
    from refold.tokens import counter_for

    counter = counter_for(sizing.model)
    view = View.of(request.messages, request.dialect, counter)
    measurement = measure(view, count_fixed(request.fixed, counter), sizing.budget)
    size = len(view) + request.offset
    return Report(file, request.dialect.name, size, len(view.turn_starts), sizing, measurement)


def page(report: Report, width: int) -> Iterator[Text | Table]:
    """A report on a screen of so many columns."""
    yield from headline(report)
    yield Text()
    yield from draw(report.measurement, width)
    yield Text()
    yield region_table(report, width)
    yield Text()
    yield verdict(report)


def headline(report: Report) -> Iterator[Text]:
    sizing = report.sizing
    counts = f"{plural(report.messages, 'message')}, {plural(report.turns, 'turn')}"
    yield Text.assemble((report.file, "bold"), f"  {report.format}, {counts}")
    yield Text.assemble(
        (output.plain(sizing.model), "bold"),
        f" ({MODEL_SOURCES[sizing.model_source]})",
        f"  window {report.window:,} tokens ({WINDOW_SOURCES[sizing.window_source]})",
    )


def region_table(report: Report, width: int) -> Table:
    """The regions in numbers; on a narrow screen without the words."""
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


class Row(Struct, frozen=True):
    region: Region
    tokens: int
    share: float
    """Of the window."""
    source: Source | None
    """None where there is nothing to count, and for the reserve, which was chosen and not measured."""


def rows(report: Report) -> list[Row]:
    """Every region in the order of the grid; a summary only where there is one."""
    measured = report.measurement
    found = [(region, tokens_in(measured, region)) for region in LOOKS]
    return [
        Row(region, tokens, tokens / report.window, _source(measured, region))
        for region, tokens in found
        if tokens or region != "summary"
    ]


def verdict(report: Report) -> Text:
    """What it means, in one sentence."""
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


def as_document(report: Report) -> dict[str, object]:
    """The report for programs; its keys are documented and stay."""
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


def percent(share: float, *, digits: int = 1) -> str:
    if 0 < share < 0.001 and digits:
        return "< 0.1 %"
    return f"{100 * share:,.{digits}f} %"


def _rounded(row: Row) -> dict[str, object]:
    return {"region": row.region, "tokens": row.tokens, "share": round(row.share, 4), "source": row.source}


def _source(measured: Measurement, region: Region) -> Source | None:
    if region == "reserve":
        return None
    if region == "free":
        return measured.content.source
    count = getattr(measured, region)
    return count.source if count.tokens else None


def _cells(row: Row) -> tuple[Text | str, ...]:
    look = LOOKS[row.region]
    meaning = "what does not fit" if row.tokens < 0 else look.meaning
    return _swatch(look), look.name, f"{row.tokens:,}", percent(row.share), row.source or "", meaning


def _total_cells(report: Report) -> tuple[str, ...]:
    content = report.measurement.content
    share = percent(content.tokens / report.window)
    return "", "content", f"{content.tokens:,}", share, content.source, "everything that is sent"


def _swatch(look: Look) -> Text:
    return Text(f"{look.glyph} ", style=look.style)
