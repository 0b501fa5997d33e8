"""`refold delete`: deletes one conversation, or all of an owner, for good.

The command must be told exactly what to delete; all conversations also need `--yes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import JsonOption, StoreOptions, expanded
from refold.cli.output import plain, plural
from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from refold.engine.engine import Engine


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold delete support-42")(expanded(delete))


def delete(
    conv: Annotated[str, typer.Argument(metavar="CONV", help="The conversation.", show_default=False)] = "",
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every conversation of the owner.")] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Needed with --all.")] = False,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Delete a conversation for good: messages, summaries, search index, calls.

    It cannot be undone. Copies that you made (backups, exports) are yours to delete.
    """
    from refold.cli import store_access

    if bool(conv) == everything:
        raise ConfigError("say what to delete: one conversation, or --all", hint="refold delete CONV")
    if everything and not is_sure:
        raise ConfigError(
            f"--all deletes every conversation of the owner {plain(place.owner)!r}",
            hint="add --yes if you mean it; `refold db backup PATH` keeps a copy",
        )

    async def act(engine: Engine) -> int:
        if conv:
            await store_access.head_of(engine, conv)
        count = await engine.delete(conv)
        if as_json:
            output.write_json({"deleted": count, "would_delete": count, "dry_run": False})
        else:
            output.note(f"deleted {plural(count, 'conversation')}")
        return 0

    return store_access.change(place, act)
