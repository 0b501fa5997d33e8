"""Take a batch in, whole.

One idea: the branch's row is swapped first, and only if it is still where the writer saw it. From then on nobody else can write
to the branch until the transaction ends, so messages, ranges and compactions follow without looking twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeAlias

from msgspec import structs

from refold.model.errors import Conflict, NotFound, StoreError
from refold.ports.store import Batch, Change, Head, Session, Stored
from refold.store import rows
from refold.store.chaining import keep_chains
from refold.store.embedding import embed, forget
from refold.store.failpoints import reach
from refold.store.reading import find_key
from refold.store.transactions import Parameters, Transaction

Spell: TypeAlias = Callable[[Head, Stored], Parameters]


def commit(seen: Head, batch: Batch, spell: Spell) -> Transaction[Head]:
    """Take a batch in; `spell` says what a database is given of a message."""
    check_numbers(seen, batch.messages)
    head = yield from _swap(seen, batch)
    reach("commit.after_lock")
    yield from _append(head, batch.messages, spell)
    reach("commit.after_messages")
    for change in batch.changes:
        head = yield from _install(head, change, batch.at)
    if batch.opens is not None:
        head = yield from _open(head, batch.opens, batch.opens.first, batch.at)
    if batch.undoes:
        head = yield from _undo(head, batch.undoes)
    if batch.title:
        yield "name_conversation", _naming(head, batch.title)
    if batch.embeddings:
        yield from embed(head.owner, batch.embeddings)
        reach("commit.after_embeddings")
    if batch.blobs:
        yield "add_blob", [rows.of_blob(head, body) for body in batch.blobs]
    if batch.calls:
        yield "add_call", [rows.of_call(head.owner, call) for call in batch.calls]
    yield from keep_chains(head, batch)
    reach("commit.before_commit")
    return head


def check_numbers(seen: Head, messages: tuple[Stored, ...]) -> None:
    if any(message.seq != seq for seq, message in enumerate(messages, seen.next_seq)):
        raise out_of_order()


def out_of_order() -> StoreError:
    return StoreError("Messages of a batch must be numbered without a gap.")


def _swap(seen: Head, batch: Batch) -> Transaction[Head]:
    moved = yield "swap_branch", swapping(seen, batch)
    return rows.to_head(moved[0]) if moved else (yield from refuse(seen))


def is_only_said(seen: Head, batch: Batch) -> bool:
    """Whether a batch is one message, perhaps with notes, that needs nothing looked up elsewhere."""
    more = (
        batch.changes or batch.undoes or batch.calls or batch.embeddings or batch.chains or batch.claims or batch.blobs or batch.title
    )  # fmt: skip
    if more or batch.opens is not None or len(batch.messages) != 1:
        return False
    return not (seen.base and batch.messages[0].key)


def swapping(seen: Head, batch: Batch) -> Parameters:
    """From where to where a branch is moved."""
    return {
        "owner": seen.owner,
        "conversation": seen.conversation,
        "branch": seen.branch,
        "seen_seq": seen.next_seq,
        "seen_epoch": seen.epoch,
        "seen_revision": seen.revision,
        "seen_session": seen.session,
        "to_seq": seen.next_seq + len(batch.messages),
        "to_epoch": seen.epoch + _steps(batch),
        "to_revision": seen.revision + batch.revises,
        "notes": batch.notes,
        "model": batch.model,
        "at": batch.at,
    }


def refuse(seen: Head) -> Transaction[NoReturn]:
    """Say why a branch is not where a writer saw it."""
    there = yield "get_head", {"owner": seen.owner, "branch": seen.branch}
    if not there or rows.to_head(there[0]).conversation != seen.conversation:
        raise NotFound("There is no such branch.")
    # Sessions go with their conversation only: without the one that was open, this is another one of the same name.
    if not (yield "get_session", {"owner": seen.owner, "id": seen.session}):
        raise NotFound("The conversation was deleted, and begun anew.")
    raise Conflict


def _steps(batch: Batch) -> int:
    """How often a session begins or what is shown changes; what is short since it arrived was never shown otherwise."""
    changes = [change for change in batch.changes if change.opens or change.compaction.kind != "arrival"]
    return len(changes) + (batch.opens is not None) + bool(batch.undoes)


def _naming(head: Head, title: str) -> Parameters:
    name = {"owner": head.owner, "id": head.conversation, "title": title}
    return {**name, "folded": rows.folded(head.conversation, title)}


def _append(head: Head, messages: tuple[Stored, ...], spell: Spell) -> Transaction[None]:
    # An index keeps keys apart within a branch; those of messages that a fork shares are looked up.
    for message in messages if head.base else ():
        if message.key and (yield from find_key(head, message.key)) is not None:
            raise Conflict("A message with this key is there already.")
    if messages:
        yield "add_message", [spell(head, message) for message in messages]


def _install(head: Head, change: Change, at: float) -> Transaction[Head]:
    compaction, written, opens = change.compaction, change.written, change.opens
    if written is not None:
        yield "put_summary", rows.of_summary(head.owner, head.branch, written)
    row = structs.replace(compaction, branch=head.branch, session=opens.id if opens else "")
    if not (yield "install_compaction", rows.of_compaction(head.owner, row)):
        raise Conflict("This compaction was installed already.")
    if opens is None:
        return head
    closing = written.id if written and compaction.kind == "summarise" else ""
    return (yield from _open(head, opens, compaction.cut, at, closing))


def _open(head: Head, session: Session, first: int, at: float, summary: str = "") -> Transaction[Head]:
    """Close the open session before a message, and open the next one there."""
    closing = {"owner": head.owner, "id": head.session, "last": first, "at": at, "summary": summary}
    is_place = session.first == first <= head.next_seq
    if not is_place or not (yield "close_session", closing):
        raise StoreError("A session must begin where the one before it is closed.")
    reach("commit.after_closing")
    yield "add_session", rows.of_session(head, session)
    return (yield from _point(head, session.id))


def _undo(head: Head, which: str) -> Transaction[Head]:
    found = yield "undo_compaction", {"owner": head.owner, "id": which, "branch": head.branch}
    if not found:
        raise NotFound("There is no such compaction to take back.")
    child = found[0][0]
    if not child:
        return head
    if child != head.session:
        raise Conflict("A later session has begun since.")
    parents = yield "undo_session", {"owner": head.owner, "id": child, "last": head.next_seq}
    parent = parents[0][0]
    if not (yield "reopen_session", {"owner": head.owner, "id": parent, "branch": head.branch}):
        raise StoreError("The session before this one is not on the branch.")
    yield from forget(head.owner, parent)
    return (yield from _point(head, parent))


def _point(head: Head, session: str) -> Transaction[Head]:
    yield "move_branch", {"owner": head.owner, "branch": head.branch, "session": session}
    return structs.replace(head, session=session)
