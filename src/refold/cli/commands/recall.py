"""`refold recall`: brings back an original by its handle, or passages by words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import BranchId, Conv, JsonOption, StoreOptions, expanded, token_count

if TYPE_CHECKING:
    from refold.engine.engine import Engine


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold recall support-42 '#m12'")(expanded(recall))


def recall(
    conv: Conv,
    handle: Annotated[
        str, typer.Argument(metavar="HANDLE", help="Such as #m12 (quote it), #m12.2 or #s0, or words.")
    ],
    *,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="TOKENS",
            parser=token_count(1),
            help="Words: the size of all passages together. A handle always gives the whole original.",
        ),
    ] = 1_000,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Bring back an original by its handle, as it came.

    #m12 is a message, #m12.2 the second of its parts, #s0 an older summary. Given words instead, it answers with the passages
    that fit them.
    """
    from refold.cli import store_access
    from refold.cli.output import harmless, indented_text
    from refold.model.dialect import DIALECTS
    from refold.wire.sdk import read_message

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        found = await engine.recall(conv, handle, branch=head.branch, max_tokens=max_tokens)
        if as_json:
            output.write_json({"conversation": conv, "recalled": handle, "found": found})
        elif isinstance(found, str):
            output.write("".join(f"{harmless(line)}\n" for line in found.splitlines()))
        else:
            message = read_message(found, DIALECTS[head.format])  # type: ignore[index]
            output.write(f"{message.role}\n{indented_text(message)}")
        if not found:
            output.note("nothing that was said fits these words")
        return 0 if found else 1

    return store_access.look(place, act)
