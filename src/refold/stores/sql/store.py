"""The store over a database: the table of its methods and the transaction behind each.

A method runs one transaction with the driver of the database. The transactions have the signatures of the protocols in
`refold.ports.store`, so most methods are nothing but their transaction; the methods written out here do more. The databases share
nearly everything; the difference is their driver. The transactions that only this table uses are here: those on summary jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate

from msgspec import json

from refold.model.errors import NotFound
from refold.model.summary import Summary
from refold.ports.records import (
    Call,
    Compaction,
    CompactionState,
    Embedding,
    FailingBranch,
    Head,
    Outline,
    SearchHit,
    SessionHit,
    StoredSummary,
)
from refold.stores.sql import conversations as chats
from refold.stores.sql import queries, rows
from refold.stores.sql import search as index
from refold.stores.sql.commit import reach
from refold.stores.sql.queries import Driver, P, T, Transaction

# Transactions on summary jobs, the summaries they write, and the cache of summaries. A claim is a lease. Its only purpose is that no two
# workers pay for the same summary. A worker that lost its lease may still store its summary if no other is stored; only the commit
# decides whether a compaction takes effect.


def plan_job(owner: str, compaction: Compaction) -> Transaction[Compaction]:
    yield "plan_compaction", rows.of_compaction(owner, compaction)
    found = yield "get_compaction", {"owner": owner, "id": compaction.id}
    if not found:
        raise NotFound("there is no such branch")
    return rows.to_compaction(found[0])


def claim_job(
    owner: str, which: str, holder: str, now: float, until: float
) -> Transaction[Compaction | None]:
    found = yield (
        "claim_compaction",
        {"owner": owner, "id": which, "holder": holder, "now": now, "until": until},
    )
    reach("claim.before_commit")
    return rows.to_compaction(found[0]) if found else None


def keep_claim(owner: str, which: str, holder: str, until: float) -> Transaction[bool]:
    return bool((yield "keep_claim", {"owner": owner, "id": which, "holder": holder, "until": until}))


def store_summary(
    owner: str, which: str, holder: str, written: StoredSummary, *calls: Call
) -> Transaction[bool]:
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


def give_up_job(
    owner: str, which: str, holder: str, state: CompactionState, error: str = ""
) -> Transaction[bool]:
    ended = {"owner": owner, "id": which, "holder": holder, "state": state, "error": error}
    found = yield "give_up_compaction", ended
    yield from chats.count_ended(owner, found)
    return bool(found)


def count_failures(owner: str, branch: str) -> Transaction[tuple[int, float]]:
    found = yield "count_failures", {"owner": owner, "branch": branch}
    return found[0][0], found[0][1]


def list_failing(owner: str) -> Transaction[list[FailingBranch]]:
    found = yield "list_failing", {"owner": owner}
    return [FailingBranch(*row) for row in found]


def forget_plans_before(owner: str, before: float) -> Transaction[int]:
    return len((yield "forget_plans", {"owner": owner, "before": before}))


def attach_session_summary(
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
        yield from index.embed(owner, (embedding,) if embedding else ())
    return bool(attached)


def get_cached(owner: str, key: str) -> Transaction[Summary | None]:
    found = yield "get_cached", {"owner": owner, "key": key}
    return rows.to_summary(found[0][0]) if found else None


def reserve_cached(owner: str, key: str, at: float) -> Transaction[None]:
    yield "add_owner", {"owner": owner, "at": at}
    yield "reserve_cached", {"owner": owner, "key": key, "body": b"", "at": at}


def put_cached(owner: str, key: str, summary: Summary, at: float) -> Transaction[None]:
    yield "put_cached", {"owner": owner, "key": key, "body": json.encode(summary), "at": at}


def _has_replied(owner: str, which: str, holder: str) -> Transaction[bool]:
    """True if the stored reply is the holder's own, which is stored a second time."""
    found = yield "get_compaction", {"owner": owner, "id": which}
    if not found:
        return False
    compaction = rows.to_compaction(found[0])
    return compaction.state == "summarised" and compaction.holder == holder


# The store


