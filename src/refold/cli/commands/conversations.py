"""`refold conversations`: the stored conversations of an owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from refold.cli import output
from refold.cli.options import Json, Limit, StoreOptions, expanded
from refold.cli.output import align, plain, plural, when

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.ports.records import Listed

_OPTIONAL = ("summary", "window", "sessions", "written", "read")
"""Columns that a narrow screen has no room for, the first to go first; `--json` has them all."""
_NUMBERS = frozenset({"messages", "sessions", "compactions", "full", "read", "written", "$"})


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold conversations support")(expanded(conversations))


def conversations(
    words: Annotated[
        str,
        typer.Argument(metavar="[WORDS]", help="Words in the name or the title.", show_default=False),
    ] = "",
    *,
    limit: Limit = 50,
    place: StoreOptions,
    as_json: Json = False,
) -> int:
    """List stored conversations, the latest first.

    Each with its messages and compactions, how full its context is, and the cost of its calls. A wide screen shows more: sessions,
    the window and its source, the author of the summary, tokens. The exit code is 1 if no name or title holds the words.
    """
    from refold.cli import store_access

    async def act(engine: Engine) -> int:
        found = await engine.conversations(limit=limit, words=words)
        if as_json:
            output.write_json({"owner": place.owner, "conversations": [_document(one) for one in found]})
        elif found:
            output.write(_table(found))
        if not found:
            output.note(_none(place.owner, words))
        elif not as_json:
            _note_list(found, limit)
        return 1 if words and not found else 0

    return store_access.look(place, act)


def _note_list(found: Sequence[Listed], limit: int) -> None:
    if any(one.reason for one in found):
        output.note("! has to be compacted: the next call does it, or `refold compact CONV`")
    if any(one.estimated for one in found):
        output.note("~ estimated in part: the provider did not report the usage of every call")
    if assumed := sum(one.window_source in ("pattern", "default") for one in found):
        output.note(
            f"the window of {plural(assumed, 'conversation')} is assumed\nhint: set it with `compaction.window`, or --window"
        )
    if len(found) == limit:
        output.note(f"the latest {limit:,}\nhint: --limit shows more, words fewer")


def _none(owner: str, words: str) -> str:
    what = f" whose name or title holds {plain(words)!r}" if words else ""
    return (
        f"no conversations{what} of the owner {plain(owner)!r}\nhint: `refold import FILE --as NAME` adds one"
    )


def _table(found: Sequence[Listed]) -> str:
    head = (
        *("name", "messages", "sessions", "compactions", "full", "window", "summary"),
        *("read", "written", "$", "last used", "title"),
    )
    return align(head, [_cells(one) for one in found], _NUMBERS, optional=_OPTIONAL, cuts_last=True)


def _cells(one: Listed) -> tuple[str, ...]:
    return (
        plain(one.id),
        f"{one.messages:,}",
        f"{one.sessions:,}",
        f"{one.compactions:,}",
        _share(one.ratio, one.limit, is_due=bool(one.reason)),
        f"{one.window:,} {one.window_source}" if one.window else "-",
        plain(one.summary) or "-",
        f"{one.usage.prompt:,}",
        f"{one.usage.output:,}",
        f"{'~' if one.estimated else ''}{one.dollars:.2f}",
        when(one.updated_at),
        plain(one.title),
    )


def _share(ratio: float, limit: int, *, is_due: bool) -> str:
    """How full a context is, with a mark where it has to be compacted; a dash where it was not noted."""
    return f"{'! ' if is_due else ''}{ratio * 100:.0f} %" if limit else "-"


def _document(one: Listed) -> dict[str, object]:
    from refold.cli.store_access import fill_document

    return {**structs.asdict(one), **fill_document(one), "usage": structs.asdict(one.usage)}
