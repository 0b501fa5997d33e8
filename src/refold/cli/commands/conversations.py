"""`refold conversations`: the stored conversations of an owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, structs

from refold.cli import output
from refold.cli.options import JsonOption, LimitOption, StoreOptions, expanded
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
        typer.Argument(metavar="WORDS", help="Words in the name or the title.", show_default=False),
    ] = "",
    *,
    limit: LimitOption = 50,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """List stored conversations, the latest first.

    Each with the messages of the branch used last, its compactions, how full its context is, whether it is off, and when it was
    used. A wide screen shows more: the cost of its calls, sessions, the window and its source, the author of the summary, tokens.
    The exit code is 1 if no name or title holds the words.
    """
    from refold.cli import store_access

    async def act(engine: Engine) -> int:
        found = await engine.conversations(limit=limit, words=words)
        sizes = {one.id: await _size_branch(engine, one) for one in found}
        if as_json:
            rows = [_document(one, sizes[one.id]) for one in found]
            output.write_json({"owner": place.owner, "conversations": rows})
        elif found:
            table = _table(found, sizes)
            output.write(table)
            if any(plain(one.id) not in table for one in found):
                output.note("a name that ends in … is cut\nhint: a wider screen or --json shows it whole")
            _note_list(found, limit)
        if not found:
            output.note(_none(place.owner, words))
        return 1 if words and not found else 0

    return store_access.look(place, act)


class _BranchSize(Struct, frozen=True):
    """Messages of the branch used last, which `refold show` shows. `Listed.messages` adds up those of all branches."""

    messages: int = 0
    reply: int = 0
    """Messages of the newest reply, which the client has not sent back yet."""


async def _size_branch(engine: Engine, one: Listed) -> _BranchSize:
    from refold.engine.recall import newest_reply

    head = await engine.store.head(engine.owner, one.id, one.branch)
    if head is None:
        return _BranchSize()
    return _BranchSize(head.next_seq, len(await newest_reply(engine.store, head)))


def _note_list(found: Sequence[Listed], limit: int) -> None:
    from refold.cli.store_access import ESTIMATED

    if any(one.reason for one in found):
        output.note("! has to be compacted: the next call does it, or `refold compact CONV`")
    if any(one.off for one in found):
        output.note("off: the next requests are passed on unchanged and not stored, until `refold on CONV`")
    if any(one.estimated for one in found):
        output.note(ESTIMATED)
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


def _table(found: Sequence[Listed], sizes: Mapping[str, _BranchSize]) -> str:
    head = (
        *("name", "messages", "sessions", "compactions", "full", "window", "summary"),
        *("read", "written", "$", "last used", "title"),
    )
    cells = [_cells(one, sizes[one.id]) for one in found]
    return align(
        head, cells, _NUMBERS, optional=_OPTIONAL, spare=("$", "compactions"), cuts=("title", "name")
    )


def _cells(one: Listed, size: _BranchSize) -> tuple[str, ...]:
    from refold.cli.transcript import STORED_SOURCES

    source = STORED_SOURCES.get(one.window_source, one.window_source)
    return (
        plain(one.id),
        f"{size.messages + size.reply:,}",
        f"{one.sessions:,}",
        f"{one.compactions:,}",
        _share(one),
        f"{one.window:,} {source}" if one.window else "-",
        plain(one.summary) or "-",
        f"{one.usage.prompt:,}",
        f"{one.usage.output:,}",
        f"{'~' if one.estimated else ''}{one.dollars:.2f}",
        when(one.updated_at),
        plain(one.title),
    )


def _share(one: Listed) -> str:
    """How full a context is, with a mark where it has to be compacted or is off; a dash where it was not noted."""
    mark = "off " if one.off else "! " if one.reason else ""
    return f"{mark}{one.ratio * 100:.0f} %" if one.limit else f"{mark}-"


def _document(one: Listed, size: _BranchSize) -> dict[str, object]:
    """A row for programs. The messages of the newest reply are counted apart: they are not in the context yet."""
    from refold.cli.store_access import fill_document

    usage = structs.asdict(one.usage)
    sizes = {"branch_messages": size.messages, "reply_messages": size.reply}
    return {**structs.asdict(one), **fill_document(one), "usage": usage, **sizes}
