"""`refold pin` and `refold unpin`: messages that no compaction takes out of the window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from refold.engine.engine import Engine


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold pin support-42 '#m12'")(expanded(pin))
    app.command(epilog="Example: refold unpin support-42 '#m12'")(expanded(unpin))


def pin(
    conv: Conv,
    handle: Annotated[
        str,
        typer.Argument(metavar="HANDLE", help="Of a message, such as '#m12'. Default: list what is pinned."),
    ] = "",
    *,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Keep a message in the window: no stage and no summary takes it out until it is unpinned.

    Without a handle, list the messages that are pinned. A pin holds a message that is still shown; one that was summarised already
    comes back with `refold undo` or `refold recall`.
    """
    return _pin(conv, handle, branch, place, is_pin=True, as_json=as_json)


def unpin(
    conv: Conv,
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="Of a pinned message, such as '#m12'.")],
    *,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Let a pinned message be shortened and summarised again."""
    return _pin(conv, handle, branch, place, is_pin=False, as_json=as_json)


def _pin(conv: str, handle: str, branch: str, place: StoreOptions, *, is_pin: bool, as_json: bool) -> int:
    """Pin or unpin a message, then list the pins; without a handle only list them."""
    from refold.cli import store_access

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        async with store_access.opened(engine, head, SizeOptions(), NO_MODEL) as conversation:
            if handle:
                await (conversation.pin(handle) if is_pin else conversation.unpin(handle))
            pins = await conversation.pins()
        if as_json:
            output.write_json({"conversation": conv, "branch": head.branch, "pins": pins})
        else:
            output.write("".join(f"{one}\n" for one in pins))
            if not pins:
                output.note("nothing is pinned")
        return 0

    return store_access.change(place, act) if handle else store_access.look(place, act)
