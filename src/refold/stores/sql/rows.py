"""Rows of the databases as records, and records as the parameters of queries.

A row has its columns in the order in which its query names them, and only this module knows that order.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import structs

from refold.core.search.query import spaced
from refold.model.errors import Damaged
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.records import (
    Call,
    CallSum,
    ClientKey,
    CommandEntry,
    Compaction,
    CompactionSum,
    Embedding,
    Head,
    LatestHead,
    Listed,
    QueuedEntry,
    Session,
    StoredMessage,
    StoredSummary,
)
from refold.stores.search import said, scope
from refold.stores.sql.queries import QueryParameters, TableRow

_SUMMARY = msgspec.json.Decoder(Summary)
_HEAD = (
    *("owner", "conversation", "branch", "base", "base_seq", "base_number", "next_seq", "epoch", "revision"),
    *("session", "format", "model", "notes"),
)
_SESSION = (
    *("id", "branch", "first", "last", "kind", "parent", "carries", "state", "summary", "target", "tokens"),
    *("at", "closed_at"),
)
_COMPACTION = (
    *("id", "branch", "number", "kind", "state", "base", "session", "cut", "size", "reason", "moment"),
    *("recipe", "before", "after", "edits", "holder", "until", "attempts", "error", "at", "shown"),
)
"""If a query leaves out the last column, the field has its default."""

_LISTED = ("id", "branch", "title", "model", "format", "messages", "compactions", "sessions", "branches")


def digest_of(*parts: bytes) -> bytes:
    """The checksum that is stored beside a value, or beside several."""
    found = sha256()
    for part in parts:
        found.update(part)
    return found.digest()


def numbered_digest(number: int, *parts: bytes) -> bytes:
    """The checksum of a value that is written again with another number, after this number."""
    return number.to_bytes(8) + digest_of(*parts)


def is_damaged(digest: bytes | None, number: int | None, *parts: bytes | None) -> bool:
    """True if bytes are missing or do not match their stored checksum. The checksum of a value that is written again begins with
    a number, the same as in its row (`number`); one with another number is that of an earlier value, and is not compared. Without a
    checksum the answer is False: earlier versions stored none.
    """
    if digest is None:
        return False
    if number is not None and digest[:8] != number.to_bytes(8):
        return False
    known = [part for part in parts if part is not None]
    return len(known) < len(parts) or digest_of(*known) != (digest if number is None else digest[8:])


def folded(name: str, title: str) -> str:
    """The searchable form of a conversation's name and title."""
    return f"{name}\n{title}".casefold()


def to_head(row: TableRow) -> Head:
    return Head(**dict(zip(_HEAD, row, strict=True)))


def to_stored(row: TableRow) -> StoredMessage:
    seq, role, wire, body, digest, shown, tokens, key, at = row
    return StoredMessage(
        seq=seq,
        role=role,
        format=wire,
        body=body,
        damage=_damage(body, digest),
        shown=shown,
        tokens=tokens,
        key=key,
        at=at,
    )


def _damage(body: bytes, digest: bytes) -> str:
    """What has happened to a message since it was stored."""
    if digest_of(body) == digest:
        return ""
    return "has changed since it was stored" if body else "has lost its content"


def to_session(row: TableRow) -> Session:
    return Session(**dict(zip(_SESSION, row, strict=True)))


def to_compaction(row: TableRow) -> Compaction:
    return Compaction(**dict(zip(_COMPACTION, row, strict=False)))


def to_written(row: TableRow) -> StoredSummary:
    which, body, at, carry = row
    return StoredSummary(id=which, summary=to_summary(body), at=at, carry=carry)


def to_summary(body: bytes) -> Summary:
    """
    Raises:
        Damaged: the bytes are no valid summary.
    """
    try:
        return _SUMMARY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged("a stored summary cannot be read") from None


def to_embedding(row: TableRow) -> Embedding:
    session, summary, name, vector, at = row
    return Embedding(session=session, summary=summary, name=name, vector=vector, at=at)


def to_client_key(row: TableRow) -> ClientKey:
    owner, which, digest, name, at, revoked_at, admin = row
    return ClientKey(
        owner=owner, id=which, digest=digest, name=name, at=at, revoked_at=revoked_at, admin=bool(admin)
    )


def to_call(row: TableRow) -> Call:
    which, branch, session, kind, size, model, *numbers = row
    usage, (receipt, dollars, at, unsent, saved, is_estimated, upstream, recoveries, added_ms) = (
        numbers[:-9],
        numbers[-9:],
    )
    return Call(
        id=which,
        branch=branch,
        session=session,
        kind=kind,
        size=size,
        model=model,
        usage=Usage(*usage),
        receipt=receipt,
        dollars=dollars,
        at=at,
        unsent=unsent,
        saved=saved,
        is_estimated=bool(is_estimated),
        upstream=upstream,
        recoveries=recoveries,
        added_ms=added_ms,
    )


def to_queued(row: TableRow) -> QueuedEntry:
    which, branch, kind, body, is_begun, at = row
    return QueuedEntry(id=which, branch=branch, kind=kind, body=body, is_begun=bool(is_begun), at=at)


