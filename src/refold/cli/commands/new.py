"""`refold new`: closes the open session of a conversation and opens an empty one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from refold.cli import output
from refold.cli.options import (
    BranchId,
    Conv,
    JsonOption,
    SizeOptions,
    StoreOptions,
    SummariserOptions,
    expanded,
)
from refold.cli.output import short

if TYPE_CHECKING:
    from refold.engine.engine import Engine


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold new support-42")(expanded(new))


def new(
    conv: Conv,
    *,
    summariser: SummariserOptions,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Begin a new session of a conversation, with an empty window.

    The open session is closed with a digest, or with a summary that a model writes. Nothing is lost: its messages stay, can be
    searched and recalled, and `refold resume` goes on with it.
    """
    from refold.cli import store_access
    from refold.cli.settings import policy_here
    from refold.core.stage import handle_of

    policy = policy_here()

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        opened = store_access.opened(engine, head, SizeOptions(), summariser, policy=policy)
        async with opened as conversation:
            begun = await conversation.start_session()
            await conversation.ready()  # a command has no background
        if as_json:
            output.write_json(
                {"conversation": conv, "session": begun.id, "first": begun.first, "closed": head.session}
            )
            return 0
        output.write(f"{short(begun.id)}  begins at {handle_of(begun.first)}, with nothing shown\n")
        if store_access.has_model(summariser):
            await _note_author(engine, head.session)
        output.note(store_access.way_back(conv, head.session))
        return 0

    return store_access.change(place, act)


async def _note_author(engine: Engine, closed: str) -> None:
    """Say whether the summary of the closed session is a digest or was written by the model."""
    session = await engine.store.session(engine.owner, closed)
    for one in await engine.summaries([session.summary]) if session else ():
        is_digest = one.summary.kind != "model"
        output.note("it was closed with a digest" if is_digest else "it was summed up by the model")
