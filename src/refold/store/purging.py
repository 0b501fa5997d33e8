"""Delete for good.

One idea: only a conversation or an owner is deleted, by name, and the database takes with it all that belongs to it; no other
way to delete a message is open. Cached summaries do not say which conversation they were made for, so all of the owner's go.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from refold.ports.store import Idle
from refold.store.transactions import EVERYTHING, Transaction


def delete(owner: str, conversation: str) -> Transaction[int]:
    if conversation:
        found = yield "delete_conversation", {"owner": owner, "id": conversation}
        return (yield from _forget(owner, len(found)))
    found = yield "delete_conversations", {"owner": owner}
    yield from _forget(owner, len(found))
    yield "delete_owner", {"owner": owner}
    return len(found)


def expire(owner: str, before: float, keep: Sequence[str] = (), limit: int | None = None) -> Transaction[int]:
    asked = {**_idle_since(owner, before, keep), "limit": EVERYTHING if limit is None else limit}
    found = yield "expire_conversations", asked
    return (yield from _forget(owner, len(found)))


def idle(owner: str, before: float, keep: Sequence[str] = ()) -> Transaction[Idle]:
    found = yield "count_idle", _idle_since(owner, before, keep)
    return Idle(*found[0])


def _idle_since(owner: str, before: float, keep: Sequence[str]) -> dict[str, object]:
    return {"owner": owner, "before": before, "keep": json.encode([*keep]).decode()}


def _forget(owner: str, deleted: int) -> Transaction[int]:
    if deleted:
        yield "delete_cached", {"owner": owner}
    return deleted
