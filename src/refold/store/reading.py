"""Read what a branch holds and what was done about it.

One idea: a fork shares messages by reference, so a branch is read as a line of branches, each of which holds a range of the
numbers itself. Where nothing was forked the line has one link, and a question is one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from refold.ports.store import Call, Compaction, Head, Session, Stored, Written
from refold.store import rows
from refold.store.transactions import EVERYTHING, Row, Transaction

_PAGE = 500
"""Messages that are looked over at a time: a whole branch may not fit into memory."""


def line(head: Head, last: int, first: int = 0) -> Transaction[list[tuple[str, int, int]]]:
    """The branches that hold the messages of a branch from `first` to before `last`, itself first, with the range of each."""
    branch, base, begins = head.branch, head.base, head.base_seq
    links = [(branch, begins, last)]
    while base and first < begins:
        last, branch = min(last, begins), base
        found = yield "get_base", {"owner": head.owner, "branch": branch}
        base, begins, _ = found[0] if found else ("", 0, 0)
        links.append((branch, begins, last))
    return links


def messages(head: Head, first: int, last: int | None, limit: int | None) -> Transaction[list[Stored]]:
    links = yield from line(head, EVERYTHING if last is None else last, first)
    found: list[Row] = []
    left = EVERYTHING if limit is None else limit
    for branch, begins, ends in reversed(links):
        asked = {"branch": branch, "first": max(first, begins), "last": ends, "limit": left - len(found)}
        found += yield "list_messages", {"owner": head.owner, **asked}
    return [rows.to_stored(row) for row in found]


def pick(head: Head, seqs: Sequence[int]) -> Transaction[list[Stored]]:
    wanted = sorted(set(seqs))
    if not wanted:
        return []
    links = yield from line(head, EVERYTHING, wanted[0])
    asked = [
        {"owner": head.owner, "branch": branch, "seq": seq}
        for branch, begins, ends in reversed(links)
        for seq in wanted
        if begins <= seq < ends
    ]
    found = yield "get_message", asked
    return [rows.to_stored(row) for row in found]


def find_key(head: Head, key: str) -> Transaction[int | None]:
    links = yield from line(head, EVERYTHING)
    for branch, _, ends in links:
        found = yield "find_key", {"owner": head.owner, "branch": branch, "key": key, "last": ends}
        if found:
            return int(found[0][0])
    return None


def sessions(owner: str, conversation: str, limit: int) -> Transaction[list[Session]]:
    name = "list_sessions" if conversation else "list_owner_sessions"
    found = yield name, {"owner": owner, "conversation": conversation, "limit": limit}
    return [rows.to_session(row) for row in reversed(found)]


def session(owner: str, which: str) -> Transaction[Session | None]:
    found = yield "get_session", {"owner": owner, "id": which}
    return rows.to_session(found[0]) if found else None


def compactions(owner: str, branch: str, limit: int) -> Transaction[list[Compaction]]:
    found = yield "list_compactions", {"owner": owner, "branch": branch, "limit": limit}
    return [rows.to_compaction(row) for row in reversed(found)]


def compaction(owner: str, which: str) -> Transaction[Compaction | None]:
    found = yield "get_compaction", {"owner": owner, "id": which}
    return rows.to_compaction(found[0]) if found else None


def latest(head: Head, size: int | None) -> Transaction[Compaction | None]:
    branch, ends, number = head.branch, EVERYTHING if size is None else size, EVERYTHING
    while branch:
        asked = {"owner": head.owner, "branch": branch, "size": ends, "number": number}
        if found := (yield "latest_compaction", asked):
            return rows.to_compaction(found[0])
        # What a base did after the fork, at the very place of it, came too late: its number tells, the size does not.
        parents = yield "get_base", {"owner": head.owner, "branch": branch}
        branch, begins, number = parents[0] if parents else ("", 0, 0)
        ends = min(ends, begins)
    return None


def raw_arrivals(head: Head, first: int) -> Transaction[list[int]]:
    links = yield from line(head, EVERYTHING, first)
    asked = [
        {"owner": head.owner, "branch": branch, "first": max(first, begins), "last": ends}
        for branch, begins, ends in reversed(links)
    ]
    found = yield "list_raw_arrivals", asked
    return [row[0] for row in found]


def written(owner: str, ids: Sequence[str]) -> Transaction[list[Written]]:
    if not ids:
        return []
    found = yield "get_summary", [{"owner": owner, "id": which} for which in ids]
    return [rows.to_written(row) for row in found]


def summaries(owner: str, branch: str, limit: int) -> Transaction[list[Written]]:
    found = yield "list_summaries", {"owner": owner, "branch": branch, "limit": limit}
    return [rows.to_written(row) for row in reversed(found)]


def calls(owner: str, conversation: str, limit: int) -> Transaction[list[Call]]:
    found = yield "list_calls", {"owner": owner, "conversation": conversation, "limit": limit}
    return [rows.to_call(row) for row in reversed(found)]


def damaged(head: Head) -> Transaction[list[int]]:
    found, first = list[int](), 0
    while page := (
        yield (
            "list_digests",
            {"owner": head.owner, "branch": head.branch, "first": first, "limit": _PAGE},
        )
    ):
        found += [seq for seq, body, digest in page if sha256(body).digest() != digest]
        first = page[-1][0] + 1
    return found
