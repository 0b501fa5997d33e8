"""Commands that need more than one surface.

One idea: surfaces do not know each other. What joins them is put together here, at the root, where the `refold` script
starts; every import waits until its command is called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from refold.replay import Counting
    from refold.replay.table import Table

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
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def join(app: typer.Typer) -> None:
    """Add the joined commands to the command line."""
    app.command(epilog="Example: refold replay transcripts.jsonl.gz --preset refold --window 8000")(replay)


def replay(
    data: Data,
    preset: Presets = None,
    window: Windows = None,
    model: Model = "",
    baselines: Baselines = False,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> int:
    """Replay recorded conversations under presets, and measure what their contexts still know.

    Before every recorded reply the preset is asked what it would send. That is checked, billed with a simulated prompt
    cache, and searched for what the reply needed. No model is called.
    """
    from refold.cli import output
    from refold.replay import Counting, document, render

    table = _measure(data, preset or [], window or [], Counting(model), baselines=baselines, jobs=jobs)
    if as_json:
        output.write_json(document(table))
    else:
        output.write(render(table) + "\n")
    return 0


def _measure(
    data: str, presets: list[str], windows: list[int], counting: Counting, *, baselines: bool, jobs: int
) -> Table:
    from pathlib import Path

    from refold.core.presets import PRESETS
    from refold.replay import BASELINES, WINDOWS, read_recordings, run, tabulate
    from refold.replay.presets import candidates

    makers = [*candidates(tuple(presets or PRESETS)), *(BASELINES if baselines else ())]
    cells = run(read_recordings(Path(data)), makers, windows or WINDOWS, counting, _progress, jobs=jobs)
    _progress(0, 0)
    return tabulate(cells, counting)


def _progress(done: int, total: int) -> None:
    """A line that is written over, for whoever watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\rreplayed {done:,} of {total:,}\x1b[K" if total else "\r\x1b[K")
        sys.stderr.flush()
