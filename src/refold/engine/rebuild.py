"""Do to a store what was done to another, branch by branch.

One idea: messages, changes, forks and what was undone come in the order in which they happened, as far as a store tells it. What
was undone and done again under one id has one row; the sessions of the first times are left, and tell where they belong.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct, structs

from refold.model.errors import StoreError
from refold.ports.store import (
    Batch,
    Call,
    Change,
    Compaction,
    Embedding,
    Head,
    Inherited,
    Listed,
    Session,
    Store,
    Stored,
    Written,
)

PAGE = 500
"""Messages that are held at once, and put into one transaction."""
EVERYTHING = 10**9


class Fork(Struct, frozen=True):
    """A branch that begins with messages of another, and what it took over."""

    head: Head
    session: Session
    inherited: Inherited


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
    embeddings: tuple[Embedding, ...] = ()


class Rebuild:
    """Does to a store what was done to another: messages and changes in their order."""

    def __init__(self, store: Store, branch: Branch, listed: Listed, messages: Iterator[Stored]) -> None:
        self._store, self._branch, self._listed, self._messages = store, branch, listed, messages
        self._sessions = {one.id: one for one in branch.sessions}
        self._written = {one.id: one for one in branch.written}
        self._opened = {branch.sessions[0].id, *(one.session for one in branch.changes)}
        self._undoing: list[Compaction] = []
        self._forks, self._installed = list(branch.forks), 0
        self._head = branch.head

    async def run(self) -> None:
        await self._begin()
        for one in self._branch.changes:
            await self._repeat(one)
            await self._append(one.size)
            if not await self._reach(one.base):
                if one.state == "undone":
                    continue  # what it was done to was undone and done anew
                raise broken()
            await self._install(one)
        await self._part(EVERYTHING)
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
                raise broken()
            self._head = found
            self._installed = int(await self._store.last_change(found.owner, found.session) is not None)
        else:
            opened = _fresh(self._branch.sessions[0])
            self._head = await self._store.create(
                _empty(wanted, opened), opened, title=listed.title, at=listed.at
            )

    async def _part(self, number: int) -> None:
        """Fork what was forked when there were so many changes."""
        for fork in [one for one in self._forks if one.head.base_number <= number]:
            self._forks.remove(fork)
            await self._append(fork.head.base_seq)
            opened = _fresh(fork.session)
            await self._store.fork(
                self._head, fork.head.base_seq, _empty(fork.head, opened), opened, fork.inherited
            )

    async def _append(self, size: int) -> None:
        """Messages up to a size; what was undone before there were so many is undone in its time."""
        while self._undoing and self._ends < size:
            await self._undo()
        await self._say(size)

    async def _say(self, size: int) -> None:
        while batch := tuple(islice(self._messages, min(PAGE, max(0, size - self._head.next_seq)))):
            await self._commit(messages=batch)

    async def _reach(self, session: str) -> bool:
        """Undo, or open what was opened then, until a session is the open one."""
        while self._head.session != session:
            wanted = self._sessions.get(session)
            if wanted is not None and session not in self._opened:
                self._opened.add(session)
                if not await self._open(wanted):
                    return False
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

    async def _open(self, wanted: Session) -> bool:
        """A session that no change opened: the user asked for it, or what opened it was undone and done again, under one id."""
        if wanted.kind != "compaction":
            await self._commit(opens=_fresh(wanted))
            return True
        made = (one for one in self._branch.changes if (one.base, one.cut) == (wanted.parent, wanted.first))
        change = next(made, None)
        await self._append(wanted.first)
        if change is None or not await self._reach(wanted.parent):
            return False
        await self._install(structs.replace(change, session=wanted.id, state="undone"))
        return True

    async def _install(self, one: Compaction) -> None:
        await self._part(self._installed)
        self._installed += 1
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
            raise broken()
        branch, owner = self._branch, self._head.owner
        for one in branch.sessions:
            written = self._written.get(one.summary)
            if written is not None and one.state == "live":
                await self._store.attach_summary(owner, one.id, written)
        await self._store.embed(owner, branch.embeddings)
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
    return structs.replace(session, last=None, state="live", summary="", tokens=0, closed_at=None)


def broken() -> StoreError:
    return StoreError(
        "the archive does not fit together", hint="export it again; nothing of this conversation was kept"
    )
