"""`refold mcp`: serves stored conversations to assistants that speak the Model Context Protocol."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from refold.cli import output
from refold.cli.options import StoreOptions, expanded

if TYPE_CHECKING:
    from refold.engine.engine import Engine


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold mcp --store sqlite:////home/me/chats.db")(expanded(mcp))


def mcp(*, place: StoreOptions) -> int:
    """Serve stored conversations to assistants that speak MCP, over stdin and stdout.

    The tools are list_conversations, search and recall: nothing is ever changed. A program such as an editor starts this
    command and ends it; docs/recall.md says how to tell it. The extra `mcp` is needed.
    """
    import asyncio

    from refold.cli.settings import embedder_here
    from refold.cli.store_access import check_kept, check_there
    from refold.engine.engine import Engine
    from refold.integrations.mcp import serve
    from refold.stores.url import open_store

    async def open_engine() -> Engine:
        check_there(place.url)
        return Engine(await open_store(place.url), owner=place.owner, embedder=embedder_here())

    check_kept(place.url)  # a URL that cannot work is refused at once, not at the first question
    if sys.stdin.isatty():
        output.note(
            "waiting for an MCP client on stdin; Ctrl-C ends this\nhint: a client starts this command itself"
        )
    asyncio.run(serve(open_engine))
    return 0
