"""Delete for good.

One idea: only a conversation or an owner is deleted, by name, and the database takes with it all that belongs to it; no other
way to delete a message is open. Cached summaries do not say which conversation they were made for, so all of the owner's go.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from refold.store.transactions import Transaction


def delete(owner: str, conversation: str) -> Transaction[int]:
    if conversation:
        found = yield "delete_conversation", {"owner": owner, "id": conversation}
        return (yield from _forget(owner, len(found)))
    found = yield "delete_conversations", {"owner": owner}
    yield from _forget(owner, len(found))
    yield "delete_owner", {"owner": owner}
    return len(found)


def expire(owner: str, before: float, keep: Sequence[str] = ()) -> Transaction[int]:
    kept = json.encode([*keep]).decode()
    found = yield "expire_conversations", {"owner": owner, "before": before, "keep": kept}
    return (yield from _forget(owner, len(found)))


def _forget(owner: str, deleted: int) -> Transaction[int]:
    if deleted:
        yield "delete_cached", {"owner": owner}
    return deleted
