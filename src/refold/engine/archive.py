"""A whole store as lines, and lines as a store: from any kind to any other.

One idea: whatever a store keeps came into it by a few kinds of steps, and the same steps bring it into another one. So an archive
needs no knowledge of any database: a conversation is a line, each of its branches one more with everything that was done, and then
its messages, one to a line.

What stays behind can be made again: the cache of paid summaries, what was learnt about models, and work that came to nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct, structs

from refold.engine.journal import inlined, read_notes
from refold.model.errors import Conflict, Damaged, NotFound, StoreError
from refold.ports.records import (
    Batch,
    Call,
    Compaction,
    Embedding,
    Head,
    Inherited,
    InstalledCompaction,
    Listed,
    Outline,
    Session,
    StoredMessage,
    StoredSummary,
)
from refold.ports.store import Store
from refold.ports.stored_messages import read_stored

# Do to a store what was done to another, branch by branch.

PAGE = 500
"""Messages that are held at once, and put into one transaction."""


class Branch(Struct, frozen=True, tag="branch"):
    """A branch with everything but its messages; those that are its own follow."""

    head: Head
    sessions: tuple[Session, ...]
    """Its own, oldest first."""
    changes: tuple[Compaction, ...]
    """Those that took effect, undone ones too, in their order."""
    written: tuple[StoredSummary, ...]
    calls: tuple[Call, ...]
    pins: tuple[int, ...]
    embeddings: tuple[Embedding, ...] = ()
    inherited: Inherited = Inherited()
    """What it took over from its base, where it has one."""


class Rebuild:
    """Does to a store what was done to another: messages and changes in their order."""

    def __init__(
        self, store: Store, branch: Branch, listed: Listed, messages: Iterator[StoredMessage]
    ) -> None:
        if not branch.sessions:
            raise broken()
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
            # What earlier versions did anew took the row of the first time: what was done after that cannot be reached any more.
            if await self._reach(one.base):
                await self._install(one)
            elif one.base not in self._sessions or self._sessions[one.base].state == "live":
                raise broken()
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
            raise Conflict("somebody has begun a conversation of this name meanwhile")

    async def _append(self, size: int) -> None:
        """Messages up to a size; what was undone before there were so many is undone in its time."""
        while self._undoing and self._ends < size:
            await self._undo()
        await self._say(size)

    async def _say(self, size: int) -> None:
        while batch := tuple(islice(self._messages, min(PAGE, max(0, size - self._head.next_seq)))):
            await self._commit(messages=batch)

    async def _reach(self, session: str) -> bool:
        """Undo, or open what the user opened then, until a session is the open one."""
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
        """How many messages there were when the open session was undone."""
        return self._sessions[self._head.session].last or 0

    async def _undo(self) -> None:
        await self._say(self._ends)
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
        """What is not said by messages and changes."""
        if not await self._reach(self._branch.head.session):
            raise broken()
        branch, owner = self._branch, self._head.owner
        for one in branch.sessions:
            written = self._written.get(one.summary)
            if written is not None and one.state == "live":
                await self._store.attach_summary(owner, one.id, written)
        await self._store.embed(owner, branch.embeddings)
        for seq in {*await self._store.pins(self._head)} ^ {
            *branch.pins
        }:  # a fork has its base's pins of now
            await self._store.pin(self._head, seq, on=seq in branch.pins)
        await self._commit(calls=branch.calls, notes=branch.head.notes, model=branch.head.model)

    async def _commit(self, **batch: object) -> None:
        # A session that is closed by this is closed at the time of its batch. All else happens at the time of the last act: what
        # comes within a second of another would not be noted as later.
        closed_at = self._sessions[self._head.session].closed_at
        closes = closed_at is not None and batch.keys() & {"changes", "opens"}
        at = closed_at if closes else self._listed.updated_at
        self._head = await self._store.commit(self._head, Batch(at=at, **batch))  # type: ignore[arg-type]


def _fresh(session: Session) -> Session:
    return structs.replace(session, last=None, state="live", summary="", tokens=0, closed_at=None)


def broken() -> StoreError:
    return StoreError(
        "the archive does not fit together", hint="export it again; nothing of this conversation was kept"
    )


VERSION = 2
EVERYTHING = 10**9
LARGEST = 2**53
"""No number in an archive is larger: databases hold more, so that they can add up a thousand of these."""

T = TypeVar("T")
Skip: TypeAlias = Callable[[str, str, StoreError], None]
"""Is told of an owner's conversation that is not in the archive, and why."""


class Begin(Struct, frozen=True, tag="refold"):
    """The first line: what this is."""

    version: int = VERSION


class ArchivedConversation(Struct, frozen=True, tag="conversation"):
    owner: str
    listed: Listed
    branches: int


class Said(Struct, frozen=True, tag="message"):
    """A message. Its body is text and not encoded once more, so that people can read it."""

    stored: StoredMessage
    body: str | None = None


class End(Struct, frozen=True, tag="end"):
    """The last line: without it the archive is cut short."""

    conversations: int


Line = Begin | ArchivedConversation | Branch | Said | End
_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Line).decode


