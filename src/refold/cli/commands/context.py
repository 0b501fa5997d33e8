"""`refold context`: the regions that fill the window of a transcript or of a stored conversation.

The same report is drawn for people and printed for programs. Every number has its source: counted, estimated or reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, structs

from refold.cli import output
from refold.cli.options import (
    BranchId,
    JsonOption,
    Preset,
    SizeOptions,
    StoreOptions,
    TranscriptOptions,
    expanded,
)
from refold.cli.output import ALARM, percent, plural
from refold.model.errors import BudgetError, NotFound
from refold.model.tokens import CountSource, Measurement, Region

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from refold.cli.transcript import ModelSource, TranscriptSize
    from refold.core.policy import Policy
    from refold.engine.conversation import Conversation
    from refold.engine.engine import Engine
    from refold.engine.state import State
    from refold.wire import Request

WIDTH_WITH_WORDS = 76
EXAMPLES = """\b
Examples:
  refold context examples/coding-agent.json --model gpt-4o
  refold context support-42 --preset picoclaw"""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(context))


def context(
    what: Annotated[
        str,
        typer.Argument(metavar="FILE|CONV", help="A transcript (- for stdin), or a stored conversation."),
    ],
    *,
    preset: Preset = "",
    sizes: SizeOptions,
    reads: TranscriptOptions,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Show what fills the context window.

    Draws the window as a grid of 200 cells and lists its regions, each with its tokens and where the number comes from:
    counted with the model's tokenizer, or estimated. The last lines say at which sizes the preset summarises and compresses it.
    """
    from refold.cli import transcript
    from refold.cli.settings import policy_here

    if not transcript.is_file(what):
        return _context_of_conversation(what, branch, preset, sizes, place, as_json=as_json)
    data = transcript.read_bytes(what, limit=reads.max_body_bytes)
    with output.busy("measuring", len(data)):
        request = transcript.decode(data, what, reads)
        report = inspect(request, transcript.shown_name(what), transcript.size_up(request, sizes))
        limits = limits_of_file(request, sizes, policy_here(preset))
    return _deliver(structs.replace(report, limits=limits), as_json=as_json)


def _deliver(report: ContextReport, *, as_json: bool) -> int:
    output.warn(report.sizing.warning)
    if as_json:
        output.write_json(as_document(report))
    else:
        output.show(*page(report, output.screen_width()))
    return 0


def _context_of_conversation(
    name: str, branch: str, preset: str, sizes: SizeOptions, place: StoreOptions, *, as_json: bool
) -> int:
    from refold.cli import store_access
    from refold.cli.options import NO_MODEL
    from refold.cli.settings import policy_here

    policy = policy_here(preset)

    async def act(engine: Engine) -> int:
        try:
            head = await store_access.head_of(engine, name, branch)
        except NotFound as error:
            shown = output.plain(name)
            raise NotFound(f"there is no file and no conversation {shown!r}", hint=error.hint) from None
        opened = store_access.opened(engine, head, sizes, NO_MODEL, policy=policy)
        async with opened as conversation:
            report = of_conversation(name, conversation, sizes)
        report = structs.replace(report, is_off=bool(await store_access.off_name(engine, name)))
        return _deliver(report, as_json=as_json)

    return store_access.look(place, act)


def of_conversation(name: str, conversation: Conversation, sizes: SizeOptions) -> ContextReport:
    """Measure a stored conversation as its next request would be."""
    from refold.cli.transcript import TranscriptSize

    state, size = conversation.state, conversation.window
    source: ModelSource = "option" if sizes.model else "conversation"
    sizing = TranscriptSize(conversation.model, source, state.frame.budget, size.source, size.warning)
    limits = limits_of(state)
    turns = len(state.folded.shown.turn_starts)
    # As on the dashboard: the size of the next request in the provider's tokens, and the regions in proportion to it.
    measured = conversation.measurement.in_proportion(state.fill_level.tokens)
    return ContextReport(
        name,
        conversation.format,
        conversation.size,
        turns,
        sizing,
        measured,
        limits,
        size_source=state.size_source,
        damaged=conversation.journal.damaged_in(state.folded),
    )


def limits_of_file(request: Request, sizes: SizeOptions, policy: Policy) -> ContextLimits | None:
    """The limits of a transcript; None if output and instructions leave no room for messages."""
    from refold.cli.transcript import choose_max_output, choose_model
    from refold.engine.settings import ConversationSettings, state_for

    settings = ConversationSettings(
        model=choose_model(request, sizes)[0],
        window=sizes.window,
        max_output=choose_max_output(request, sizes) or None,
        policy=policy,
    )
    try:
        state, _ = state_for(settings, request.fixed)
    except BudgetError:
        return None
    return limits_of(state.showing(state.folded.extend(request.messages)))


def limits_of(state: State) -> ContextLimits:
    """The sizes at which the policy acts on the messages of a state."""
    from refold.core.triggers import fold_count

    return ContextLimits(
        state.frame.policy.name,
        state.call_size(state.folded).fold,
        fold_count(state.frame.policy.triggers),
        state.limit,
        state.arithmetic,
    )


class ContextLimits(Struct, frozen=True):
    """The sizes at which a policy acts."""

    preset: str
    summarise_at: int
    """The fold point, in the provider's tokens as far as its reports told."""
    messages: int | None
    """The number of messages at which it is summarised whatever their size; None if the policy does not count them."""
    compress_at: int
    """The wall: a larger request is not sent."""
    arithmetic: str


