"""`refold undo`: takes back the last compaction of the open session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from refold.cli import output
from refold.cli.options import (
    NO_MODEL,
    BranchId,
    Conv,
    JsonOption,
    SizeOptions,
    StoreOptions,
    expanded,
)
from refold.cli.output import plain, short

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.ports.records import Compaction


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold undo support-42")(expanded(undo))


def undo(conv: Conv, *, branch: BranchId = "", place: StoreOptions, as_json: JsonOption = False) -> int:
    """Take back the last compaction of a conversation.

    The messages before it are shown again, and its session ends. No message is changed by a compaction or by undoing one. The exit code is 1 if there was nothing to undo.
    """
    from refold.cli import store_access
    from refold.cli.changes import compaction_document

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        before = await store_access.compactions_in_effect(engine, head)
        async with store_access.opened(engine, head, SizeOptions(), NO_MODEL) as conversation:
            await conversation.undo()
        left = {one.id for one in await store_access.compactions_in_effect(engine, head)}
        undone = [one for one in before if one.id not in left]
        if as_json:
            output.write_json({"conversation": conv, "undone": [compaction_document(one) for one in undone]})
        else:
            output.write("".join(f"undone: {_line(one)}\n" for one in undone))
        if not undone:
            output.note(
                "nothing to undo in the open session\nhint: an earlier session stays as it is; see `refold sessions`"
            )
        return 0 if undone else 1

    return store_access.change(place, act)


def _line(one: Compaction) -> str:
    return f"{short(one.id)}  {one.kind}  {one.after:,} -> {one.before:,} tokens  {plain(one.reason)}"
