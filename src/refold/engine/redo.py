"""Take a compaction back and, where nothing better comes of it, put it back as it was.

One idea: what a change shows is stored whole, and so is its summary. To have it again takes no model and no plan: everything
that was taken back is done once more as it was, in its order, in one transaction. What was taken back stays what it was.
"""

from __future__ import annotations

from msgspec import structs

from refold.core.fold import Folded
from refold.engine.journal import Journal
from refold.engine.memory import Memory
from refold.engine.notes import write_notes
from refold.ports.store import Batch, Change, Compaction, CompactionKind


class Taken:
    """What was taken back, newest first, and until when memory had nothing to do before."""

    def __init__(self, folded: Folded) -> None:
        self.settled, self.declined = folded.settled, folded.declined
        self.changes: list[Compaction] = []

    @property
    def base(self) -> str:
        """The session that is open once it is taken back."""
        return self.changes[-1].base if self.changes else ""


async def last_change(journal: Journal, *kinds: CompactionKind) -> Compaction | None:
    """The newest change of the open session that can be taken back."""
    found = await journal.store.last_change(journal.seen.owner, journal.session.id, kinds)
    is_beginning = found is not None and found.kind == "reduce" and bool(found.session)
    return None if is_beginning else found


async def put_back(journal: Journal, memory: Memory, taken: Taken) -> None:
    """Install again what was taken back, unless somebody has gone another way since. Load afterwards.

    Raises:
        Conflict: somebody else has written meanwhile; load and try again.
    """
    if not taken.changes or journal.session.id != taken.base:
        return
    ids = [one.id for one in taken.changes]
    written = {one.id: one for one in await journal.store.written(journal.seen.owner, ids)}
    changes, base = list[Change](), journal.session.id
    for one in reversed(taken.changes):
        opens = journal.child(journal.session, one.cut, journal.clock()) if one.session else None
        again = Change(structs.replace(one, base=base), written.get(one.id), opens)
        changes.append(await journal.anew(again))
        base = opens.id if opens else base
    notes = structs.replace(journal.noted(memory), settled=taken.settled, declined=taken.declined)
    await journal.commit(Batch(at=journal.clock(), changes=tuple(changes), notes=write_notes(notes)))
