"""Transactions on what an owner has: conversations (create, fork, read, list and delete branches), their queues, sums by day, learnt
values, client keys, settings.

A branch is created together with its first session, so every message is in the range of a session. A fork shares messages by
reference: a branch is read as a chain of branches, each with a range of the message numbers. Without a fork the chain has one link,
and a read is one query. Only whole conversations and owners are deleted; the database deletes their rows by foreign key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from msgspec import json, structs

from refold.model.errors import NotFound
from refold.ports.records import (
    BranchNews,
    Call,
    CallKind,
    CallSum,
    ClientKey,
    CommandEntry,
    Compaction,
    CompactionKind,
    CompactionSum,
    CountedOutcome,
    Head,
    HistoryPlace,
    Idle,
    InheritedState,
    LatestHead,
    Listed,
    Outline,
    QueuedEntry,
    Session,
    StoredMessage,
    StoredSummary,
    copied_compaction,
    copied_raw_arrivals,
    counted,
)
from refold.stores.sql import rows
from refold.stores.sql.queries import EVERYTHING, TableRow, Transaction

_KINDS = get_args(CompactionKind)


LAST_CHARACTER = "\U0010ffff"
"""No name contains it, and every name with a prefix sorts before the prefix plus this character."""


LAST = 1e300
"""After every time that is stored."""
_PAGE = 500
"""Messages that are read at a time: a whole branch may not fit into memory."""
PLACES = 64
"""Results of one lookup: if many branches begin alike, not all of them are needed."""


def create(head: Head, session: Session, *, title: str = "", at: float = 0.0) -> Transaction[Head]:
    found = yield from _find_branch(head.owner, head.branch)
    if found is not None:
        return _belonging(found, head.conversation)
    folded = rows.folded(head.conversation, title)
    yield "add_owner", {"owner": head.owner, "at": at}
    yield (
        "add_conversation",
        {"owner": head.owner, "id": head.conversation, "title": title, "folded": folded, "at": at},
    )
    return (yield from _begin(structs.replace(head, base="", base_seq=0), session))


def fork(
    base: Head, at_seq: int, head: Head, session: Session, inherited: InheritedState | None = None
) -> Transaction[Head]:
    found = yield from _find_branch(base.owner, base.branch)
    trunk = _belonging(found, base.conversation)
    if not 0 <= at_seq <= trunk.next_seq:
        raise NotFound("the branch has no such message to fork at")
    fresh = structs.replace(
        head, owner=base.owner, conversation=base.conversation, base=base.branch, base_seq=at_seq
    )
    begun = yield from _begin(fresh, session)
    if inherited is not None:
        begun = structs.replace(begun, base_number=head.base_number)
        yield (
            "set_base_number",
            {"owner": begun.owner, "id": begun.branch, "base_number": begun.base_number},
        )
    shared = {"owner": base.owner, "branch": head.branch, "base": base.branch, "base_seq": at_seq}
    yield "copy_pins", shared
    yield from _inherit(begun, inherited or (yield from _shown_by(trunk, begun)))
    return begun


def _shown_by(trunk: Head, head: Head) -> Transaction[InheritedState]:
    """The change in effect on the base at the position of the fork."""
    raw = yield from raw_arrivals(trunk, 0)
    shown = yield from latest(trunk, head.base_seq)
    if shown is None:
        return InheritedState(raw=tuple(raw))
    summaries = yield from written(head.owner, [shown.id])
    return InheritedState(copied_compaction(shown, summaries[0] if summaries else None, head), tuple(raw))


def _inherit(head: Head, inherited: InheritedState) -> Transaction[None]:
    for one in copied_raw_arrivals(inherited.raw, head):
        yield "add_raw_arrival", rows.of_compaction(head.owner, one)
    if (change := inherited.shown) is None:
        return
    if change.written is not None:
        yield "put_summary", rows.of_summary(head.owner, head.branch, change.written)
    yield "install_compaction", rows.of_compaction(head.owner, change.compaction)


def head(owner: str, conversation: str, branch: str = "") -> Transaction[Head | None]:
    if not branch:
        found = yield "get_latest_head", {"owner": owner, "conversation": conversation}
        return rows.to_head(found[0]) if found else None
    named = yield from _find_branch(owner, branch)
    return named if named is not None and named.conversation == conversation else None


def news(seen: Head) -> Transaction[BranchNews | None]:
    place = {"owner": seen.owner, "branch": seen.branch}
    asked = {"first": seen.next_seq, "session": seen.session, "epoch": seen.epoch}
    found = yield "get_news", {**place, **asked}
    if not found:
        return None
    head, (has_pins, has_unfinished) = rows.to_head(found[0][:-11]), found[0][-11:-9]
    if head.conversation != seen.conversation:
        return None
    added = tuple(rows.to_stored(row[-9:]) for row in found if row[-9] is not None)
    return BranchNews(head, added, bool(has_pins), bool(has_unfinished))


def _begin(head: Head, session: Session) -> Transaction[Head]:
    """Create a branch without rows of its own."""
    fresh = structs.replace(head, next_seq=head.base_seq, epoch=0, revision=0, session=session.id)
    added = yield "add_branch", rows.of_branch(fresh)
    yield "add_session", rows.of_session(fresh, session)
    return structs.replace(fresh, base_number=added[0][0])


def _find_branch(owner: str, branch: str) -> Transaction[Head | None]:
    found = yield "get_head", {"owner": owner, "branch": branch}
    return rows.to_head(found[0]) if found else None


def _belonging(head: Head | None, conversation: str) -> Head:
    if head is None or head.conversation != conversation:
        raise NotFound("there is no such branch")
    return head


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


def outline(owner: str, conversation: str, changes: int | None = None) -> Transaction[Outline]:
    heads = yield "list_heads", {"owner": owner, "conversation": conversation}
    if not heads:
        return Outline()
    known = tuple(rows.to_head(row) for row in heads)
    own = yield from sessions(owner, conversation, EVERYTHING)
    most = EVERYTHING if changes is None else changes
    asked = [{"owner": owner, "branch": head.branch, "limit": most} for head in reversed(known)]
    made = yield "list_compactions", asked
    return Outline(known, tuple(own), tuple(rows.to_compaction(row) for row in reversed(made)))


def messages(
    head: Head, first: int = 0, last: int | None = None, limit: int | None = None
) -> Transaction[list[StoredMessage]]:
    links = yield from line(head, EVERYTHING if last is None else last, first)
    found: list[TableRow] = []
    left = EVERYTHING if limit is None else limit
    for branch, begins, ends in reversed(links):
        asked = {"branch": branch, "first": max(first, begins), "last": ends, "limit": left - len(found)}
        found += yield "list_messages", {"owner": head.owner, **asked}
    return [rows.to_stored(row) for row in found]


def pick(head: Head, seqs: Sequence[int]) -> Transaction[list[StoredMessage]]:
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


def sessions(owner: str, conversation: str = "", limit: int = 1_000) -> Transaction[list[Session]]:
    name = "list_sessions" if conversation else "list_owner_sessions"
    found = yield name, {"owner": owner, "conversation": conversation, "limit": limit}
    return [rows.to_session(row) for row in reversed(found)]


def session(owner: str, which: str) -> Transaction[Session | None]:
    found = yield "get_session", {"owner": owner, "id": which}
    return rows.to_session(found[0]) if found else None


def find_sessions(owner: str, prefix: str, limit: int = 10) -> Transaction[list[tuple[str, Session]]]:
    asked = {"owner": owner, "least": prefix, "after": prefix + LAST_CHARACTER, "limit": limit}
    found = yield "find_sessions", asked
    return [(row[0], rows.to_session(row[1:])) for row in found]


def holding(owner: str, places: Sequence[tuple[str, int]]) -> Transaction[list[Session]]:
    if not places:
        return []
    asked = [{"owner": owner, "branch": branch, "seq": seq} for branch, seq in places]
    found = yield "get_holding_session", asked
    return [rows.to_session(row) for row in found]


def compactions(owner: str, branch: str, limit: int = 1_000) -> Transaction[list[Compaction]]:
    found = yield "list_compactions", {"owner": owner, "branch": branch, "limit": limit}
    return [rows.to_compaction(row) for row in reversed(found)]


def compaction(owner: str, which: str) -> Transaction[Compaction | None]:
    found = yield "get_compaction", {"owner": owner, "id": which}
    return rows.to_compaction(found[0]) if found else None


def unfinished(owner: str, branch: str = "") -> Transaction[list[Compaction]]:
    found = yield (
        "list_branch_unfinished" if branch else "list_unfinished",
        {"owner": owner, "branch": branch},
    )
    return [rows.to_compaction(row) for row in found]


def last_change(
    owner: str, session: str, kinds: Sequence[CompactionKind] = ()
) -> Transaction[Compaction | None]:
    asked = {"owner": owner, "session": session, "kinds": " ".join(kinds or _KINDS)}
    found = yield "last_change", asked
    return rows.to_compaction(found[0]) if found else None


def count_summarised(owner: str, branch: str) -> Transaction[int]:
    found = yield "count_summarised", {"owner": owner, "branch": branch}
    return int(found[0][0])


def latest(
    head: Head, size: int | None = None, *, before: int | None = None
) -> Transaction[Compaction | None]:
    number = EVERYTHING if before is None else before - 1
    found = yield from _known(
        head, EVERYTHING if size is None else size, "latest_compaction", {}, number=number
    )
    return rows.to_compaction(found) if found else None


def summary(head: Head, number: int) -> Transaction[StoredSummary | None]:
    found = yield from _known(head, EVERYTHING, "find_summary", {"handle": number})
    return rows.to_written(found) if found else None


def _known(
    head: Head, size: int, name: str, asked: dict[str, object], *, number: int = EVERYTHING
) -> Transaction[TableRow | None]:
    """The first row that a query finds in a branch, up to a number, or among the rows that its base had before the fork."""
    branch, base, begins, past = head.branch, head.base, head.base_seq, head.base_number
    while True:
        known = {"owner": head.owner, "branch": branch, "size": size, "number": number}
        if found := (yield name, {**known, **asked}):
            return found[0]
        if not base:
            return None
        # A change of the base at the same size but after the fork does not count: the number decides, not the size.
        branch, number, size = base, past, min(size, begins)
        parents = yield "get_base", {"owner": head.owner, "branch": branch}
        base, begins, past = parents[0] if parents else ("", 0, 0)


def raw_arrivals(head: Head, first: int) -> Transaction[list[int]]:
    found = yield "list_raw_arrivals", {"owner": head.owner, "branch": head.branch, "first": first}
    return [row[0] for row in found]


def written(owner: str, ids: Sequence[str]) -> Transaction[list[StoredSummary]]:
    if not ids:
        return []
    found = yield "get_summary", [{"owner": owner, "id": which} for which in ids]
    return [rows.to_written(row) for row in found]


def calls(owner: str, conversation: str, limit: int = 1_000) -> Transaction[list[Call]]:
    found = yield "list_calls", {"owner": owner, "conversation": conversation, "limit": limit}
    return [rows.to_call(row) for row in reversed(found)]


def calls_before(owner: str, conversation: str, call: str) -> Transaction[int]:
    found = yield "count_calls_before", {"owner": owner, "conversation": conversation, "id": call}
    return int(found[0][0])


def conversation_calls(owner: str, since: float = 0.0) -> Transaction[list[CallSum]]:
    found = yield "sum_conversation_calls", {"owner": owner, "since": since}
    return [rows.to_conversation_calls(row) for row in found]


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
        found += [seq for seq, body, digest in page if rows.digest_of(body) != digest]
        first = page[-1][0] + 1
    return found


_DIGESTED: tuple[tuple[str, object, str], ...] = (
    ("list_notes_digests", -1, "the notes"),
    ("list_shown_digests", -1, "the shortened form of message {}"),
    ("list_reply_digests", -1, "the reply to the call {}"),
    ("list_summary_digests", "", "the summary {}"),
    ("list_compaction_digests", -1, "the record of the compaction {}"),
)
"""Queries of values with their checksum, the key before the first row, and the name of a value."""
_OF_CONVERSATION = (("list_blob_digests", b"", "a system prompt"),)
_FEW = 16
"""Rows of one page: a record of a compaction may have hundreds of kilobytes."""


def damaged_values(head: Head) -> Transaction[list[str]]:
    found = list[str]()
    place = {"owner": head.owner, "conversation": head.conversation, "branch": head.branch, "limit": _FEW}
    # What all branches of a conversation share is reported once, with the first of them.
    for query, after, name in _DIGESTED if head.base else (*_DIGESTED, *_OF_CONVERSATION):
        while page := (yield query, {**place, "after": after}):
            found += [
                name.format(which)
                for _, which, digest, number, *parts in page
                if rows.is_damaged(digest, number, *parts)
            ]
            after = page[-1][0]
    return found


def places(owner: str, hashes: Sequence[bytes]) -> Transaction[list[HistoryPlace]]:
    asked = json.encode([one.hex() for one in hashes]).decode()
    found = yield "find_chains", {"owner": owner, "hashes": asked, "limit": PLACES}
    return [HistoryPlace(bytes(row[0]), *row[1:]) for row in found]


def reply_to(owner: str, call: str) -> Transaction[bytes]:
    found = yield "get_reply", {"owner": owner, "call": call}
    return bytes(found[0][0]) if found else b""


def newest_replies(owner: str, places: Sequence[tuple[str, str, int]]) -> Transaction[dict[str, bytes]]:
    found = yield "list_newest_replies", {"owner": owner, "places": json.encode([*places]).decode()}
    return {row[0]: row[1] for row in found}


def conversations(owner: str, *, limit: int = 50, words: str = "") -> Transaction[list[Listed]]:
    wanted = json.encode(words.casefold().split()).decode()
    found = yield "find_conversations", {"owner": owner, "words": wanted, "limit": limit}
    if not found:
        return []
    asked = [{"owner": owner, "conversation": row[0]} for row in found]
    latest = yield "get_latest_head", asked
    heads = [rows.to_head(row) for row in latest]
    described = yield (
        "describe_conversation",
        [{"owner": owner, "id": head.conversation, "branch": head.branch} for head in heads],
    )
    return [rows.to_listed(row) for row in described]


def latest_heads(
    owner: str, *, limit: int = 50, words: str = "", before: tuple[float, int] | None = None
) -> Transaction[list[LatestHead]]:
    wanted = json.encode(words.casefold().split()).decode()
    at, ordinal = before or (LAST, EVERYTHING)
    found = yield (
        "list_latest_heads",
        {"owner": owner, "words": wanted, "at": at, "ordinal": ordinal, "limit": limit},
    )
    return [rows.to_latest_head(row) for row in found]


def tokens_since(owner: str, places: Sequence[tuple[str, int]]) -> Transaction[dict[str, int]]:
    found = yield "sum_tokens_since", {"owner": owner, "places": json.encode([*places]).decode()}
    return {branch: 0 for branch, _ in places} | {row[0]: int(row[1]) for row in found}


def spent_each(owner: str, conversations: Sequence[str], kind: CallKind) -> Transaction[dict[str, float]]:
    names = json.encode([*conversations]).decode()
    found = yield "sum_spent_each", {"owner": owner, "names": names, "kind": kind}
    return {row[0]: float(row[1]) for row in found}


def owners() -> Transaction[list[str]]:
    found = yield "list_owners", {}
    return [row[0] for row in found]


def pins(head: Head) -> Transaction[list[int]]:
    found = yield "list_pins", {"owner": head.owner, "branch": head.branch}
    return [row[0] for row in found]


def delete(owner: str, conversation: str = "") -> Transaction[int]:
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
        yield "delete_orphans", {"owner": owner}
    return deleted


# Values that an owner has besides conversations: learnt values, client keys, settings


def learnt(owner: str, topic: str, key: str) -> Transaction[bytes | None]:
    found = yield "get_learnt", {"owner": owner, "topic": topic, "key": key}
    return found[0][0] if found else None


def all_learnt(owner: str, topic: str) -> Transaction[list[tuple[str, bytes]]]:
    found = yield "all_learnt", {"owner": owner, "topic": topic}
    return [(key, value) for key, value in found]


def forget(owner: str, topic: str, key: str) -> Transaction[bool]:
    return bool((yield "forget_learnt", {"owner": owner, "topic": topic, "key": key}))


def forget_oldest(owner: str, topic: str, kept: int) -> Transaction[int]:
    return len((yield "forget_oldest_learnt", {"owner": owner, "topic": topic, "others": kept - 1}))


def learn(owner: str, topic: str, key: str, value: bytes, at: float) -> Transaction[None]:
    yield "add_owner", {"owner": owner, "at": at}
    yield "put_learnt", {"owner": owner, "topic": topic, "key": key, "value": value, "at": at}


def swap_learnt(
    owner: str, topic: str, key: str, seen: bytes | None, value: bytes, at: float
) -> Transaction[bool]:
    row = {"owner": owner, "topic": topic, "key": key, "value": value, "at": at}
    if seen is not None:
        return bool((yield "swap_learnt", {**row, "seen": seen}))
    yield "add_owner", {"owner": owner, "at": at}
    return bool((yield "add_learnt", row))


def add_key(key: ClientKey) -> Transaction[None]:
    yield "add_owner", {"owner": key.owner, "at": key.at}
    yield "add_key", structs.asdict(key)


def find_key_owner(which: str) -> Transaction[ClientKey | None]:
    found = yield "find_key_owner", {"id": which}
    return rows.to_client_key(found[0]) if found else None


def has_keys() -> Transaction[bool]:
    return bool((yield "has_keys", {})[0][0])


def keys(owner: str) -> Transaction[list[ClientKey]]:
    found = yield "list_keys", {"owner": owner}
    return [rows.to_client_key(row) for row in found]


def revoke_key(owner: str, which: str, at: float) -> Transaction[bool]:
    return bool((yield "revoke_key", {"owner": owner, "id": which, "at": at}))


def setting(owner: str, key: str) -> Transaction[bytes | None]:
    found = yield "get_setting", {"owner": owner, "key": key}
    return found[0][0] if found else None


def put_setting(owner: str, key: str, value: bytes | None, at: float) -> Transaction[None]:
    if value is None:
        yield "delete_setting", {"owner": owner, "key": key}
        return
    yield "add_owner", {"owner": owner, "at": at}
    yield "put_setting", {"owner": owner, "key": key, "value": value, "at": at}


# Sums by day. A trigger of the database counts a call when it is stored. Compactions are counted here, by the transaction that ends
# one: a commit that installs or undoes it, or the end of its summary job. A row that an earlier version has stored is not counted
# (`is_counted` in the tables); whatever happens to it later, `backfill` counts it once, by its state then.


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
        yield from count_compaction(owner, row, "installed" if row.number else _outcome(row))
        if row.number and row.state == "undone":
            yield from count_compaction(owner, row, "undone")
    return len(calls), len(ended)


def count_compaction(
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
            yield from count_compaction(owner, compaction, _outcome(compaction))


def _outcome(row: Compaction) -> CountedOutcome:
    match row.state:
        case "undone" | "failed":
            return row.state
        case _:
            return "superseded"


# The queue of a branch, its commands, and the lease of the program that answers. A queued message leaves the queue in the transaction
# that stores it as a message (`refold.stores.sql.commit`), a queued command in the one that stores its reply. The lease keeps two
# programs from paying for the same reply; only the commit decides which one counts.


def enqueue(head: Head, entry: QueuedEntry) -> Transaction[None]:
    yield "add_pending", rows.of_queued(head, entry)


def queued(owner: str, branch: str) -> Transaction[list[QueuedEntry]]:
    found = yield "list_pending", {"owner": owner, "branch": branch}
    return [rows.to_queued(row) for row in found]


def take_queued(owner: str, ids: Sequence[str]) -> Transaction[None]:
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


def release_lease(owner: str, branch: str, holder: str) -> Transaction[None]:
    yield "release_lease", {"owner": owner, "branch": branch, "holder": holder}
