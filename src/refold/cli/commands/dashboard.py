"""`refold dashboard`: opens the page for a store, without a gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli import output
from refold.cli.options import StoreOptions, expanded

PORT = 7337
"""The next one after the gateway's."""
EXAMPLES = """\b
Examples:
  refold dashboard
  refold dashboard --store sqlite:////home/me/chats.db --no-open
  refold dashboard --port 0"""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(dashboard))


def dashboard(
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="The port to listen on; 0 takes any that is free.",
        ),
    ] = PORT,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address, and do not open a browser.")
    ] = False,
    place: StoreOptions,
) -> int:
    """Open a page that shows stored conversations: what fills each window, what was done to it and why, and what it saved.

    It serves this machine alone, until Ctrl-C. The gateway has the same page at its own address: `refold serve`. If keys were made
    for this store, the page asks for one. The extra `server` is needed.
    """
    import asyncio

    from refold.cli.settings import check_server_extra, layers_here, load_plugins_here
    from refold.cli.store_access import check_there

    check_server_extra("the dashboard")
    check_there(place.url)
    from refold.config import resolve
    from refold.gateway.server import serve_page

    def tell(address: str) -> None:
        output.write(f"{address}\n")
        output.note("Ctrl-C ends it")
        if not no_open:
            import threading
            import webbrowser

            # A browser of the terminal returns when it is closed, and needs the page until then.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    load_plugins_here()
    asyncio.run(serve_page(resolve(layers_here()), tell, url=place.url, owner=place.owner, port=port))
    return 0
