"""Do to a store what was done to another, branch by branch.

One idea: messages, changes, forks and what was undone come in the order in which they happened, as far as a store tells it. Where
an earlier version did something again under the id of what was undone, there is one row for both, and the sessions of the first
times, which were undone, stay behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct, structs

from refold.model.errors import Conflict, StoreError
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
    embeddings: tuple[Embedding, ...] = ()
    inherited: Inherited = Inherited()
    """What it took over from its base, where it has one."""


class Rebuild:
    """Does to a store what was done to another: messages and changes in their order."""

    def __init__(self, store: Store, branch: Branch, listed: Listed, messages: Iterator[Stored]) -> None:
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