async def pack(store: Store, owners: Iterable[str], skip: Skip | None = None) -> AsyncIterator[bytes]:
    """A store, line by line, each conversation as it was when it was its turn.

    Of one that cannot be read, or was deleted meanwhile, `skip` is told; what is in the archive of it is not whole, and nobody
    takes it in. Without `skip` it ends there.

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
    # Calls come before what they speak of is read, so that all of that is there.
    calls = await store.calls(owner, listed.id, EVERYTHING)
    outline = await store.outline(owner, listed.id)
    if not outline.heads:
        return  # it was deleted before it was its turn
    yield ArchivedConversation(owner, listed, len(outline.heads))
    for head in outline.heads:
        yield await _branch(store, head, outline, calls)
        async for one in _own_messages(store, head):
            yield _written_down(one)


async def _branch(store: Store, head: Head, outline: Outline, calls: Iterable[Call]) -> Branch:
    own = tuple(one for one in outline.sessions if one.branch == head.branch)
    rows = [one for one in outline.changes if one.branch == head.branch]
    if not own:
        raise Damaged("a branch has no session", conversation=head.conversation)
    begun = [one for one in rows if not one.number or one.session == own[0].id]
    made = [one for one in rows if one.number and one.session != own[0].id]
    changes = [await _whole(store, head, one) for one in sorted(made, key=lambda one: one.number)]
    ids = [one.id for one in changes] + [one.summary for one in own if one.summary]
    return Branch(
        structs.replace(await inlined(store, head), revision=0),
        own,
        tuple(changes),
        tuple(await store.written(head.owner, [*dict.fromkeys(ids)])),
        tuple(call for call in calls if call.branch == head.branch),
        tuple(seq for seq in await store.pins(head) if seq < head.next_seq),
        tuple(await store.embeddings(head.owner, [one.id for one in own])),
        await _inherited(store, head, begun),
    )


async def _inherited(store: Store, head: Head, rows: Sequence[Compaction]) -> Inherited:
    """What a fork took over from its base, given all but the changes that were made to it."""
    raw = [one.cut for one in rows if one.kind == "arrival" and one.state == "undone" and not one.number]
    shown = [await _whole(store, head, one) for one in rows if one.number]
    written = await store.written(head.owner, [one.id for one in shown])
    change = InstalledCompaction(shown[0], written[0] if written else None) if shown else None
    return Inherited(change, tuple(sorted(raw)))


async def _whole(store: Store, head: Head, change: Compaction) -> Compaction:
    """A change with what was shown after it."""
    found = await store.compaction(head.owner, change.id)
    if found is None:
        raise _gone()
    return structs.replace(change, shown=found.shown)


async def _own_messages(store: Store, head: Head) -> AsyncIterator[StoredMessage]:
    """The messages of a branch, each as it came and of a kind that can be read again elsewhere."""
    for seq in await store.damaged(head):
        # In another store they would be taken for what was said.
        raise Damaged(f"the bytes of message {seq} have changed", conversation=head.conversation, seq=seq)
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


def _written_down(one: StoredMessage) -> Said:
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
    fault: str = ""
    """Why nothing of it was put in, where it cannot be."""


async def unpack(store: Store, lines: Iterable[bytes]) -> AsyncIterator[Unpacked]:
    """Put an archive into a store, a conversation at a time; one that cannot be put in whole is left out.

    Raises:
        StoreError: this is no archive, or it is cut short.
    """
    reading, count = _Reading(lines), 0
    _check_begin(reading)
    while isinstance(reading.line, ArchivedConversation):
        line, count = reading.take(ArchivedConversation), count + 1
        is_new, fault = await store.head(line.owner, line.listed.id) is None, ""
        if is_new:
            try:
                await _take(store, line, reading)
            except StoreError as error:
                fault = error.what if isinstance(error, Damaged) else error.message
        reading.skip()
        yield Unpacked(line.owner, line.listed.id, is_new and not fault, fault)
    if not isinstance(reading.line, End):
        raise StoreError("the archive is cut short", hint="export it again; what is whole was put in")
    if count < reading.line.conversations:
        raise StoreError(
            "there are lines in the archive that cannot be read",
            hint="export it again; what is whole was put in",
        )


def _check_begin(reading: _Reading) -> None:
    if isinstance(reading.line, StoreError):
        raise reading.line
    if not isinstance(reading.line, Begin):
        raise StoreError("this is no archive of conversations", hint="`refold db export` makes one")
    if reading.line.version != VERSION:
        raise StoreError("this archive was made by another version of Refold", hint="export it again")
    reading.skip()


async def _take(store: Store, line: ArchivedConversation, reading: _Reading) -> None:
    begun = ""
    try:
        for _ in range(line.branches):
            branch = reading.take(Branch)
            begun = begun or (branch.sessions[0].id if branch.sessions else "")
            await Rebuild(store, branch, line.listed, _messages(branch, reading)).run()
    except BaseException:
        # Only what was begun here: somebody else may have begun a conversation of this name.
        if begun and await store.session(line.owner, begun) is not None:
            await store.delete(line.owner, line.listed.id)
        raise


def _messages(branch: Branch, reading: _Reading) -> Iterator[StoredMessage]:
    head = branch.head
    sensitive = frozenset(read_notes(head.notes).sensitive)
    for seq in range(head.base_seq, head.next_seq):
        line = reading.take(Said)
        if line.stored.seq != seq:
            raise broken()
        one = line.stored if line.body is None else structs.replace(line.stored, body=line.body.encode())
        read_stored(one, head)
        yield structs.replace(one, is_findable=seq not in sensitive)


class _Reading:
    """The lines of an archive, with the next one in sight."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = enumerate(lines, 1)
        self.line: Line | StoreError | None = None
        """None where there are no more, an error where it cannot be read."""
        self._advance()

    def take(self, kind: type[T]) -> T:
        """The next line, which has to be of a kind."""
        if isinstance(self.line, StoreError):
            raise self.line
        if not isinstance(self.line, kind):
            raise broken()
        line = self.line
        self._advance()
        return line

    def skip(self) -> None:
        """Leave what is left of a conversation."""
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
    """Could every database hold the numbers in it?"""
    if isinstance(value, int):
        return abs(value) <= LARGEST
    parts = structs.astuple(value) if isinstance(value, Struct) else value
    return not isinstance(parts, tuple) or all(map(_fits, parts))