def to_command(row: TableRow) -> CommandEntry:
    which, branch, session, size, text, reply, at = row
    return CommandEntry(id=which, branch=branch, session=session, size=size, text=text, reply=reply, at=at)


def to_day(row: TableRow) -> CallSum:
    return structs.replace(_call_sum(row[1:]), day=row[0])


def to_conversation_calls(row: TableRow) -> CallSum:
    return structs.replace(_call_sum(row[1:]), conversation=row[0])


def _call_sum(row: TableRow) -> CallSum:
    (
        kind,
        model,
        upstream,
        is_estimated,
        calls,
        *usage,
        dollars,
        unsent,
        saved,
        recoveries,
        added_ms,
        timed,
    ) = row
    return CallSum(
        kind=kind,
        model=model,
        upstream=upstream,
        is_estimated=bool(is_estimated),
        calls=int(calls),
        usage=Usage(*map(int, usage)),
        dollars=float(dollars),
        unsent=int(unsent),
        saved=float(saved),
        recoveries=int(recoveries),
        added_ms=float(added_ms),
        timed=int(timed),
    )


def to_compaction_day(row: TableRow) -> CompactionSum:
    return CompactionSum(**dict(zip(CompactionSum.__struct_fields__, row, strict=True)))


def to_listed(row: TableRow) -> Listed:
    *first, input_, cache_read, cache_write, output, reasoning, dollars, estimated, at, updated_at = row
    usage = Usage(input_, cache_read, cache_write, output, reasoning)
    known = dict(zip(_LISTED, first, strict=True))
    return Listed(**known, usage=usage, dollars=dollars, estimated=estimated, at=at, updated_at=updated_at)


def to_latest_head(row: TableRow) -> LatestHead:
    ordinal, title, at, updated_at, branches, compactions, *head = row
    return LatestHead(
        ordinal=ordinal,
        title=title,
        at=at,
        updated_at=updated_at,
        branches=branches,
        compactions=compactions,
        head=to_head(tuple(head)),
    )


def of_branch(head: Head) -> QueryParameters:
    return {
        "owner": head.owner,
        "id": head.branch,
        "conversation": head.conversation,
        "base": head.base,
        "base_seq": head.base_seq,
        "session": head.session,
        "format": head.format,
        "model": head.model,
        "notes": head.notes,
        "notes_digest": numbered_digest(0, head.notes),
    }


def of_message(head: Head, message: StoredMessage) -> QueryParameters:
    return {
        "owner": head.owner,
        "branch": head.branch,
        "seq": message.seq,
        "role": message.role,
        "format": message.format,
        "body": message.body,
        "digest": digest_of(message.body),
        "shown": message.shown,
        "shown_digest": None if message.shown is None else digest_of(message.shown),
        "tokens": message.tokens,
        "key": message.key,
        "at": message.at,
        "is_findable": message.is_findable,
    }


def with_words(head: Head, message: StoredMessage) -> QueryParameters:
    """The parameters of a message, with its words for the index."""
    words = spaced(said(message.format, message.body)) if message.is_findable else ""
    return {**of_message(head, message), "scope": scope(head.owner, head.conversation), "words": words}


def of_blob(head: Head, body: bytes) -> QueryParameters:
    digest = digest_of(body)
    return {"owner": head.owner, "conversation": head.conversation, "digest": digest, "body": body}


def of_session(head: Head, session: Session) -> QueryParameters:
    return {
        "owner": head.owner,
        "id": session.id,
        "conversation": head.conversation,
        "branch": head.branch,
        "first": session.first,
        "kind": session.kind,
        "parent": session.parent,
        "carries": session.carries,
        "summary": session.summary,
        "target": session.target,
        "tokens": session.tokens,
        "at": session.at,
    }


def of_compaction(owner: str, compaction: Compaction) -> QueryParameters:
    digest = digest_of(compaction.edits, compaction.shown)
    return {"owner": owner, "is_counted": True, "digest": digest} | structs.asdict(compaction)


def of_compaction_sum(owner: str, added: CompactionSum) -> QueryParameters:
    return {"owner": owner} | structs.asdict(added)


def of_summary(owner: str, branch: str, written: StoredSummary) -> QueryParameters:
    body = msgspec.json.encode(written.summary)
    return {
        "owner": owner,
        "id": written.id,
        "branch": branch,
        "number": written.summary.number,
        "body": body,
        "carry": written.carry,
        "digest": numbered_digest(written.summary.number, body, written.carry),
        "at": written.at,
    }


def of_embedding(owner: str, embedding: Embedding) -> QueryParameters:
    return {"owner": owner} | structs.asdict(embedding)


def of_call(owner: str, call: Call) -> QueryParameters:
    fields = structs.asdict(call)
    return {"owner": owner, "is_counted": True} | structs.asdict(fields.pop("usage")) | fields


def of_reply(owner: str, call: Call) -> QueryParameters:
    return {"owner": owner, "call": call.id, "body": call.reply, "digest": digest_of(call.reply)}


def of_queued(head: Head, entry: QueuedEntry) -> QueryParameters:
    fields = structs.asdict(entry)
    return {**fields, "owner": head.owner, "branch": head.branch}


def of_command(owner: str, entry: CommandEntry) -> QueryParameters:
    return {"owner": owner} | structs.asdict(entry)
