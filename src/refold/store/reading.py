"""Read what a branch holds and what was done about it.

One idea: a fork shares messages by reference, so a branch is read as a line of branches, each of which holds a range of the
numbers itself. Where nothing was forked the line has one link, and a question is one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import get_args

from refold.ports.store import (
    Call,
    CallKind,
    Compaction,
    CompactionKind,
    Head,
    Outline,
    Session,
    Stored,
    Written,
)
from refold.store import rows
from refold.store.transactions import EVERYTHING, Row, Transaction

_KINDS = get_args(CompactionKind)
LAST_CHARACTER = "\U0010ffff"
"""No name goes on with it, and all that go on from a prefix come before it."""
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


def outline(owner: str, conversation: str) -> Transaction[Outline]:
    heads = yield "list_heads", {"owner": owner, "conversation": conversation}
    if not heads:
        return Outline()
    known = tuple(rows.to_head(row) for row in heads)
    own = yield from sessions(owner, conversation, EVERYTHING)
    asked = [{"owner": owner, "branch": head.branch, "limit": EVERYTHING} for head in reversed(known)]
    made = yield "list_compactions", asked
    return Outline(known, tuple(own), tuple(rows.to_compaction(row) for row in reversed(made)))


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


def blob(head: Head, digest: bytes) -> Transaction[bytes | None]:
    asked = {"owner": head.owner, "conversation": head.conversation, "digest": digest}
    found = yield "get_blob", asked
    return found[0][0] if found else None


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


def find_sessions(owner: str, prefix: str, limit: int) -> Transaction[list[tuple[str, Session]]]:
    asked = {"owner": owner, "least": prefix, "after": prefix + LAST_CHARACTER, "limit": limit}
    found = yield "find_sessions", asked
    return [(row[0], rows.to_session(row[1:])) for row in found]


def holding(owner: str, places: Sequence[tuple[str, int]]) -> Transaction[list[Session]]:
    if not places:
        return []
    asked = [{"owner": owner, "branch": branch, "seq": seq} for branch, seq in places]
    found = yield "get_holding_session", asked
    return [rows.to_session(row) for row in found]


def compactions(owner: str, branch: str, limit: int) -> Transaction[list[Compaction]]:
    found = yield "list_compactions", {"owner": owner, "branch": branch, "limit": limit}
    return [rows.to_compaction(row) for row in reversed(found)]


def compaction(owner: str, which: str) -> Transaction[Compaction | None]:
    found = yield "get_compaction", {"owner": owner, "id": which}
    return rows.to_compaction(found[0]) if found else None


def last_change(owner: str, session: str, kinds: Sequence[CompactionKind]) -> Transaction[Compaction | None]:
    asked = {"owner": owner, "session": session, "kinds": " ".join(kinds or _KINDS)}
    found = yield "last_change", asked
    return rows.to_compaction(found[0]) if found else None


def count_summarised(owner: str, branch: str) -> Transaction[int]:
    found = yield "count_summarised", {"owner": owner, "branch": branch}
    return int(found[0][0])


def latest(head: Head, size: int | None) -> Transaction[Compaction | None]:
    found = yield from _known(head, EVERYTHING if size is None else size, "latest_compaction", {})
    return rows.to_compaction(found) if found else None


def summary(head: Head, number: int) -> Transaction[Written | None]:
    found = yield from _known(head, EVERYTHING, "find_summary", {"handle": number})
    return rows.to_written(found) if found else None


def _known(head: Head, size: int, name: str, asked: dict[str, object]) -> Transaction[Row | None]:
    """The first row that a statement finds in a branch, or in what its base had done before the fork."""
    branch, base, begins, number = head.branch, head.base, head.base_seq, EVERYTHING
    past = head.base_number
    while True:
        known = {"owner": head.owner, "branch": branch, "size": size, "number": number}
        if found := (yield name, {**known, **asked}):
            return found[0]
        if not base:
            return None
        # What a base did after the fork, at the very place of it, came too late: its number tells, the size does not.
        branch, number, size = base, past, min(size, begins)
        parents = yield "get_base", {"owner": head.owner, "branch": branch}
        base, begins, past = parents[0] if parents else ("", 0, 0)


def raw_arrivals(head: Head, first: int) -> Transaction[list[int]]:
    found = yield "list_raw_arrivals", {"owner": head.owner, "branch": head.branch, "first": first}
    return [row[0] for row in found]


def written(owner: str, ids: Sequence[str]) -> Transaction[list[Written]]:
    if not ids:
        return []
    found = yield "get_summary", [{"owner": owner, "id": which} for which in ids]
    return [rows.to_written(row) for row in found]


def calls(owner: str, conversation: str, limit: int) -> Transaction[list[Call]]:
    found = yield "list_calls", {"owner": owner, "conversation": conversation, "limit": limit}
    return [rows.to_call(row) for row in reversed(found)]


def spent(owner: str, conversation: str, kind: CallKind) -> Transaction[float]:
    found = yield "sum_spent", {"owner": owner, "conversation": conversation, "kind": kind}
    return float(found[0][0])


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
