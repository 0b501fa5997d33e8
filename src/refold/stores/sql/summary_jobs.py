"""Transactions on summary jobs, the summaries they write, and the cache of summaries.

A claim is a lease. Its only purpose is that no two workers pay for the same summary. A worker that lost its lease may still store its
summary if no other is stored; only the commit decides whether a compaction takes effect.
"""

from __future__ import annotations

from msgspec import json

from refold.model.errors import NotFound
from refold.model.summary import Summary
from refold.ports.records import Call, Compaction, CompactionState, Embedding, FailingBranch, StoredSummary
from refold.stores.sql import rows
from refold.stores.sql.commit import reach
from refold.stores.sql.conversations import count_ended
from refold.stores.sql.queries import Transaction
from refold.stores.sql.search import embed


def plan(owner: str, compaction: Compaction) -> Transaction[Compaction]:
    yield "plan_compaction", rows.of_compaction(owner, compaction)
    found = yield "get_compaction", {"owner": owner, "id": compaction.id}
    if not found:
        raise NotFound("there is no such branch")
    return rows.to_compaction(found[0])


def claim(owner: str, which: str, holder: str, now: float, until: float) -> Transaction[Compaction | None]:
    found = yield (
        "claim_compaction",
        {"owner": owner, "id": which, "holder": holder, "now": now, "until": until},
    )
    reach("claim.before_commit")
    return rows.to_compaction(found[0]) if found else None


def beat(owner: str, which: str, holder: str, until: float) -> Transaction[bool]:
    return bool((yield "keep_claim", {"owner": owner, "id": which, "holder": holder, "until": until}))


def reply(owner: str, which: str, holder: str, written: StoredSummary, *calls: Call) -> Transaction[bool]:
    # The cost is stored in any case, because the provider bills it.
    for call in calls:
        yield "add_call", rows.of_call(owner, call)
    marked = yield "mark_summarised", {"owner": owner, "id": which}
    if not marked:
        return (yield from _has_replied(owner, which, holder))
    yield "put_summary", rows.of_summary(owner, marked[0][0], written)
    yield "forget_failures", {"owner": owner, "branch": marked[0][0]}
    reach("reply.before_commit")
    return True


def give_up(
    owner: str, which: str, holder: str, state: CompactionState, error: str = ""
) -> Transaction[bool]:
    ended = {"owner": owner, "id": which, "holder": holder, "state": state, "error": error}
    found = yield "give_up_compaction", ended
    yield from count_ended(owner, found)
    return bool(found)


def failures(owner: str, branch: str) -> Transaction[tuple[int, float]]:
    found = yield "count_failures", {"owner": owner, "branch": branch}
    return found[0][0], found[0][1]


def failing(owner: str) -> Transaction[list[FailingBranch]]:
    found = yield "list_failing", {"owner": owner}
    return [FailingBranch(*row) for row in found]


def forget_plans(owner: str, before: float) -> Transaction[int]:
    return len((yield "forget_plans", {"owner": owner, "before": before}))


def attach_summary(
    owner: str,
    session: str,
    written: StoredSummary,
    embedding: Embedding | None = None,
    *,
    replaces: str = "",
) -> Transaction[bool]:
    given = {"owner": owner, "id": session, "summary": written.id, "replaces": replaces}
    attached = yield "attach_summary", given
    if attached:
        yield "keep_summary", rows.of_summary(owner, attached[0][0], written)
        yield from embed(owner, (embedding,) if embedding else ())
    return bool(attached)


def cached(owner: str, key: str) -> Transaction[Summary | None]:
    found = yield "get_cached", {"owner": owner, "key": key}
    return rows.to_summary(found[0][0]) if found else None


def reserve(owner: str, key: str, at: float) -> Transaction[None]:
    yield "add_owner", {"owner": owner, "at": at}
    yield "reserve_cached", {"owner": owner, "key": key, "body": b"", "at": at}


def cache(owner: str, key: str, summary: Summary, at: float) -> Transaction[None]:
    yield "put_cached", {"owner": owner, "key": key, "body": json.encode(summary), "at": at}


def _has_replied(owner: str, which: str, holder: str) -> Transaction[bool]:
    """True if the stored reply is the holder's own, which is stored a second time."""
    found = yield "get_compaction", {"owner": owner, "id": which}
    if not found:
        return False
    compaction = rows.to_compaction(found[0])
    return compaction.state == "summarised" and compaction.holder == holder
