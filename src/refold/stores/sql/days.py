"""Transactions on the sums of calls and compactions by day.

A trigger of the database counts a call when it is stored. Compactions are counted here, by the transaction that ends one: a commit
that installs or undoes it, or the end of its summary job. A row that an earlier version has stored is not counted (`is_counted`
in the tables); whatever happens to it later, `backfill` counts it once, by its state then.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.ports.records import CallSum, Compaction, CompactionSum, CountedOutcome, counted
from refold.stores.sql import rows
from refold.stores.sql.queries import TableRow, Transaction


def call_days(owner: str, first: int = 0) -> Transaction[list[CallSum]]:
    found = yield "sum_days", {"owner": owner, "first": first}
    return [rows.to_day(row) for row in found]


def compaction_days(owner: str, first: int = 0) -> Transaction[list[CompactionSum]]:
    found = yield "list_compaction_days", {"owner": owner, "first": first}
    return [rows.to_compaction_day(row) for row in found]


def uncounted(owner: str) -> Transaction[tuple[int, int]]:
    found = yield "count_uncounted", {"owner": owner}
    return found[0][0], found[0][1]


def backfill(owner: str, limit: int) -> Transaction[tuple[int, int]]:
    some = {"owner": owner, "limit": limit, "is_counted": True}
    calls = yield "count_calls", some
    ended = yield "count_compactions", some
    for row in map(rows.to_compaction, ended):
        yield from count(owner, row, "installed" if row.number else _outcome(row))
        if row.number and row.state == "undone":
            yield from count(owner, row, "undone")
    return len(calls), len(ended)


def count(
    owner: str, row: Compaction, outcome: CountedOutcome, author: str | None = None
) -> Transaction[None]:
    """Add a compaction to the sums of its day. Without an `author`, it is that of the stored summary."""
    if author is None:
        written = yield "get_summary", {"owner": owner, "id": row.id}
        author = rows.to_written(written[0]).summary.author if written else ""
    if (added := counted(row, author, outcome)) is not None:
        yield "add_compactions", rows.of_compaction_sum(owner, added)


def count_ended(owner: str, ended: Iterable[TableRow]) -> Transaction[None]:
    """Count compactions that were undone or given up: rows of `is_counted` and a compaction in its new state."""
    for is_counted, *row in ended:
        compaction = rows.to_compaction(tuple(row))
        if is_counted and compaction.state in ("undone", "failed", "superseded"):
            yield from count(owner, compaction, _outcome(compaction))


def _outcome(row: Compaction) -> CountedOutcome:
    match row.state:
        case "undone" | "failed":
            return row.state
        case _:
            return "superseded"
