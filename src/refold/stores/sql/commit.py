"""The transaction that commits a batch to a branch, and the failpoints at which tests make a transaction fail.

Compare-and-swap: the branch's row is updated first, and only if it has not changed since the writer read it. SQLite has one writer
at a time, so there a batch that only adds rows checks the row without writing it. From then on no other transaction can write to the branch, so messages, session ranges, compactions and the rest follow without further checks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NoReturn, TypeAlias

from msgspec import structs

from refold.model.errors import Conflict, HeldElsewhere, NotFound, StoreError
from refold.ports.records import (
    NEWEST_BLOBS,
    Batch,
    Head,
    InstalledCompaction,
    NewMessages,
    Session,
    StoredMessage,
)
from refold.stores.sql import rows
from refold.stores.sql.conversations import count_compaction, count_ended, find_key, take_queued
from refold.stores.sql.queries import QueryParameters, Transaction
from refold.stores.sql.search import embed, forget

MOST_FORGOTTEN = 1_000
"""Blobs that one commit deletes: a conversation of an earlier version may have many more, which later commits delete."""

PORTION_BYTES = 256 * 1024
"""Bytes of messages that are given to the database at a time: all those of a large request would be in memory once more."""

Spell: TypeAlias = Callable[[Head, StoredMessage], QueryParameters]
AddLong: TypeAlias = Callable[[Head, StoredMessage], Transaction[None]]


def commit(seen: Head, batch: Batch, spell: Spell, add_long: AddLong | None = None) -> Transaction[Head]:
    """Commit a batch. `spell` makes the parameters of a message for a database; `add_long` appends one of `PORTION_BYTES` or more,
    for a database whose driver would hold several copies of it.
    """
    check_numbers(seen, batch.messages)
    head = yield from _swap(seen, batch)
    reach("commit.after_lock")
    yield from _append(head, batch.messages, spell, add_long)
    reach("commit.after_messages")
    if batch.takes:
        yield from take_queued(head.owner, batch.takes)
    if batch.undoes:
        head = yield from _undo(head, batch.undoes)
    for change in batch.changes:
        head = yield from _install(head, change, batch.at)
    if batch.opens is not None:
        head = yield from _open(head, batch.opens, batch.opens.first, batch.at)
    if batch.title:
        yield "name_conversation", _naming(head, batch.title)
    if batch.embeddings:
        yield from embed(head.owner, batch.embeddings)
        reach("commit.after_embeddings")
    if batch.blobs:
        yield "add_blob", [rows.of_blob(head, body) for body in batch.blobs]
        yield from _forget_blobs(head)
    yield from _pin(head, batch)
    if batch.calls:
        yield "add_call", [rows.of_call(head.owner, call) for call in batch.calls]
    yield from keep_chains(head, batch)
    for one in batch.learnt:  # last: all conversations of an owner with one model write the same row
        place = {"owner": head.owner, "topic": one.topic, "key": one.key}
        yield "put_learnt", {**place, "value": one.value, "at": batch.at}
    reach("commit.before_commit")
    return head


def _forget_blobs(head: Head) -> Transaction[None]:
    """Delete the blobs of a conversation that no branch uses, apart from the newest."""
    place = {"owner": head.owner, "conversation": head.conversation}
    older = yield "list_older_blobs", {**place, "newest": NEWEST_BLOBS, "limit": MOST_FORGOTTEN}
    if older:
        yield "delete_blob", [{**place, "digest": row[0]} for row in older]


def _pin(head: Head, batch: Batch) -> Transaction[None]:
    for query, seqs in (("add_pin", batch.pins), ("remove_pin", batch.unpins)):
        if seqs:
            yield query, [{"owner": head.owner, "branch": head.branch, "seq": seq} for seq in seqs]


def check_numbers(seen: Head, messages: Sequence[StoredMessage]) -> None:
    numbered = messages.rows if isinstance(messages, NewMessages) else messages
    if any(message.seq != seq for seq, message in enumerate(numbered, seen.next_seq)):
        raise out_of_order()


def out_of_order() -> StoreError:
    return StoreError("messages of a batch must be numbered without a gap")


def _swap(seen: Head, batch: Batch) -> Transaction[Head]:
    if batch.revises or _steps(batch):
        moved = yield "swap_branch", swapping(seen, batch)
        return rows.to_head(moved[0]) if moved else (yield from refuse(seen))
    to_seq = seen.next_seq + len(batch.messages)
    if not (yield "advance_branch", {**_seen_place(seen), "to_seq": to_seq, "at": batch.at}):
        yield from refuse(seen)
    return structs.replace(seen, next_seq=to_seq)


def is_one_message(seen: Head, batch: Batch) -> bool:
    """True if a batch is one message, with or without notes, that needs no lookup in other tables."""
    more = (
        batch.changes or batch.undoes or batch.calls or batch.embeddings or batch.chains or batch.claims or batch.blobs or batch.title
        or batch.takes or batch.pins or batch.unpins or batch.learnt
    )  # fmt: skip
    if more or batch.opens is not None or len(batch.messages) != 1:
        return False
    return not (seen.base and batch.messages[0].key)


def swapping(seen: Head, batch: Batch) -> QueryParameters:
    """The parameters of the compare-and-swap from the head that the writer read to the next one."""
    revision, notes = seen.revision + batch.revises, seen.notes if batch.notes is None else batch.notes
    return {
        **_seen_place(seen),
        "to_seq": seen.next_seq + len(batch.messages),
        "to_epoch": seen.epoch + _steps(batch),
        "to_revision": revision,
        "notes": batch.notes,
        "notes_digest": rows.numbered_digest(revision, notes) if batch.revises else None,
        "model": batch.model,
        "at": batch.at,
    }


def _seen_place(seen: Head) -> QueryParameters:
    return {
        "owner": seen.owner,
        "conversation": seen.conversation,
        "branch": seen.branch,
        "seen_seq": seen.next_seq,
        "seen_epoch": seen.epoch,
        "seen_revision": seen.revision,
        "seen_session": seen.session,
    }


def refuse(seen: Head) -> Transaction[NoReturn]:
    """Raise the error for a failed compare-and-swap: the branch has changed, or does not exist."""
    there = yield "get_head", {"owner": seen.owner, "branch": seen.branch}
    if not there or rows.to_head(there[0]).conversation != seen.conversation:
        raise NotFound("there is no such branch")
    # Sessions are deleted only with their conversation: if the open one is missing, this is a new one of the same name.
    if not (yield "get_session", {"owner": seen.owner, "id": seen.session}):
        raise NotFound("the conversation was deleted, and begun anew")
    raise Conflict


def _steps(batch: Batch) -> int:
    """The increments of the epoch: sessions that begin and changes to the shown messages. A message that was shortened on
    arrival was never shown in full, so it does not count.
    """
    changes = [change for change in batch.changes if change.opens or change.compaction.kind != "arrival"]
    return len(changes) + (batch.opens is not None) + bool(batch.undoes)


def _naming(head: Head, title: str) -> QueryParameters:
    name = {"owner": head.owner, "id": head.conversation, "title": title}
    return {**name, "folded": rows.folded(head.conversation, title)}


def _append(
    head: Head, messages: Sequence[StoredMessage], spell: Spell, add_long: AddLong | None
) -> Transaction[None]:
    # An index keeps keys unique within a branch; the keys of messages that a fork shares are looked up.
    for message in messages if head.base else ():
        if message.key and (yield from find_key(head, message.key)) is not None:
            raise Conflict("a message with this key is there already")
    for few in _portions(messages):
        long = few.pop() if add_long is not None and len(few[-1].body) >= PORTION_BYTES else None
        if few:
            yield "add_message", [spell(head, message) for message in few]
        if add_long is not None and long is not None:
            yield from add_long(head, long)


def _portions(messages: Sequence[StoredMessage]) -> Iterator[list[StoredMessage]]:
    """Yield messages in lists of a limited size, in their order."""
    held, size = list[StoredMessage](), 0
    for message in messages:
        held.append(message)
        size += len(message.body)
        if size >= PORTION_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _install(head: Head, change: InstalledCompaction, at: float) -> Transaction[Head]:
    compaction, written, opens = change.compaction, change.written, change.opens
    if written is not None:
        yield "put_summary", rows.of_summary(head.owner, head.branch, written)
    row = structs.replace(compaction, branch=head.branch, session=opens.id if opens else "")
    if not (yield "install_compaction", rows.of_compaction(head.owner, row)):
        raise Conflict("this compaction was installed already")
    yield from count_compaction(head.owner, row, "installed", written.summary.author if written else "")
    if change.summarises and written is not None:
        yield "point_summary", {"owner": head.owner, "id": change.summarises, "summary": written.id}
    if opens is None:
        return head
    closing = written.id if written and compaction.kind == "summarise" else ""
    return (yield from _open(head, opens, compaction.cut, at, closing))


def _open(head: Head, session: Session, first: int, at: float, summary: str = "") -> Transaction[Head]:
    """Close the open session before a message, and open the next one there."""
    closing = {"owner": head.owner, "id": head.session, "last": first, "at": at, "summary": summary}
    is_place = session.first == first <= head.next_seq
    if not is_place or not (yield "close_session", closing):
        raise StoreError("a session must begin where the one before it is closed")
    reach("commit.after_closing")
    yield "add_session", rows.of_session(head, session)
    return (yield from _point(head, session.id))


def _undo(head: Head, which: str) -> Transaction[Head]:
    found = yield "undo_compaction", {"owner": head.owner, "id": which, "branch": head.branch}
    if not found:
        raise NotFound("there is no such compaction to take back")
    yield from count_ended(head.owner, found)
    child = rows.to_compaction(found[0][1:]).session
    if not child:
        return head
    if child != head.session:
        raise Conflict("a later session has begun since")
    others = yield "undo_changes", {"owner": head.owner, "branch": head.branch, "session": child}
    yield from count_ended(head.owner, others)
    parents = yield "undo_session", {"owner": head.owner, "id": child, "last": head.next_seq}
    parent = parents[0][0]
    if not (yield "reopen_session", {"owner": head.owner, "id": parent, "branch": head.branch}):
        raise StoreError("the session before this one is not on the branch")
    yield from forget(head.owner, parent)
    return (yield from _point(head, parent))


def _point(head: Head, session: str) -> Transaction[Head]:
    yield "move_branch", {"owner": head.owner, "branch": head.branch, "session": session}
    return structs.replace(head, session=session)


def keep_chains(head: Head, batch: Batch) -> Transaction[None]:
    """Store the hashes of a batch's messages, and the replies to its calls.

    Raises:
        HeldElsewhere: another branch has the history that the batch claims.
    """
    scope, first = {"owner": head.owner, "branch": head.branch}, head.next_seq - len(batch.chains)
    if batch.claims:
        size = first + batch.chains.index(batch.claims) + 1
        if (yield "find_other_holder", {**scope, "format": head.format, "size": size, "hash": batch.claims}):
            raise HeldElsewhere
    if batch.chains:
        # In the order of the index by hash, whose pages are then each written to once.
        sizes = sorted(enumerate(batch.chains, first + 1), key=itemgetter(1))
        yield "add_chain", [{**scope, "size": size, "hash": one} for size, one in sizes]
    answered = [call for call in batch.calls if call.reply]
    if answered:
        yield "add_reply", [rows.of_reply(head.owner, call) for call in answered]


def committed(head: Head) -> Head:
    """The head of a branch after the commit; a failpoint of the durability tests."""
    reach("commit.after_commit")
    return head


# Failpoints: places in a transaction where a test can make the program fail. A crash that matters
# falls between two steps, and chance rarely finds that place. `REFOLD_FAILPOINT=name:kill` ends the
# process there as a power failure would, `name:raise` raises; `name:kill:7` waits for the seventh
# time. Without the variable, which is read once, `reach` does nothing.

FAILPOINTS = (
    *("commit.after_lock", "commit.after_messages", "commit.after_closing", "commit.before_commit"),
    *(
        "commit.after_embeddings",
        "commit.after_commit",
        "append.before_commit",
        "here.before_commit",
        "claim.before_commit",
        "claim.after_commit",
        "reply.before_commit",
        "reply.after_commit",
    ),
)
"""Every place, for tests that go through all of them."""

_name, _, _rest = os.environ.get("REFOLD_FAILPOINT", "").partition(":")
_action, _, _times = _rest.partition(":")
_left = int(_times or 1)


class Reached(RuntimeError):
    """A failpoint was reached."""


def reach(name: str) -> None:
    """Fail, if a test asked for it here."""
    global _left  # noqa: PLW0603 - one count per process is the point
    if name != _name:
        return
    _left -= 1
    if _left == 0:
        _fail()


def _fail() -> None:
    if _action == "raise":
        raise Reached(_name)
    os.kill(os.getpid(), signal.SIGKILL)
