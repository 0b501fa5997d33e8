"""A whole store as lines, and lines as a store: from any kind to any other.

One idea: whatever a store keeps came into it by a few kinds of steps, and the same steps bring it into another one. So an archive
needs no knowledge of any database: a conversation is a line, each of its branches one more with everything that was done, and then
its messages, one to a line.

What stays behind can be made again: the cache of paid summaries, what was learnt about models, and work that came to nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec
from msgspec import Struct, structs

from refold.engine.instructions import inlined
from refold.engine.journal import said
from refold.engine.notes import Notes
from refold.engine.rebuild import PAGE, Branch, Fork, Rebuild, broken
from refold.model.dialect import DIALECTS
from refold.model.errors import StoreError, WireError
from refold.ports.store import (
    Change,
    Head,
    Inherited,
    Listed,
    Store,
    Stored,
)
from refold.wire.message import decode_message

VERSION = 1
EVERYTHING = 10**9


class Begin(Struct, frozen=True, tag="refold"):
    """The first line: what this is."""

    version: int = VERSION


class Conversation(Struct, frozen=True, tag="conversation"):
    owner: str
    listed: Listed
    branches: int


class Said(Struct, frozen=True, tag="message"):
    """A message. Its body is text and not encoded once more, so that people can read it."""

    stored: Stored
    body: str | None = None


class End(Struct, frozen=True, tag="end"):
    """The last line: without it the archive is cut short."""

    conversations: int


Line = Begin | Conversation | Branch | Said | End
_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Line).decode


async def pack(store: Store, owners: Iterable[str]) -> AsyncIterator[bytes]:
    """A store, line by line."""
    count = 0
    yield _line(Begin())
    for owner in owners:
        for listed in await store.conversations(owner, limit=EVERYTHING):
            heads = await _heads(store, owner, listed.id)
            yield _line(Conversation(owner, listed, len(heads)))
            for head in heads:
                forks = [await _fork(store, one) for one in heads if one.base == head.branch]
                whole = structs.replace(await inlined(store, head), revision=0)
                yield _line(await _branch(store, whole, tuple(forks)))
                async for one in _own_messages(store, head):
                    yield _line(_written_down(one))
            count += 1
    yield _line(End(count))


async def _heads(store: Store, owner: str, name: str) -> list[Head]:
    """The branches in the order in which they were begun: a base before what was forked from it."""
    known = dict.fromkeys(one.branch for one in await store.sessions(owner, name, EVERYTHING))
    found = [await store.head(owner, name, branch) for branch in known]
    return [head for head in found if head is not None]


async def _fork(store: Store, head: Head) -> Fork:
    sessions = await store.sessions(head.owner, head.conversation, EVERYTHING)
    first = next(one for one in sessions if one.branch == head.branch)
    rows = await store.compactions(head.owner, head.branch, EVERYTHING)
    begun = [row.id for row in rows if row.session == first.id]
    shown = await store.compaction(head.owner, begun[0]) if begun else None
    written = await store.written(head.owner, begun)
    raw = [seq for seq in await store.raw_arrivals(head, 0) if seq < head.base_seq]
    change = Change(shown, written[0] if written else None) if shown else None
    return Fork(structs.replace(head, revision=0), first, Inherited(change, tuple(raw)))


async def _branch(store: Store, head: Head, forks: tuple[Fork, ...]) -> Branch:
    sessions = await store.sessions(head.owner, head.conversation, EVERYTHING)
    own = tuple(one for one in sessions if one.branch == head.branch)
    rows = await store.compactions(head.owner, head.branch, EVERYTHING)
    took_effect = [one for one in rows if one.number and one.state in ("installed", "undone")]
    made = [
        one for one in took_effect if one.session != own[0].id
    ]  # what a fork began with comes with its base
    changes = [
        found
        for one in sorted(made, key=lambda one: one.number)
        if (found := await store.compaction(head.owner, one.id)) is not None
    ]
    ids = [one.id for one in changes] + [one.summary for one in own if one.summary]
    calls = await store.calls(head.owner, head.conversation, EVERYTHING)
    return Branch(
        head,
        own,
        tuple(changes),
        tuple(await store.written(head.owner, [*dict.fromkeys(ids)])),
        tuple(call for call in calls if call.branch == head.branch),
        tuple(await store.pins(head)),
        forks,
        tuple(await store.embeddings(head.owner, [one.id for one in own])),
    )


async def _own_messages(store: Store, head: Head) -> AsyncIterator[Stored]:
    first = head.base_seq
    while page := await store.messages(head, first, head.next_seq, PAGE):
        for one in page:
            yield one
        first = page[-1].seq + 1


def _written_down(one: Stored) -> Said:
    try:
        body = one.body.decode()
    except UnicodeDecodeError:
        return Said(one)
    return Said(structs.replace(one, body=b""), body)


def _line(line: Line) -> bytes:
    return _ENCODE(line) + b"\n"


class Unpacked(Struct, frozen=True):
    """What became of one conversation of an archive."""

    owner: str
    name: str
    is_new: bool
    """False where there was one of this name: it stays as it is."""


async def unpack(store: Store, lines: Iterable[bytes]) -> AsyncIterator[Unpacked]:
    """Put an archive into a store, a conversation at a time; one that cannot be put in whole is taken out again.

    Raises:
        StoreError: this is no archive, it is cut short, or it does not fit together.
    """
    reading = _read(lines)
    if not isinstance(begin := next(reading, None), Begin) or begin.version != VERSION:
        raise StoreError("this is no archive of conversations", hint="`refold db export` makes one")
    for line in reading:
        if isinstance(line, End):
            return
        if not isinstance(line, Conversation):
            raise broken()
        is_new = await store.head(line.owner, line.listed.id) is None
        await _take(store if is_new else None, line, reading)
        yield Unpacked(line.owner, line.listed.id, is_new)
    raise StoreError("the archive is cut short", hint="export it again; what is whole was put in")


async def _take(store: Store | None, line: Conversation, reading: Iterator[Line]) -> None:
    try:
        for _ in range(line.branches):
            branch = _next_branch(reading)
            messages = _messages(branch, reading)
            if store is None:
                for _skipped in messages:
                    pass
            else:
                await Rebuild(store, branch, line.listed, messages).run()
    except BaseException:
        if store is not None:
            await store.delete(line.owner, line.listed.id)
        raise


def _next_branch(reading: Iterator[Line]) -> Branch:
    branch = next(reading, None)
    if not isinstance(branch, Branch):
        raise broken()
    return branch


def _messages(branch: Branch, reading: Iterator[Line]) -> Iterator[Stored]:
    head = branch.head
    notes = msgspec.msgpack.decode(head.notes, type=Notes) if head.notes else Notes()
    for seq in range(head.base_seq, head.next_seq):
        line = next(reading, None)
        if not isinstance(line, Said) or line.stored.seq != seq:
            raise broken()
        one = line.stored if line.body is None else structs.replace(line.stored, body=line.body.encode())
        yield structs.replace(one, text="" if seq in notes.sensitive else _words(one))


def _words(one: Stored) -> str:
    try:
        return said(decode_message(one.body, DIALECTS[one.format])) if one.body else ""  # type: ignore[index]
    except WireError:
        return ""  # damaged before it was exported: the bytes are kept as they are


def _read(lines: Iterable[bytes]) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        try:
            yield _DECODE(line)
        except msgspec.MsgspecError:
            raise StoreError(f"line {number} of the archive cannot be read", hint="export it again") from None
