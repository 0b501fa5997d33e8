"""`refold diff`: the messages before and after a compaction of a stored conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import BranchId, Conv, JsonOption, StoreOptions, expanded
from refold.cli.output import align, plain, short, when

if TYPE_CHECKING:
    from refold.engine.conversation import Conversation
    from refold.engine.engine import Engine
    from refold.ports.records import Compaction

_NUMBERS = frozenset({"before", "after", "messages"})


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold diff support-42")(expanded(diff))


def diff(
    conv: Conv,
    compaction: Annotated[
        str, typer.Argument(metavar="COMPACTION", help="Its id. Default: the newest.", show_default=False)
    ] = "",
    *,
    lists: Annotated[
        bool, typer.Option("--list", help="List the compactions of the conversation instead.")
    ] = False,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Show every message before and after a compaction.

    A blank stands for kept, ~ for cut, - for gone and + for the text that replaces it. The exit code is 1 if there was no
    compaction yet.
    """
    from refold.cli import store_access
    from refold.cli.changes import ChangeReport, show_report

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        changes = await engine.store.compactions(engine.owner, head.branch, store_access.EVERYTHING)
        made = sorted((one for one in changes if one.number), key=lambda one: one.number)
        if lists:
            return _list(conv, made, as_json=as_json)
        wanted = _wanted(made, compaction)
        conversation = await engine.conversation(conv, branch=head.branch)
        if wanted is None:
            return await _show_nothing(conversation, conv, as_json=as_json)
        found = await conversation.diff(wanted)
        show_report(ChangeReport(conv, found, with_listing=True, compactions=(wanted.id,)), as_json=as_json)
        return 0

    return store_access.look(place, act)


async def _show_nothing(conversation: Conversation, name: str, *, as_json: bool) -> int:
    from refold.cli.changes import ChangeReport, show_report
    from refold.engine.history import Difference

    if as_json:
        unchanged = (await conversation.preview()).difference.before
        show_report(ChangeReport(name, Difference(unchanged, unchanged)), as_json=True)
    output.note(
        "nothing was done to this conversation yet\nhint: `refold compact CONV --dry-run --diff` shows what would be"
    )
    return 1


def _wanted(made: Sequence[Compaction], which: str) -> Compaction | None:
    """The compaction that was named, else the newest that is in effect, else the newest."""
    from refold.cli.store_access import row_by_prefix

    if which:
        return row_by_prefix(made, which, "compaction")
    shown = [one for one in made if one.kind != "arrival"]
    installed = [one for one in shown if one.state == "installed"]
    return next(reversed(installed or shown), None)


def _list(name: str, made: Sequence[Compaction], *, as_json: bool) -> int:
    from refold.cli.changes import compaction_document

    if as_json:
        output.write_json({"conversation": name, "compactions": [compaction_document(one) for one in made]})
    elif made:
        head = ("compaction", "kind", "state", "messages", "before", "after", "at", "reason")
        output.write(
            align(head, [_cells(one) for one in made], _NUMBERS, optional=("messages",), cuts=("reason",))
        )
    else:
        output.note("nothing was done to this conversation yet")
    return 0


def _cells(one: Compaction) -> tuple[str, ...]:
    return (
        short(one.id),
        one.kind,
        one.state,
        f"{one.size:,}",
        f"{one.before:,}",
        f"{one.after:,}",
        when(one.at),
        plain(one.reason),
    )
