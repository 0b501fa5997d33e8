"""What one conversation learns about a model, and the next one begins with.

One idea: how a provider counts, and how much it takes, is true of the model and not of the conversation. It is kept by the
model's name, so that the first call of a new conversation is as well measured as the last of an old one.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from refold.core.calibrate import Calibration, forget_sums
from refold.engine.journal import Journal, Notes
from refold.engine.limits import Limits
from refold.engine.memory import Memory
from refold.ports.store import Batch

CALIBRATION, LIMIT = "calibration", "limit"
WORTH_KEEPING = 0.01
"""By how much a ratio must have changed: a write with every call would cost more than it tells."""


async def begin_with(journal: Journal, memory: Memory) -> None:
    """Begin a conversation with what others have learnt about its model."""
    owner, model, store = journal.seen.owner, journal.seen.model, journal.store
    if not model:
        return
    if known := await store.learnt(owner, CALIBRATION, model):
        memory.calibration = forget_sums(msgspec.msgpack.decode(known, type=Calibration))
    if limit := await store.learnt(owner, LIMIT, model):
        memory.limits.stated = msgspec.msgpack.decode(limit, type=int)


async def go_on_with(journal: Journal, memory: Memory, model: str) -> None:
    """Go on with another model than before: what was measured by the old one is void.

    Raises:
        Conflict: somebody else has written meanwhile; load and try again.
    """
    if not model or journal.seen.model == model:
        return
    memory.meter = structs.replace(memory.meter, anchor=None)
    memory.calibration, memory.limits = Calibration(), Limits()
    journal.seen = structs.replace(journal.seen, model=model)
    await begin_with(journal, memory)
    known = msgspec.msgpack.decode(journal.seen.notes, type=Notes) if journal.seen.notes else Notes()
    notes = structs.replace(
        known, meter=memory.meter, calibration=memory.calibration, limit=memory.limits.stated
    )
    await journal.commit(Batch(at=journal.clock(), model=model, notes=msgspec.msgpack.encode(notes)))
    await journal.load(memory)


async def keep_learnt(journal: Journal, memory: Memory, before: tuple[float, int | None]) -> None:
    """Keep what a call has taught, where it is news."""
    owner, model, store = journal.seen.owner, journal.seen.model, journal.store
    ratio, limit = before
    if not model:
        return
    if abs(memory.calibration.ratio - ratio) > WORTH_KEEPING:
        await store.learn(
            owner, CALIBRATION, model, msgspec.msgpack.encode(memory.calibration), journal.clock()
        )
    if memory.limits.stated is not None and memory.limits.stated != limit:
        await store.learn(owner, LIMIT, model, msgspec.msgpack.encode(memory.limits.stated), journal.clock())
