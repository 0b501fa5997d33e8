"""Starts the program `refold` as a process of its own, without importing all of its modules again each time.

Most of the processor time of `python -m refold` is spent on imports and on compiling patterns. `command()` is what to put
before the arguments instead: a small process (`launch.py`) that asks a server (`server.py`) for a copy of itself. The server
has the modules in memory and forks; the copy gets the small process's arguments, environment, folder, stdin, stdout and stderr,
and where stdin is a terminal that nobody has, it leads the session of that. The small process hands on signals and ends as the
copy ends. Whoever kills it kills the copy.

Tests of imports, of options of Python, of memory or of the moment of a kill start `python -m refold` itself, and so do
`tests/e2e/test_cli.py` and `tests/test_main.py` for the commands in general.
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


def command() -> list[str]:
    """What to put before the arguments of `refold`."""
    if not hasattr(os, "pidfd_open"):
        return [sys.executable, "-m", "refold"]
    return [sys.executable, "-I", "-S", str(HERE / "launch.py"), _address()]


@cache
def _address() -> str:
    """Start the server of this process; its address. It ends when its stdin is closed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    pipe = subprocess.PIPE
    server = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "server.py")], stdin=pipe, stdout=pipe, env=own, cwd=HERE.parents[1]
    )
    assert server.stdin
    assert server.stdout
    atexit.register(server.wait, PATIENCE_S)
    atexit.register(server.stdin.close)
    return server.stdout.readline().decode().strip()
