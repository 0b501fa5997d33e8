"""What `refold replay` does between its options and its table.

One idea: the replay measures and the command line shows, and neither knows the other. Whatever can be wrong with the options
is said here before the first recording is replayed, since a replay takes minutes and a model costs money.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import cast, get_args

from msgspec import Struct

from refold.cli import output
from refold.core.presets import PRESETS
from refold.core.prompts import Strategy
from refold.model.errors import ConfigError
from refold.replay import (
    BASELINES,
    WINDOWS,
    Cell,
    Counting,
    Table,
    document,
    read_recordings,
    render,
    run,
    tabulate,
)
from refold.replay.presets import candidates
from refold.replay.report import page
from refold.replay.summarisers import OpenSummarisers, SummariserOptions, choose, open_summarisers

STRATEGIES = tuple(name for name in get_args(Strategy) if name != "extractive")
"""That one is the digest, which is asked for as such."""


class Wanted(Struct, frozen=True):
    """What is to be replayed."""

    data: str
    presets: Sequence[str]
    windows: Sequence[int]
    model: str
    baselines: bool
    jobs: int


class Summaries(Struct, frozen=True):
    """Who is to write summaries, as the options say it."""

    specs: Sequence[str]
    strategy: str
    max_tokens: int | None
    key_env: str
    folder: str
    most: float | None


def order_for(asked: Summaries) -> SummariserOptions:
    """
    Raises:
        ConfigError: an option stands for nothing, or is for a model and none is named.
    """
    if asked.strategy and asked.strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ConfigError(f"there is no strategy {asked.strategy[:80]!r}", hint=f"choose from: {known}")
    chosen = tuple(choose(spec, key_env=asked.key_env) for spec in dict.fromkeys(asked.specs)) or (None,)
    is_for_model = asked.strategy or asked.max_tokens or asked.key_env or asked.folder
    if (is_for_model or asked.most is not None) and not any(chosen):
        hint = "name a model with --summarizer, such as openai:gpt-4o-mini"
        raise ConfigError("no model is asked, and an option is for one", hint=hint)
    strategy = cast("Strategy | None", asked.strategy or None)
    return SummariserOptions(
        chosen, strategy, asked.max_tokens, Path(asked.folder) if asked.folder else None, asked.most
    )


def measure(wanted: Wanted, order: SummariserOptions) -> tuple[Table, tuple[Cell, ...]]:
    """The table of a replay, and what it is made from."""
    logging.getLogger("refold").addHandler(
        logging.NullHandler()
    )  # failures are counted, and shown at the end
    recordings, counting, watch = read_recordings(Path(wanted.data)), Counting(wanted.model), Watch()
    with open_summarisers(order, on_call=watch.draw) as opened:
        watch.opened, is_asking = opened, any(opened.authors)
        presets = candidates(tuple(wanted.presets or PRESETS), opened)
        cells = run(
            recordings,
            [*presets, *(BASELINES if wanted.baselines else ())],
            wanted.windows or WINDOWS,
            counting,
            watch,
            clock=opened.clock if is_asking else perf_counter,
            jobs=wanted.jobs,
            in_threads=is_asking,
        )
        watch.clear()
        return tabulate(cells, counting, opened.spending, opened.stopped), cells


def show(table: Table, cells: Sequence[Cell], report: str, *, as_json: bool) -> None:
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
    """What is wrong with the place for a report, if one is wanted."""
    file = Path(report)
    if report and file.is_dir():
        raise ConfigError(f"{file.name} is a directory", hint="give the name of a file, such as report.html")
    if report and not file.parent.is_dir():
        raise ConfigError(f"there is no directory for {file.name}", hint="create it first")


def _write_report(path: str, table: Table, cells: Sequence[Cell]) -> None:
    text = page(table, cells)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{Path(path).name} cannot be written: {error.strerror}") from error
    output.note(f"the report is in {output.plain(path)} ({len(text) // 1000:,} KB)")


class Watch:
    """A line that is written over, for whoever watches: how far the replay is, and what it has cost."""

    def __init__(self) -> None:
        self.opened: OpenSummarisers | None = None
        self._done = self._total = 0

    def __call__(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self.draw()

    def draw(self) -> None:
        self._write(self.line)

    def clear(self) -> None:
        self._write("")

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

    def _write(self, line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
