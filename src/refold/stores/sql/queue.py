"""Transactions on the queue of a branch, its commands, and the lease of the program that answers.

A queued message leaves the queue in the transaction that stores it as a message (`refold.stores.sql.commit`), a queued command in
the one that stores its reply. The lease keeps two programs from paying for the same reply; only the commit decides which one counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from refold.model.errors import NotFound
from refold.ports.records import CommandEntry, Head, QueuedEntry
from refold.stores.sql import rows
from refold.stores.sql.queries import Transaction


def enqueue(head: Head, entry: QueuedEntry) -> Transaction[None]:
    yield "add_pending", rows.of_queued(head, entry)


def queued(owner: str, branch: str) -> Transaction[list[QueuedEntry]]:
    found = yield "list_pending", {"owner": owner, "branch": branch}
    return [rows.to_queued(row) for row in found]


def take(owner: str, ids: Sequence[str]) -> Transaction[None]:
    """Take messages out of the queue.

    Raises:
        NotFound: another program has taken one of them.
    """
    taken = yield "take_pending", [{"owner": owner, "id": which} for which in ids]
    if len(taken) < len(ids):
        raise NotFound("a queued message has left the queue", hint="another program has stored it")


def begin_command(owner: str, which: str) -> Transaction[bool]:
    return bool((yield "begin_command", {"owner": owner, "id": which, "is_begun": True}))


def keep_command(owner: str, entry: CommandEntry) -> Transaction[None]:
    yield "take_pending", {"owner": owner, "id": entry.id}
    yield "add_command", rows.of_command(owner, entry)


def commands(owner: str, branch: str) -> Transaction[list[CommandEntry]]:
    found = yield "list_commands", {"owner": owner, "branch": branch}
    return [rows.to_command(row) for row in found]


def lease(
    owner: str, branch: str, holder: str, *, now: float, until: float, ended: str = ""
) -> Transaction[str | None]:
    place = {"owner": owner, "branch": branch}
    before = yield "lock_lease", place
    taken = yield "take_lease", {**place, "holder": holder, "now": now, "until": until, "ended": ended}
    if not taken:
        return None
    return str(before[0][0]) if before else ""


def lease_holder(owner: str, branch: str) -> Transaction[str]:
    found = yield "get_lease", {"owner": owner, "branch": branch}
    return str(found[0][0]) if found else ""


def release(owner: str, branch: str, holder: str) -> Transaction[None]:
    yield "release_lease", {"owner": owner, "branch": branch, "holder": holder}
