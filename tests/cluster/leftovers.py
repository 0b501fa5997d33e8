"""Remove what a campaign left behind that was killed: namespaces with the programs in them, links, and its PostgreSQL.

Everything is named after the process that made it, and nothing of a process that lives is touched. Root is needed, as for the
namespaces themselves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

SPACE = re.compile(r"refold-(\d+)-\S+")
LINK = re.compile(r"\brf[bo]([0-9a-f]+)-\d+(?:p\d+)?(?=[@:])")
SERVER = "refold-pg-*"


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def remove() -> list[str]:
    """Remove what dead processes left, and return the names of it."""
    return [*_remove_spaces(), *_remove_links(), *_remove_servers()]


def _remove_spaces() -> list[str]:
    found = [one[0] for one in SPACE.finditer(_said("ip", "netns", "list")) if not is_alive(int(one[1]))]
    for name in found:
        for pid in _said("ip", "netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _said("ip", "netns", "del", name)
    return found


def _remove_links() -> list[str]:
    shown = _said("ip", "-oneline", "link", "show")
    found = sorted({one[0] for one in LINK.finditer(shown) if not is_alive(int(one[1], 16))})
    for name in found:
        _said("ip", "link", "del", name)
    return found


def _remove_servers() -> list[str]:
    """A server has a list of the processes that use it."""
    found = list[str]()
    for folder in Path(tempfile.gettempdir()).glob(SERVER):
        users = folder / ".handle_pids.json"
        if not users.exists() or any(is_alive(pid) for pid in json.loads(users.read_text() or "[]")):
            continue
        with suppress(OSError, ValueError, IndexError):
            os.kill(int((folder / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)  # at once
        shutil.rmtree(folder, ignore_errors=True)
        found.append(folder.name)
    return found


def _said(*words: str) -> str:
    """What a program prints; nothing if it is not there, or fails."""
    with suppress(FileNotFoundError):
        return subprocess.run(words, capture_output=True, check=False, text=True).stdout
    return ""
