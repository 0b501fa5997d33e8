"""Archives: all conversations of a store as lines of JSON, and back into a store of any kind.

Stored data enters a store by a few kinds of steps, and the same steps bring it into another store. So an
archive does not depend on a database: a conversation is a line, each of its branches one more line with its
sessions and changes, followed by its messages, one to a line.

Data that can be made again is left out: the cache of paid summaries, facts learnt about models, and failed
jobs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct, structs

from refold.engine.journal import read_notes, with_inlined_instructions
from refold.model.errors import Conflict, Damaged, NotFound, StoreError
from refold.ports.records import (
    Batch,
    Call,
    Compaction,
    Embedding,
    Head,
    InheritedState,
    InstalledCompaction,
    Listed,
    Outline,
    Session,
    StoredMessage,
    StoredSummary,
    read_stored,
)
from refold.ports.store import Store

# Rebuild: repeat the steps of a branch in another store

PAGE = 500
"""Messages that are held in memory at once, and put into one transaction."""


class Branch(Struct, frozen=True, tag="branch"):
    """A branch with everything but its messages; its own messages follow."""

    head: Head
    sessions: tuple[Session, ...]
    """Its own, oldest first."""
    changes: tuple[Compaction, ...]
    """Those that took effect, undone ones included, in their order."""
    written: tuple[StoredSummary, ...]
    calls: tuple[Call, ...]
    pins: tuple[int, ...]
    embeddings: tuple[Embedding, ...] = ()
    inherited: InheritedState = InheritedState()
    """The state that it took over from its base branch, if it has one."""


class Rebuild:
    """Repeats the steps of an archived branch in a store: messages and changes in their order."""

    def __init__(
        self, store: Store, branch: Branch, listed: Listed, messages: Iterator[StoredMessage]
    ) -> None:
        if not branch.sessions:
            raise broken_archive()
        self._store, self._branch, self._listed, self._messages = store, branch, listed, messages
        self._sessions = {one.id: one for one in branch.sessions}
        self._written = {one.id: one for one in branch.written}
        self._opened = {branch.sessions[0].id, *(one.session for one in branch.changes)}
        self._undoing: list[Compaction] = []
        self._head = branch.head

    async def run(self) -> None:
        await self._begin()
        for one in self._branch.changes:
            await self._append(one.size)
            # In earlier versions a repeated change took the row of the first one: changes that followed the
            # first cannot be reached any more.
            if await self._reach(one.base):
                await self._install(one)
            elif one.base not in self._sessions or self._sessions[one.base].state == "live":
                raise broken_archive()
        await self._append(self._branch.head.next_seq)
        await self._end()

    async def _begin(self) -> None:
        wanted, opened = self._branch.head, _fresh(self._branch.sessions[0])
        begun = structs.replace(wanted, session=opened.id, notes=b"", next_seq=wanted.base_seq, epoch=0)
        if wanted.base:
            base = structs.replace(wanted, branch=wanted.base)
            inherited = self._branch.inherited
            self._head = await self._store.fork(base, wanted.base_seq, begun, opened, inherited)
        else:
            listed = self._listed
            self._head = await self._store.create(begun, opened, title=listed.title, at=listed.at)
        if self._head.session != opened.id:
            raise Conflict(
                "another program has begun a conversation of this name", hint="import the archive again"
            )

    async def _append(self, size: int) -> None:
        """Add messages up to a size. A change that was undone before that size is undone at its own time."""
        while self._undoing and self._ends < size:
            await self._undo()
        await self._add_messages(size)

    async def _add_messages(self, size: int) -> None:
        while batch := tuple(islice(self._messages, min(PAGE, max(0, size - self._head.next_seq)))):
            await self._commit(messages=batch)

    async def _reach(self, session: str) -> bool:
        """Undo changes, or open sessions that the user opened then, until a session is the open one; False if
        that is not possible.
        """
        while self._head.session != session:
            wanted = self._sessions.get(session)
            if wanted is not None and wanted.kind != "compaction" and session not in self._opened:
                self._opened.add(session)
                await self._commit(opens=_fresh(wanted))
            elif self._undoing:
                await self._undo()
            else:
                return False
        return True

    @property
    def _ends(self) -> int:
        """The number of messages at which the open session was undone."""
        return self._sessions[self._head.session].last or 0

    async def _undo(self) -> None:
        await self._add_messages(self._ends)
        await self._commit(undoes=self._undoing.pop().id)

    async def _install(self, one: Compaction) -> None:
        opens = _fresh(self._sessions[one.session]) if one.session in self._sessions else None
        change = InstalledCompaction(
            structs.replace(one, state="installed"), self._written.get(one.id), opens
        )
        await self._commit(changes=(change,))
        if one.state == "undone" and opens is None:
            await self._commit(undoes=one.id)
        elif one.state == "undone":
            self._undoing.append(one)

    async def _end(self) -> None:
        """Restore the data beside messages and changes."""
        if not await self._reach(self._branch.head.session):
            raise broken_archive()
        branch, owner = self._branch, self._head.owner
        for one in branch.sessions:
            written = self._written.get(one.summary)
            if written is not None and one.state == "live":
                await self._store.attach_summary(owner, one.id, written)
        await self._store.embed(owner, branch.embeddings)
        there = {*await self._store.pins(self._head)}  # a fork has its base's pins of now
        await self._commit(
            calls=branch.calls,
            notes=branch.head.notes,
            model=branch.head.model,
            pins=tuple(seq for seq in branch.pins if seq not in there),
            unpins=tuple(there.difference(branch.pins)),
        )

    async def _commit(self, **batch: object) -> None:
        # A batch that closes a session has the time of that. All other batches have the time of the last
        # act: batches within a second of one another would not be recorded as later.
        closed_at = self._sessions[self._head.session].closed_at
        closes = closed_at is not None and batch.keys() & {"changes", "opens"}
        at = closed_at if closes else self._listed.updated_at
        self._head = await self._store.commit(self._head, Batch(at=at, **batch))  # type: ignore[arg-type]


def _fresh(session: Session) -> Session:
    return structs.replace(session, last=None, state="live", summary="", tokens=0, closed_at=None)


def broken_archive() -> StoreError:
    return StoreError(
        "the archive does not fit together", hint="export it again; nothing of this conversation was stored"
    )


# Lines of an archive

VERSION = 2
EVERYTHING = 10**9
LARGEST = 2**53
"""The largest number in an archive: databases hold more, so that they can add up a thousand of these."""

T = TypeVar("T")
Skip: TypeAlias = Callable[[str, str, StoreError], None]
"""Is called with the owner and the name of a conversation that is not in the archive, and the reason."""


class Begin(Struct, frozen=True, tag="refold"):
    """The first line: format and version."""

    version: int = VERSION


class ArchivedConversation(Struct, frozen=True, tag="conversation"):
    owner: str
    listed: Listed
    branches: int


class ArchivedMessage(Struct, frozen=True, tag="message"):
    """A message. Its body is plain text, not encoded once more, so that people can read it."""

    stored: StoredMessage
    body: str | None = None


class End(Struct, frozen=True, tag="end"):
    """The last line: without it the archive is cut short."""

    conversations: int


Line = Begin | ArchivedConversation | Branch | ArchivedMessage | End
_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Line).decode


async def pack(store: Store, owners: Iterable[str], skip: Skip | None = None) -> AsyncIterator[bytes]:
    """Yield a store line by line, each conversation as it is at its turn.

    `skip` is called for a conversation that cannot be read, or that was deleted meanwhile. The lines of it
    that were already written are incomplete, and `unpack` ignores them. Without `skip`, the error is raised.

    Raises:
        StoreError: the store cannot be read.
    """
    count = 0
    yield _line(Begin())
    for owner in owners:
        for listed in await store.conversations(owner, limit=EVERYTHING):
            try:
                async for line in _conversation(store, owner, listed):
                    count += isinstance(line, ArchivedConversation)
                    yield _line(line)
            except (Damaged, NotFound) as fault:
                if skip is None:
                    raise
                skip(owner, listed.id, fault)
    yield _line(End(count))


async def _conversation(store: Store, owner: str, listed: Listed) -> AsyncIterator[Line]:
    # Calls are read first, so that every row that they refer to is there afterwards.
    calls = await store.calls(owner, listed.id, EVERYTHING)
    outline = await store.outline(owner, listed.id)
    if not outline.heads:
        return  # it was deleted before it was its turn
    yield ArchivedConversation(owner, listed, len(outline.heads))
    for head in outline.heads:
        yield await _branch(store, head, outline, calls)
        async for one in _own_messages(store, head):
            yield _line_of(one)


async def _branch(store: Store, head: Head, outline: Outline, calls: Iterable[Call]) -> Branch:
    own = tuple(one for one in outline.sessions if one.branch == head.branch)
    rows = [one for one in outline.changes if one.branch == head.branch]
    if not own:
        raise Damaged("a branch has no session", conversation=head.conversation)
    begun = [one for one in rows if not one.number or one.session == own[0].id]
    made = [one for one in rows if one.number and one.session != own[0].id]
    changes = [await _with_snapshot(store, head, one) for one in sorted(made, key=lambda one: one.number)]
    ids = [one.id for one in changes] + [one.summary for one in own if one.summary]
    return Branch(
        structs.replace(await with_inlined_instructions(store, head), revision=0),
        own,
        tuple(changes),
        tuple(await store.written(head.owner, [*dict.fromkeys(ids)])),
        tuple(call for call in calls if call.branch == head.branch),
        tuple(seq for seq in await store.pins(head) if seq < head.next_seq),
        tuple(await store.embeddings(head.owner, [one.id for one in own])),
        await _inherited(store, head, begun),
    )


async def _inherited(store: Store, head: Head, rows: Sequence[Compaction]) -> InheritedState:
    """Return the state that a fork took over from its base, from the rows that are not its own changes."""
    raw = [one.cut for one in rows if one.kind == "arrival" and one.state == "undone" and not one.number]
    shown = [await _with_snapshot(store, head, one) for one in rows if one.number]
    written = await store.written(head.owner, [one.id for one in shown])
    change = InstalledCompaction(shown[0], written[0] if written else None) if shown else None
    return InheritedState(change, tuple(sorted(raw)))


async def _with_snapshot(store: Store, head: Head, change: Compaction) -> Compaction:
    """Return a change with its snapshot."""
    found = await store.compaction(head.owner, change.id)
    if found is None:
        raise _gone()
    return structs.replace(change, shown=found.shown)


async def _own_messages(store: Store, head: Head) -> AsyncIterator[StoredMessage]:
    """Yield the messages of a branch, and refuse those that another store could not read."""
    for seq in await store.damaged(head):
        # Another store would compute a new checksum, and take the damaged bytes for the original.
        raise Damaged(f"the bytes of message {seq} have changed", conversation=head.conversation, seq=seq)
    for what in await store.damaged_values(head):
        raise Damaged(f"the bytes of {what} have changed", conversation=head.conversation)
    expected = head.base_seq
    while page := await store.messages(head, expected, head.next_seq, PAGE):
        for one in page:
            if one.seq != expected:
                raise await _missing(store, head, expected)
            read_stored(one, head)
            yield one
            expected += 1
    if expected < head.next_seq:
        raise await _missing(store, head, expected)


async def _missing(store: Store, head: Head, seq: int) -> StoreError:
    is_there = await store.head(head.owner, head.conversation, head.branch) is not None
    if not is_there:
        return _gone()
    return Damaged(f"message {seq} is missing", conversation=head.conversation, seq=seq)


def _gone() -> NotFound:
    return NotFound("it was deleted while it was read")


def _line_of(one: StoredMessage) -> ArchivedMessage:
    try:
        body = one.body.decode()
    except UnicodeDecodeError:
        return ArchivedMessage(one)
    return ArchivedMessage(structs.replace(one, body=b""), body)


def _line(line: Line) -> bytes:
    return _ENCODE(line) + b"\n"


class UnpackResult(Struct, frozen=True):
    """The result for one conversation of an archive."""

    owner: str
    name: str
    is_new: bool
    """False if there was one of this name: that stays as it is."""
    fault: str = ""
    """Why nothing of it was stored, if it could not be."""


async def unpack(store: Store, lines: Iterable[bytes]) -> AsyncIterator[UnpackResult]:
    """Put an archive into a store, a conversation at a time. One that is not complete is left out.

    Raises:
        StoreError: this is not an archive, or it is cut short.
    """
    reading, count = _LineReader(lines), 0
    _check_begin(reading)
    while isinstance(reading.line, ArchivedConversation):
        line, count = reading.take(ArchivedConversation), count + 1
        is_new, fault = await store.head(line.owner, line.listed.id) is None, ""
        if is_new:
            try:
                await _put_in(store, line, reading)
            except StoreError as error:
                fault = error.what if isinstance(error, Damaged) else error.message
        reading.skip()
        yield UnpackResult(line.owner, line.listed.id, is_new and not fault, fault)
    if not isinstance(reading.line, End):
        raise StoreError(
            "the archive is cut short", hint="export it again; complete conversations were imported"
        )
    if count < reading.line.conversations:
        raise StoreError(
            "there are lines in the archive that cannot be read",
            hint="export it again; complete conversations were imported",
        )


def _check_begin(reading: _LineReader) -> None:
    if isinstance(reading.line, StoreError):
        raise reading.line
    if not isinstance(reading.line, Begin):
        raise StoreError("this is no archive of conversations", hint="`refold db export` makes one")
    if reading.line.version != VERSION:
        raise StoreError("this archive was made by another version of Refold", hint="export it again")
    reading.skip()


async def _put_in(store: Store, line: ArchivedConversation, reading: _LineReader) -> None:
    begun = ""
    try:
        for _ in range(line.branches):
            branch = reading.take(Branch)
            begun = begun or (branch.sessions[0].id if branch.sessions else "")
            await Rebuild(store, branch, line.listed, _messages(branch, reading)).run()
    except BaseException:
        # Delete only our own: another program may have begun a conversation of this name.
        if begun and await store.session(line.owner, begun) is not None:
            await store.delete(line.owner, line.listed.id)
        raise


def _messages(branch: Branch, reading: _LineReader) -> Iterator[StoredMessage]:
    head = branch.head
    sensitive = frozenset(read_notes(head.notes).sensitive)
    for seq in range(head.base_seq, head.next_seq):
        line = reading.take(ArchivedMessage)
        if line.stored.seq != seq:
            raise broken_archive()
        one = line.stored if line.body is None else structs.replace(line.stored, body=line.body.encode())
        read_stored(one, head)
        yield structs.replace(one, is_findable=seq not in sensitive)


class _LineReader:
    """The lines of an archive, with a look-ahead of one line."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = enumerate(lines, 1)
        self.line: Line | StoreError | None = None
        """The next line: None at the end, an error if it cannot be read."""
        self._advance()

    def take(self, kind: type[T]) -> T:
        """Return the next line if it is of a kind, and advance."""
        if isinstance(self.line, StoreError):
            raise self.line
        if not isinstance(self.line, kind):
            raise broken_archive()
        line = self.line
        self._advance()
        return line

    def skip(self) -> None:
        """Skip the remaining lines of a conversation."""
        while not isinstance(self.line, ArchivedConversation | End | None):
            self._advance()

    def _advance(self) -> None:
        number, line = next(self._lines, (0, b""))
        self.line = _read(line, number) if number else None


def _read(line: bytes, number: int) -> Line | StoreError:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found: Line = _DECODE(line)
        if _fits(found):
            return found
    return StoreError(f"line {number} of the archive cannot be read", hint="export it again")


def _fits(value: object) -> bool:
    """Whether every database could hold the numbers in a value."""
    if isinstance(value, int):
        return abs(value) <= LARGEST
    parts = structs.astuple(value) if isinstance(value, Struct) else value
    return not isinstance(parts, tuple) or all(map(_fits, parts))
