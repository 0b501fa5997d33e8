"""Starts the program `refold`, or another module or script, as a process of its own, without importing all modules again each time.

Most of the processor time of `python -m refold` is spent on imports and on compiling patterns. `command()` is what to put
before the arguments instead: a small process (`launch.py`) that asks a server (`server.py`) for a copy of itself. The server
has the modules in memory and forks; the copy gets the small process's arguments, environment, folder, stdin, stdout and stderr,
and where stdin is a terminal that nobody has, it leads the session of that. The small process hands on signals and ends as the
copy ends. Whoever kills it kills the copy.

Tests of imports, of options of Python, of memory, of streams that are closed or of a process that is stopped start
`python -m refold` itself, and so do `tests/e2e/test_cli.py` and `tests/test_main.py` for the commands in general.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE_S = 60
REFOLD = (
    *("refold.cli.main", "refold.cli.output", "refold.cli.settings", "refold.cli.store_access"),
    *("refold.gateway.server", "refold.gateway.app", "refold.stores.sqlite", "refold.stores.memory"),
    *("refold.replay", "refold.demo", "typer._adapters", "typer._click.decorators", "rich.console"),
    *("refold.stores.sqlite.store", "refold.stores.postgres.store", "concurrent.futures.thread"),
    *("refold.chat.chat", "refold.terminal.screen", "refold.terminal.dialogue", "refold.terminal.event_text"),
    *("refold.dashboard.acts", "prometheus_client", "opentelemetry.trace", "opentelemetry.metrics", "uvloop"),
)
"""What most commands import. A command imports what is not here itself."""


def command(name: str = "refold", modules: tuple[str, ...] = REFOLD) -> list[str]:
    """What to put before the arguments of `refold`, of another module, or of a script that is named by its path.

    `modules` are those that its server has in memory; there is one server for each tuple of them.
    """
    if not hasattr(os, "pidfd_open"):
        return [sys.executable, *(() if name.endswith(".py") else ("-m",)), name]
    return [sys.executable, "-I", "-S", str(HERE / "launch.py"), _address(modules), name]


@cache
def _address(modules: tuple[str, ...]) -> str:
    """Start a server of this process; its address. It ends when its stdin is closed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "server.py"), *modules],
        stdin=pipe,
        stdout=pipe,
        env=own,
        cwd=HERE.parents[1],
    )
    assert server.stdin
    assert server.stdout
    atexit.register(server.wait, PATIENCE_S)
    atexit.register(server.stdin.close)
    return server.stdout.readline().decode().strip()