def _reads(begin: Callable[P, Transaction[T]]) -> Callable[Concatenate[SqlStore, P], Coroutine[Any, Any, T]]:
    """A method that runs a read transaction."""

    async def method(self: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(begin, *args, **kwargs)

    method.__name__, method.__doc__ = begin.__name__, begin.__doc__
    return method


def _looks_up(
    begin: Callable[P, Transaction[T]],
) -> Callable[Concatenate[SqlStore, P], Coroutine[Any, Any, T]]:
    """A method that reads a few rows by their keys."""

    async def method(self: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._look_up(begin, *args, **kwargs)

    method.__name__, method.__doc__ = begin.__name__, begin.__doc__
    return method


def _writes(begin: Callable[P, Transaction[T]]) -> Callable[Concatenate[SqlStore, P], Coroutine[Any, Any, T]]:
    """A method that runs a write transaction."""

    async def method(self: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(begin, *args, **kwargs)

    method.__name__, method.__doc__ = begin.__name__, begin.__doc__
    return method


class SqlStore:
    """Conversations in a database."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._read, self._look_up, self._write = driver.read, driver.look_up, driver.write

    async def fault(self) -> str:
        return await self._read(queries.fault_of_tables, self._driver.dialect)

    # Conversations
    create = _writes(chats.create)
    fork = _writes(chats.fork)
    head = _looks_up(chats.head)
    news = _looks_up(chats.news)
    messages = _reads(chats.messages)
    pick = _reads(chats.pick)
    blob = _reads(chats.blob)
    find_key = _looks_up(chats.find_key)
    places = _looks_up(chats.places)
    damaged = _reads(chats.damaged)
    damaged_values = _reads(chats.damaged_values)
    pins = _reads(chats.pins)
    conversations = _reads(chats.conversations)
    latest_heads = _reads(chats.latest_heads)
    tokens_since = _reads(chats.tokens_since)
    owners = _reads(chats.owners)
    delete = _writes(chats.delete)
    expire = _writes(chats.expire)
    idle = _reads(chats.idle)

    # Sessions, compactions and calls
    sessions = _reads(chats.sessions)
    session = _looks_up(chats.session)
    find_sessions = _reads(chats.find_sessions)
    holding = _reads(chats.holding)
    attach_summary = _writes(attach_session_summary)
    compactions = _reads(chats.compactions)
    compaction = _reads(chats.compaction)
    unfinished = _reads(chats.unfinished)
    last_change = _reads(chats.last_change)
    count_summarised = _reads(chats.count_summarised)
    latest = _reads(chats.latest)
    raw_arrivals = _reads(chats.raw_arrivals)
    written = _reads(chats.written)
    summary = _reads(chats.summary)
    calls = _reads(chats.calls)
    calls_before = _reads(chats.calls_before)
    reply_to = _reads(chats.reply_to)
    newest_replies = _reads(chats.newest_replies)
    conversation_calls = _reads(chats.conversation_calls)
    spent = _reads(chats.spent)
    spent_each = _reads(chats.spent_each)
    call_days = _reads(chats.call_days)
    compaction_days = _reads(chats.compaction_days)
    uncounted = _reads(chats.uncounted)
    backfill = _writes(chats.backfill)

    # The queue of a chat
    enqueue = _writes(chats.enqueue)
    queued = _reads(chats.queued)
    begin_command = _writes(chats.begin_command)
    keep_command = _writes(chats.keep_command)
    commands = _reads(chats.commands)
    lease = _writes(chats.lease)
    lease_holder = _reads(chats.lease_holder)
    release = _writes(chats.release_lease)

    # Vectors
    embed = _writes(index.embed)
    embeddings = _reads(index.embeddings)
    unembedded = _reads(index.unembedded)
    nearest = _reads(index.nearest)
    turn_gaps = _reads(index.turn_gaps)
    turn_messages = _reads(index.turn_messages)
    put_turns = _writes(index.put_turns)
    turn_codes = _reads(index.turn_codes)
    turn_vectors = _reads(index.turn_vectors)

    # Summary jobs and the cache of summaries
    plan = _writes(plan_job)
    beat = _writes(keep_claim)
    give_up = _writes(give_up_job)
    failures = _reads(count_failures)
    failing = _reads(list_failing)
    forget_plans = _writes(forget_plans_before)
    cached = _reads(get_cached)
    reserve = _writes(reserve_cached)
    cache = _writes(put_cached)

    # Values of an owner
    learnt = _looks_up(chats.learnt)
    all_learnt = _reads(chats.all_learnt)
    learn = _writes(chats.learn)
    forget = _writes(chats.forget)
    forget_oldest = _writes(chats.forget_oldest)
    swap_learnt = _writes(chats.swap_learnt)
    add_key = _writes(chats.add_key)
    find_key_owner = _reads(chats.find_key_owner)
    has_keys = _reads(chats.has_keys)
    keys = _reads(chats.keys)
    revoke_key = _writes(chats.revoke_key)
    setting = _looks_up(chats.setting)
    put_setting = _writes(chats.put_setting)

    async def outline(self, owner: str, conversation: str, changes: int | None = None) -> Outline:
        return await self._driver.read_at_once(chats.outline, owner, conversation, changes)

    async def search(
        self, owner: str, query: str, *, conversation: str = "", branch: Head | None = None, limit: int = 20
    ) -> list[SearchHit]:
        dialect = self._driver.dialect
        return await self._read(index.search, dialect, owner, query, conversation, limit, branch)

    async def search_sessions(
        self, owner: str, query: str, *, conversation: str = "", limit: int = 20
    ) -> list[SessionHit]:
        return await self._read(
            index.search_sessions, self._driver.dialect, owner, query, conversation, limit
        )

    async def claim(
        self, owner: str, which: str, holder: str, *, now: float, until: float
    ) -> Compaction | None:
        claimed = await self._write(claim_job, owner, which, holder, now, until)
        reach("claim.after_commit")
        return claimed

    async def reply(self, owner: str, which: str, holder: str, written: StoredSummary, *calls: Call) -> bool:
        kept = await self._write(store_summary, owner, which, holder, written, *calls)
        reach("reply.after_commit")
        return kept

    async def close(self) -> None:
        await self._driver.close()
