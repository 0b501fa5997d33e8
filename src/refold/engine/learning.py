"""What one conversation learns about a model, and the next one begins with.

One idea: how a provider counts, and how much it takes, is true of the model and not of the conversation. It is kept by the
model's name, so that the first call of a new conversation is as well measured as the last of an old one. Where two programs go
on with one conversation by two models, each measures by its own.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from refold.core.calibrate import Calibration, forget_sums
from refold.engine.journal import Journal
from refold.engine.memory import Memory

CALIBRATION, LIMIT = "calibration", "limit"
WORTH_KEEPING = 0.01
"""By how much a ratio must have changed: a write with every call would cost more than it tells."""


async def load(journal: Journal, memory: Memory, *, is_first: bool = False) -> None:
    """Put memory where the store is. What was measured by another model says nothing here: what this program has measured
    itself stays or, where it begins, what is known about its model counts.

    That another model is used is written down with the next thing that is: whoever only reads must not make others read again.
    """
    own, known = (memory.calibration, memory.limits.stated), memory.meter
    await journal.load(memory)
    if journal.seen.notes and journal.seen.model == journal.model:
        return
    memory.calibration, memory.limits.stated = own
    memory.meter = structs.replace(memory.meter, anchor=known.anchor, ratio=known.ratio)
    if is_first:
        await begin_with(journal, memory)
    journal.accept(memory)


async def begin_with(journal: Journal, memory: Memory) -> None:
    """Begin a conversation with what others have learnt about its model."""
    owner, model, store = journal.seen.owner, journal.learns or journal.model, journal.store
    if not model:
        return
    if known := await store.learnt(owner, CALIBRATION, model):
        memory.calibration = forget_sums(msgspec.msgpack.decode(known, type=Calibration))
    if limit := await store.learnt(owner, LIMIT, model):
        memory.limits.stated = msgspec.msgpack.decode(limit, type=int)


async def keep_learnt(journal: Journal, memory: Memory, before: tuple[float, int | None]) -> None:
    """Keep what a call has taught, where it is news."""
    owner, model, store = journal.seen.owner, journal.learns or journal.model, journal.store
    ratio, limit = before
    if not model:
        return
    if abs(memory.calibration.ratio - ratio) > WORTH_KEEPING:
        await store.learn(
            owner, CALIBRATION, model, msgspec.msgpack.encode(memory.calibration), journal.clock()
        )
    limits = memory.limits
    if limits.is_of_model and limits.stated is not None and limits.stated != limit:
        await store.learn(owner, LIMIT, model, msgspec.msgpack.encode(limits.stated), journal.clock())
