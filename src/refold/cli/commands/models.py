"""`refold models`: the models of the catalogue, with their windows and prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import JsonOption

if TYPE_CHECKING:
    from refold.tokens import Model

MAX_ROWS = 50
"""Rows that one can still read; a program asks for JSON and gets all."""
HEAD = ("window", "input", "output", "$ in", "$ out", "$ read", "$ write", "provider/model")
_OPTIONAL = ("$ write", "$ read", "input", "output")
"""Columns that a narrow screen has no room for, the first to go first; `--json` has them all."""
_NUMBERS = frozenset(HEAD[:-1])
PRICES = ("input_price", "output_price", "cache_read_price", "cache_write_price")


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold models sonnet")(models)


def models(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A part of the name.", show_default=False)
    ] = "",
    show_all: Annotated[bool, typer.Option("--all", help="Show every match, not only the first 50.")] = False,
    as_json: JsonOption = False,
) -> int:
    """List known models with their windows and prices.

    Prices are in dollars for a million tokens: input, output, and what is read from or written to the provider's cache. `input` is
    the most that a model reads, where that is less than its window. A narrow screen shows the most important columns only;
    `--json` has them all.
    """
    found = find(pattern)
    if as_json:
        output.write_json(
            {"pattern": pattern, "matched": len(found), "models": list(map(as_document, found))}
        )
    elif found:
        shown = found if show_all else found[:MAX_ROWS]
        output.write(table(shown))
        output.note(count_note(len(found), len(shown), pattern))
    else:
        output.note(count_note(0, 0, pattern))
    return 0 if found else 1


def find(pattern: str) -> list[Model]:
    """Every match; first the model that a transcript with this name would get."""
    from refold.tokens import find_model, search_models

    meant = find_model(pattern) if pattern else None
    return list(dict.fromkeys([*([meant] if meant else []), *search_models(pattern)]))


def table(models: Sequence[Model]) -> str:
    """One line to a model. Its name is the last column: the longest are as long as a screen is wide, and are cut there."""
    return output.align(HEAD, list(map(cells, models)), _NUMBERS, optional=_OPTIONAL, cuts=HEAD[-1:])


def cells(model: Model) -> tuple[str, ...]:
    prices = (price(getattr(model, name)) for name in PRICES)
    return size(model.window), size(model.max_input), size(model.max_output), *prices, model.name


def count_note(matched: int, shown: int, pattern: str) -> str:
    what = f" that match {output.plain(pattern)!r}" if pattern else ""
    if not matched:
        return (
            f"no models{what}\nhint: give a part of the name, such as sonnet; any window works with --window"
        )
    if shown < matched:
        return f"{shown:,} of {matched:,} models{what}\nhint: --all shows every one, a pattern fewer"
    return f"{output.plural(matched, 'model')}{what}"


def size(tokens: int | None) -> str:
    return f"{tokens:,}" if tokens else "-"


def price(dollars: float | None) -> str:
    """Dollars for a million tokens; a dash where there is no price."""
    if dollars is None:
        return "-"
    return f"{dollars:.2f}" if round(dollars, 2) == dollars else f"{dollars:.4g}"


def as_document(model: Model) -> dict[str, object]:
    """A model for programs; its keys are documented and stay."""
    keys = ("provider", "id", "window", "max_input", "max_output", *PRICES)
    return {key: getattr(model, key) for key in keys}
