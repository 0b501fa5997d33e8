"""The name that a program has in a lease, and whether the program behind a name has ended.

A lease expires by itself, but on the machine where its holder was killed nobody has to wait for that: the name says which
process it was. On Linux that is the boot, the PID namespace, the process and its start time, so a reused process id or
another container is not taken for it. Elsewhere a name tells nothing, and the lease decides.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from refold.engine.journal import Journal

_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


def name_holder(suffix: str) -> str:
    """Return the name of this process in a lease. `suffix` tells several holders of one process apart."""
    return f"{_machine()}.{os.getpid()}.{_start_of(os.getpid())}.{suffix}"


def has_ended(holder: str) -> bool:
    """Whether the process behind a name has ended for certain: False if it runs, or if nobody here can tell."""
    machine, *rest = holder.split(".")
    if len(rest) != 3 or not machine or machine != _machine() or not rest[0].isdecimal():
        return False
    process, start = int(rest[0]), rest[1]
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False  # it runs, as another user
    return bool(start) and _start_of(process) != start


async def is_held(journal: Journal, *, by_others_than: str = "") -> bool:
    """Whether a program has the lease of a branch, and answers. One that was killed elsewhere counts until its lease is taken."""
    holder = await journal.store.lease_holder(journal.head.owner, journal.head.branch)
    return holder not in ("", by_others_than) and not has_ended(holder)


def _machine() -> str:
    """What tells this boot and this PID namespace from others; empty where nothing does."""
    try:
        found = f"{_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return ""
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def _start_of(process: int) -> str:
    """The start of a process in ticks since the boot; empty if it is not known, or if the process was killed and is a zombie."""
    try:
        found = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if found[0] in (b"Z", b"X") else found[19].decode()
