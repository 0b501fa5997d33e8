"""`refold replay`: replays recorded conversations under presets, and measures how much their contexts still know.

Every mistake in the options is reported before the first recording is replayed: a replay takes minutes, and a model costs money.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from refold.cli import output
from refold.cli.options import (
    SUMMARISER_METAVAR,
    JsonOption,
    OptionGroup,
    at_least,
    expanded,
    model_name,
    token_count,
)
from refold.model.errors import MIN_WINDOW, ConfigError

if TYPE_CHECKING:
    from refold.core.prompts import Strategy
    from refold.replay import Cell, Table
    from refold.replay.summarisers import OpenSummarisers, ReplaySummarisers

EXAMPLES = """\b
Examples:
  refold replay transcripts.jsonl.gz --preset refold --window 8000
  refold replay my-sessions/ --report report.html
  refold replay my-sessions/ --baselines --output 0 --reserve 0
\b
With a model that writes the summaries, beside the digest that needs none:
  export OPENAI_API_KEY=...
  refold replay my-sessions/ --preset refold --window 16000 \\
      --summariser digest --summariser openai:gpt-4o-mini --max-spend 0.50
\b
  refold replay my-sessions/ --summariser anthropic:claude-haiku-4-5 --jobs 4
  refold replay my-sessions/ --summariser qwen3@http://localhost:8000/v1
  refold replay my-sessions/ --summariser local