class ContextReport(Struct, frozen=True):
    """The measurement of one transcript or stored conversation."""

    file: str
    format: str
    messages: int
    """As many as the list in the file has, a leading system prompt included."""
    turns: int
    sizing: TranscriptSize
    measurement: Measurement
    limits: ContextLimits | None = None
    is_off: bool | None = None
    """Whether the conversation is switched off, so that nothing is summarised or compressed; None for a transcript."""
    size_source: str = ""
    """The source of the size of a conversation's next request, in words; empty for a transcript, which is counted here."""
    damaged: tuple[int, ...] = ()
    """The numbers of the messages that cannot be read, and that placeholders are sent for."""

    @property
    def window(self) -> int:
        return self.sizing.budget.window


def inspect(request: Request, file: str, sizing: TranscriptSize) -> ContextReport:
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

    yield from headline(report)
    yield Text()
    yield from draw(report.measurement, width)
    yield Text()
    yield region_table(report, width)
    yield Text()
    if report.limits is None or report.measurement.free < 0:
        yield verdict(report)
    if report.limits is not None:
        yield from limit_lines(report, report.limits)


def limit_lines(report: ContextReport, limits: ContextLimits) -> Iterator[Text]:
    """How full the window is, and the sizes at which the policy acts."""
    from rich.text import Text

    content = report.measurement.content.tokens
    count = "" if limits.messages is None else f", or {plural(limits.messages, 'message')}"
    if report.measurement.free >= 0:
        yield Text(f"{percent(content / report.window, digits=0)} full")
    if report.size_source:
        yield Text(f"the size is {report.size_source}; the regions are in proportion to it", style="dim")
    if report.is_off:
        from refold.cli.store_access import off_text

        yield Text(off_text(report.file))
        yield Text(f"when it is on, with the preset {limits.preset}:")
    else:
        yield Text(f"preset {limits.preset}")
    yield Text(f"summarise at {limits.summarise_at:,} tokens{count}: {_away(content, limits.summarise_at)}")
    yield Text(f"compress at {limits.compress_at:,} tokens")
    yield Text(f"  {limits.arithmetic}", style="dim")


def _away(content: int, at: int) -> str:
    return f"{at - content:,} from here" if content < at else "now"


def headline(report: ContextReport) -> Iterator[Text]:
    from rich.text import Text

    from refold.cli.transcript import MODEL_SOURCES, STORED_SOURCES, WINDOW_SOURCES

    sizing = report.sizing
    sources = WINDOW_SOURCES if report.is_off is None else STORED_SOURCES
    counts = f"{plural(report.messages, 'message')}, {plural(report.turns, 'turn')}"
    yield Text.assemble((report.file, "bold"), f"  {report.format}, {counts}")
    yield Text.assemble(
        (output.plain(sizing.model), "bold"),
        f" ({MODEL_SOURCES[sizing.model_source]})",
        f"  window {report.window:,} tokens ({sources.get(sizing.window_source, sizing.window_source)})",
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
    source: CountSource | None
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

    from refold.model.tokens import input_limit, tokens_of

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
    from refold.core.budget import arithmetic
    from refold.model.tokens import input_limit, tokens_of

    sizing, measured = report.sizing, report.measurement
    trigger = tokens_of(sizing.budget.trigger, sizing.budget)
    trigger = report.limits.summarise_at if report.limits else trigger
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
        **({"size_source": report.size_source} if report.size_source else {}),
        **({"damaged": list(report.damaged)} if report.damaged else {}),
        "fits": measured.free >= 0,
        **({} if report.is_off is None else {"off": report.is_off}),
        **(_limits_document(report.limits) if report.limits else {}),
    }


def _limits_document(limits: ContextLimits) -> dict[str, object]:
    return {
        "preset": limits.preset,
        "summarise_at": {"tokens": limits.summarise_at, "messages": limits.messages},
        "compress_at": {"tokens": limits.compress_at, "arithmetic": limits.arithmetic},
    }


def _rounded(row: RegionRow) -> dict[str, object]:
    return {"region": row.region, "tokens": row.tokens, "share": round(row.share, 4), "source": row.source}


def _source(measured: Measurement, region: Region) -> CountSource | None:
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


def _swatch(look: RegionGlyph) -> Text:
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


class RegionGlyph(Struct, frozen=True):
    """The letter and the style of a region, and its meaning in a few words."""

    name: str
    glyph: str
    style: str
    meaning: str


LOOKS: dict[Region, RegionGlyph] = {
    "system": RegionGlyph("system", "S", "black on color(75)", "system prompt"),
    "tools": RegionGlyph("tools", "T", "black on color(141)", "tool definitions"),
    "summary": RegionGlyph("summary", "U", "black on color(252)", "what stands for earlier messages"),
    "history": RegionGlyph("history", "H", "black on color(71)", "earlier turns"),
    "tool_results": RegionGlyph("tool results", "R", "black on color(179)", "results in earlier turns"),
    "tail": RegionGlyph("tail", "L", "black on color(44)", "the active turn so far"),
    "input": RegionGlyph("input", "I", "black on color(211)", "what the next call adds"),
    "free": RegionGlyph("free", ".", "dim", "room left"),
    "reserve": RegionGlyph("reserve", "=", "white on color(240)", "kept for the reply"),
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
    from rich.text import Text

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
    from rich.text import Text

    while runs:
        row, runs = split(runs, per_row)
        line = Text()
        for run in row:
            look = LOOKS[run.region]
            line.append(f"{look.glyph} " * run.cells, style=look.style)
        line.right_crop(1)
        yield line
