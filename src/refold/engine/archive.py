"""A whole store as lines, and lines as a store: from any kind to any other.

One idea: whatever a store keeps came into it by a few kinds of steps, and the same steps bring it into another one. So an archive
needs no knowledge of any database: a conversation is a line, each of its branches one more with everything that was done, and then
its messages, one to a line.

What stays behind can be made again: the cache of paid summaries, what was learnt about models, and work that came to nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

import msgspec
from msgspec import Struct, structs

from refold.engine.journal import Notes, said
from refold.model.dialect import DIALECTS
from refold.model.errors import StoreError, WireError
from refold.ports.store import (
    Batch,
    Call,
    Change,
    Compaction,
    Head,
    Listed,
    Session,
    Store,
    Stored,
    Written,
)
from refold.wire.message import decode_message

VERSION = 1
PAGE = 500
"""Messages that are held at once, and put into one transaction."""
EVERYTHING = 10**9


class Begin(Struct, frozen=True, tag="refold"):
    """The first line: what this is."""

    version: int = VERSION


class Conversation(Struct, frozen=True, tag="conversation"):
    owner: str
    listed: Listed
    branches: int


class Fork(Struct, frozen=True):
    """A branch that begins with messages of another, as they were shown after one of its changes."""

    head: Head
    session: Session
    after: str = ""
    """The id of the change that it shares; empty for none."""


class Branch(Struct, frozen=True, tag="branch"):
    """A branch with everything but its messages; those that are its own follow."""

    head: Head
    sessions: tuple[Session, ...]
    """Its own, oldest first."""
    changes: tuple[Compaction, ...]
    """Those that took effect, undone ones too, in their order."""
    written: tuple[Written, ...]
    calls: tuple[Call, ...]
    pins: tuple[int, ...]
    forks: tuple[Fork, ...] = ()


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
                yield _line(await _branch(store, head, tuple(forks)))
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
    latest = await store.latest(head, head.base_seq)
    return Fork(head, first, latest.id if latest else "")


async def _branch(store: Store, head: Head, forks: tuple[Fork, ...]) -> Branch:
    sessions = await store.sessions(head.owner, head.conversation, EVERYTHING)
    own = tuple(one for one in sessions if one.branch == head.branch)
    rows = await store.compactions(head.owner, head.branch, EVERYTHING)
    made = [one for one in rows if one.number and one.state in ("installed", "undone")]
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
            raise _broken()
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
                await _Rebuild(store, branch, line.listed, messages).run()
    except BaseException:
        if store is not None:
            await store.delete(line.owner, line.listed.id)
        raise


def _next_branch(reading: Iterator[Line]) -> Branch:
    branch = next(reading, None)
    if not isinstance(branch, Branch):
        raise _broken()
    return branch


def _messages(branch: Branch, reading: Iterator[Line]) -> Iterator[Stored]:
    head = branch.head
    notes = msgspec.msgpack.decode(head.notes, type=Notes) if head.notes else Notes()
    for seq in range(head.base_seq, head.next_seq):
        line = next(reading, None)
        if not isinstance(line, Said) or line.stored.seq != seq:
            raise _broken()
        one = line.stored if line.body is None else structs.replace(line.stored, body=line.body.encode())
        yield structs.replace(one, text="" if seq in notes.sensitive else _words(one))


def _words(one: Stored) -> str:
    try:
        return said(decode_message(one.body, DIALECTS[one.format])) if one.body else ""  # type: ignore[index]
    except WireError:
        return ""  # damaged before it was exported: the bytes are kept as they are


class _Rebuild:
    """Does to a store what was done to another: messages and changes in their order."""

    def __init__(self, store: Store, branch: Branch, listed: Listed, messages: Iterator[Stored]) -> None:
        self._store, self._branch, self._listed, self._messages = store, branch, listed, messages
        self._sessions = {one.id: one for one in branch.sessions}
        self._written = {one.id: one for one in branch.written}
        self._opened = {branch.sessions[0].id, *(one.session for one in branch.changes)}
        self._undoing: list[Compaction] = []
        self._head = branch.head

    async def run(self) -> None:
        await self._begin()
        await self._part("")
        for one in self._branch.changes:
            await self._repeat(one)
            await self._append(one.size)
            if not await self._reach(one.base):
                if one.state == "undone":
                    continue  # what it was done to was undone and done anew
                raise _broken()
            await self._install(one)
            await self._part(one.id)
        await self._append(self._branch.head.next_seq)
        await self._end()

    async def _repeat(self, one: Compaction) -> None:
        """What was undone and done again has one row: each time it was undone left a session."""
        for session in self._branch.sessions[1:]:
            is_lost = session.kind == "compaction" and session.id not in self._opened
            if is_lost and (session.parent, session.first) == (one.base, one.cut):
                self._opened.add(session.id)
                await self._append(session.last or one.size)
                if await self._reach(one.base):
                    await self._install(structs.replace(one, session=session.id, state="undone"))

    async def _begin(self) -> None:
        wanted, listed = self._branch.head, self._listed
        if wanted.base:  # its base has made it
            found = await self._store.head(wanted.owner, wanted.conversation, wanted.branch)
            if found is None:
                raise _broken()
            self._head = found
        else:
            opened = _fresh(self._branch.sessions[0])
            self._head = await self._store.create(
                _empty(wanted, opened), opened, title=listed.title, at=listed.at
            )

    async def _part(self, change: str) -> None:
        """Fork what shares this change: what is done to the base later is not the fork's."""
        known = {one.id for one in self._branch.changes}
        for fork in self._branch.forks:
            if (fork.after if fork.after in known else "") == change:
                await self._append(fork.head.base_seq)
                opened = _fresh(fork.session)
                await self._store.fork(self._head, fork.head.base_seq, _empty(fork.head, opened), opened)

    async def _append(self, size: int) -> None:
        while batch := tuple(islice(self._messages, min(PAGE, max(0, size - self._head.next_seq)))):
            await self._commit(messages=batch)

    async def _reach(self, session: str) -> bool:
        """Undo, or open what the user asked for, until a session is the open one."""
        while self._head.session != session:
            wanted = self._sessions.get(session)
            if wanted is not None and session not in self._opened:
                self._opened.add(session)
                await self._commit(opens=_fresh(wanted))
            elif self._undoing:
                await self._commit(undoes=self._undoing.pop().id)
            else:
                return False
        return True

    async def _install(self, one: Compaction) -> None:
        opens = _fresh(self._sessions[one.session]) if one.session in self._sessions else None
        change = Change(structs.replace(one, state="installed"), self._written.get(one.id), opens)
        await self._commit(changes=(change,))
        if one.state == "undone" and opens is None:
            await self._commit(undoes=one.id)
        elif one.state == "undone":
            self._undoing.append(one)

    async def _end(self) -> None:
        """What is not said by messages and changes."""
        if not await self._reach(self._branch.head.session):
            raise _broken()
        branch, owner = self._branch, self._head.owner
        for one in branch.sessions:
            written = self._written.get(one.summary)
            if written is not None and one.state == "live":
                await self._store.attach_summary(owner, one.id, written)
        for seq in branch.pins:
            await self._store.pin(self._head, seq, on=True)
        await self._commit(calls=branch.calls, notes=branch.head.notes, model=branch.head.model)

    async def _commit(self, **batch: object) -> None:
        # A session that is closed by this is closed at the time of its batch.
        closed_at = self._sessions[self._head.session].closed_at
        at = self._listed.updated_at if closed_at is None or batch.keys() & {"calls", "undoes"} else closed_at
        self._head = await self._store.commit(self._head, Batch(at=at, **batch))  # type: ignore[arg-type]


def _empty(head: Head, session: Session) -> Head:
    return structs.replace(head, session=session.id, notes=b"", next_seq=head.base_seq, epoch=0)


def _fresh(session: Session) -> Session:
    return structs.replace(session, last=None, state="live", summary="", closed_at=None)


def _read(lines: Iterable[bytes]) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        try:
            yield _DECODE(line)
        except msgspec.MsgspecError:
            raise StoreError(f"line {number} of the archive cannot be read", hint="export it again") from None


def _broken() -> StoreError:
    return StoreError(
        "the archive does not fit together", hint="export it again; nothing of this conversation was kept"
    )