\b
A model is sent what leaves the window, without secrets of a known form. What
it wrote is kept, so the same replay again costs nothing."""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(replay))


class ReplayOptions(OptionGroup, frozen=True):
    """The presets and windows of a replay."""

    presets: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="May be given several times. Default: the setting compaction.preset, else all presets.",
        ),
    ] = None
    windows: Annotated[
        list[int] | None,
        typer.Option(
            "--window",
            metavar="TOKENS",
            parser=token_count(MIN_WINDOW),
            help="Such as 8000 or 8k. May be given several times. Default: 4k to 32k.",
        ),
    ] = None
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            callback=model_name,
            help="Count with its tokenizer. Default: 4 characters a token.",
        ),
    ] = ""
    output: Annotated[
        int | None,
        typer.Option(
            "--output",
            metavar="TOKENS",
            parser=token_count(),
            help="How much of the window is kept free for the reply. Default: as in a conversation, an eighth, at most 4,096.",
        ),
    ] = None
    reserve: Annotated[
        int | None,
        typer.Option(
            "--reserve",
            metavar="TOKENS",
            parser=token_count(),
            help="How much of the window is never filled. Default: as in a conversation, the preset's own.",
        ),
    ] = None
    baselines: Annotated[bool, typer.Option("--baselines", help="Add simple rivals to the table.")] = False
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", metavar="N", callback=at_least(1), help="Processes, or calls at once with --summariser."
        ),
    ] = 1


class ReplaySummariserOptions(OptionGroup, frozen=True):
    """The models that write summaries in a replay, and their limits."""

    summarisers: Annotated[
        list[str] | None,
        typer.Option(
            "--summariser",
            metavar=SUMMARISER_METAVAR,
            help="Who writes the summaries: PROVIDER:MODEL, MODEL@URL, local, or digest (no model). May be given several "
            "times. Default: digest.",
        ),
    ] = None
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="How a model reads: abstractive, hierarchical or selective. Default: as the preset does.",
        ),
    ] = ""
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--summary-tokens",
            metavar="N",
            callback=at_least(1),
            help="How long its summary may be. Default: as in the preset.",
        ),
    ] = None
    key_env: Annotated[
        str,
        typer.Option(
            "--key-env", metavar="NAME", help="The variable that holds the key for MODEL@URL, if any."
        ),
    ] = ""
    folder: Annotated[
        str,
        typer.Option(
            "--summary-cache",
            metavar="DIR",
            help="Where paid summaries are kept. Default: your cache folder, under refold/summaries.",
        ),
    ] = ""
    max_spend: Annotated[
        float | None,
        typer.Option(
            "--max-spend",
            metavar="DOLLARS",
            callback=at_least(0),
            help="Stop before a call that might cost more.",
        ),
    ] = None

    @property
    def specs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.summarisers or ()))


def replay(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Recorded conversations: JSONL (.gz too), JSON or a folder.")
    ],
    *,
    options: ReplayOptions,
    report: Annotated[
        str,
        typer.Option("--report", metavar="FILE", help="Write a page with plots, to be opened in a browser."),
    ] = "",
    as_json: JsonOption = False,
    summariser: ReplaySummariserOptions,
) -> int:
    """Replay recorded conversations under presets, and measure what their contexts still know.

    Before every recorded reply the preset is asked what it would send. That is checked, billed with a simulated prompt
    cache, and searched for what the reply needed. No model is called, unless --summariser names one.
    """
    check_place(report)
    table, cells = measure(data, options, summariser_order(summariser))
    show_table(table, cells, report, as_json=as_json)
    return 0


def summariser_order(asked: ReplaySummariserOptions) -> ReplaySummarisers:
    """
    Raises:
        ConfigError: an option has no such value, or is for a model and none is named.
    """
    from refold.core.prompts import Strategy
    from refold.replay.summarisers import ReplaySummarisers, choose

    strategies = [name for name in get_args(Strategy) if name != "extractive"]  # that one is the digest
    if asked.strategy and asked.strategy not in strategies:
        known = ", ".join(strategies)
        raise ConfigError(f"there is no strategy {asked.strategy[:80]!r}", hint=f"choose from: {known}")
    chosen = tuple(choose(spec, key_env=asked.key_env) for spec in asked.specs) or (None,)
    is_for_model = asked.strategy or asked.max_tokens or asked.key_env or asked.folder
    if (is_for_model or asked.max_spend is not None) and not any(chosen):
        hint = "name a model with --summariser, such as openai:gpt-4o-mini"
        raise ConfigError("no model is asked, and an option is for one", hint=hint)
    strategy = cast("Strategy | None", asked.strategy or None)
    folder = Path(asked.folder) if asked.folder else None
    return ReplaySummarisers(chosen, strategy, asked.max_tokens, folder, asked.max_spend)


def measure(data: str, options: ReplayOptions, order: ReplaySummarisers) -> tuple[Table, tuple[Cell, ...]]:
    """Replay; the result is the table, and the cells that it is made from."""
    import logging
    from time import perf_counter

    from refold.cli.settings import preset_here
    from refold.core.presets import PRESETS
    from refold.replay import BASELINES, WINDOWS, CounterChoice, ReplayBudget, read_recordings, run, tabulate
    from refold.replay.candidate import candidates
    from refold.replay.summarisers import open_summarisers

    # Failures of a model are counted, and shown at the end.
    logging.getLogger("refold").addHandler(logging.NullHandler())
    recordings, counting, progress = (
        read_recordings(Path(data)),
        CounterChoice(options.model),
        ReplayProgress(),
    )
    budget = ReplayBudget(options.output, options.reserve, options.model)
    for window in options.windows or WINDOWS:
        budget.room_in(window)  # before a model is opened
    with open_summarisers(order, on_call=progress.draw) as opened:
        progress.opened, is_asking = opened, any(opened.authors)
        names = options.presets or list(filter(None, [preset_here()])) or PRESETS
        presets = candidates(tuple(names), opened)
        cells = run(
            recordings,
            [*presets, *(BASELINES if options.baselines else ())],
            options.windows or WINDOWS,
            counting,
            progress,
            clock=opened.clock if is_asking else perf_counter,
            jobs=options.jobs,
            in_threads=is_asking,
            budget=budget,
        )
        progress.clear()
        return tabulate(cells, counting, opened.spending, opened.stopped, budget), cells


def show_table(table: Table, cells: Sequence[Cell], report: str, *, as_json: bool) -> None:
    from refold.replay import document, render

    if report:
        _write_report(report, table, cells)
    if as_json:
        output.write_json(document(table))
    else:
        output.write(render(table) + "\n")
    if table.stopped:
        hint = "what was paid for is kept; a higher --max-spend goes on from there"
        output.note(f"stopped: {table.stopped}\nhint: {hint}")


def check_place(report: str) -> None:
    """
    Raises:
        ConfigError: a report cannot be written there.
    """
    file = Path(report)
    if report and file.is_dir():
        raise ConfigError(f"{file.name} is a directory", hint="give the name of a file, such as report.html")
    if report and not file.parent.is_dir():
        raise ConfigError(f"there is no directory for {file.name}", hint="create it first")


def _write_report(path: str, table: Table, cells: Sequence[Cell]) -> None:
    from refold.replay.report import page

    text = page(table, cells)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{Path(path).name} cannot be written: {error.strerror}",
            hint="see that its folder can be written and has room",
        ) from error
    output.note(f"the report is in {output.plain(path)} ({len(text) // 1000:,} KB)")


class ReplayProgress:
    """The progress line on a terminal: how far the replay is, and its cost so far."""

    def __init__(self) -> None:
        self.opened: OpenSummarisers | None = None
        self._done = self._total = 0

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self.draw()

    def draw(self) -> None:
        output.progress(self.line)

    def clear(self) -> None:
        output.progress("")

    @property
    def line(self) -> str:
        far = f"replayed {self._done:,} of {self._total:,}" if self._total else "replaying"
        spending = self.opened.spending if self.opened else ()
        if not self.opened or not spending:
            return far
        calls, found = sum(one.calls for one in spending), sum(one.found for one in spending)
        unknown = "" if all(one.prices for one in spending) else " and what is not known"
        spent = f"${self.opened.limit.spent:.4f}{unknown} spent"
        return f"{far}; {calls:,} calls, {spent}; {found:,} summaries were paid for before"
