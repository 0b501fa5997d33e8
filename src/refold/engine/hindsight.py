"""What was shown at an earlier time, or would be: before and after a change, and with a call.

One idea: every change kept what is shown after it whole, and a message never changes, so any window of the past can be put
together again from the change that was in effect and the messages that were there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from refold.core.assemble import assemble
from refold.core.cost import call_cost
from refold.core.fold import Folded
from refold.core.frame import Frame
from refold.core.plan import Decision
from refold.core.stages.shown import Edit
from refold.engine import snapshot
from refold.engine.journal import Journal, encoder
from refold.engine.memory import Memory
from refold.engine.receipts import Receipt
from refold.model.errors import InvalidWindow, NotFound
from refold.model.tokens import Usage
from refold.model.window import Window
from refold.ports.store import Call, Compaction

EVERYTHING = 10**9
NOTHING_RAW: frozenset[int] = frozenset()


class Sent(Struct, frozen=True):
    """What is noted with a call, so that what left with it can be put together again."""

    size: int = 0
    """How many messages there were."""
    change: str = ""
    """The id of the change in effect; empty where everything was shown as it came."""
    only: bytes = b""
    """What was shown, where it was for this call only."""
    marks: tuple[Edit, ...] = ()
    """The cache breakpoints that were set."""
    raw: tuple[int, ...] = ()
    """Messages since the change that were shown as they came though they were shortened when they did."""


class Difference(Struct, frozen=True):
    """What a change did: what was shown before it and after it, and what was done and why."""

    before: Folded
    after: Folded
    receipts: tuple[Receipt, ...] = ()


def note_sent(journal: Journal, memory: Memory) -> Sent:
    """What to remember of the window that was made last."""
    sent, shown = memory.sent, memory.folded
    only = b"" if is_usual(memory) else snapshot.write(sent, encoder(memory), in_words=True)
    raw = tuple(sorted(number for number in journal.raw if number >= shown.base))
    return Sent(sent.size, journal.shown, only, memory.last_marks, raw)


def is_usual(memory: Memory) -> bool:
    """Was the last window made of what is shown from now on, and not of something that was for one call only?"""
    sent, shown = memory.sent, memory.folded
    return sent.shown is shown.shown and sent.lead is shown.lead and not sent.made


def noted_call(journal: Journal, memory: Memory, usage: Usage, sent: Sent | None) -> Call:
    """A call that the provider has reported, with what was sent."""
    prices, sent = memory.frame.prices, sent or note_sent(journal, memory)
    return Call(
        id=journal.new_id(),
        branch=journal.seen.branch,
        session=journal.session.id,
        usage=usage,
        size=sent.size,
        model=journal.model,
        receipt=msgspec.json.encode(sent),
        dollars=call_cost(usage, prices) if prices else 0.0,
        at=journal.clock(),
    )


async def sent_with(journal: Journal, memory: Memory, call: Call) -> Window:
    """What left with a call: with the system prompt and the tools as they are known now.

    Raises:
        NotFound: the call is one that no window was made for.
    """
    sent = _read(call)
    change = _once(sent) if sent.only else await _in_effect(journal, sent)
    folded = await journal.shown_after(memory, change, sent.size, sent.raw)
    return assemble(memory.frame.fixed, folded.shown.messages(), folded.lead)


def edits_of(call: Call) -> tuple[Edit, ...]:
    """What was changed for a call besides its messages: cache breakpoints, and an output that was lowered.

    Raises:
        NotFound: the call is one that no window was made for.
    """
    return _read(call).marks


async def difference(journal: Journal, memory: Memory, change: Compaction) -> Difference:
    """What was shown before a change and after it.

    Raises:
        NotFound: the change never took effect, or was made to one message as it arrived.
    """
    found = await journal.store.compaction(journal.seen.owner, change.id)
    if found is None or not found.shown:
        raise NotFound(
            "there is no before and after of this change",
            hint="it never took effect, or shortened a message as it came: `refold recall` gives the original",
        )
    after = await journal.shown_after(memory, found, found.size)
    before = await _before(journal, memory, await _made(journal, found))
    summary = after.summaries[-1] if found.kind == "summarise" and after.summaries else None
    edits = msgspec.json.decode(found.edits, type=tuple[Edit, ...]) if found.edits else ()
    decision: Decision = "summarise" if summary else "reduce"
    return Difference(
        before, after, (Receipt(decision, found.reason, found.before, found.after, edits, summary),)
    )


def rehearse(memory: Memory, frame: Frame) -> tuple[Difference, Window]:
    """What a compaction would do now, and the window after it; nothing comes of it."""
    counter = memory.folded.shown.counter
    trial = Memory(frame.fixed, frame.budget, frame.policy, counter, prices=frame.prices)
    trial.restore(memory.folded)
    trial.twins = memory.twins
    with suppress(InvalidWindow):  # where no call can follow yet, what is shown changes all the same
        trial.compact()
    after = trial.folded
    window = assemble(frame.fixed, after.shown.messages(), after.lead)
    return Difference(memory.folded, after, tuple(trial.receipts)), window


async def _made(journal: Journal, change: Compaction) -> Compaction:
    """A change as it was made: what a fork begins with is the copy of one of another branch."""
    store, owner = journal.store, journal.seen.owner
    session = await store.session(owner, change.base)
    if session is None or session.branch == change.branch:
        return change
    made = await store.compactions(owner, session.branch, EVERYTHING)
    return next((one for one in made if one.number and _trace(one) == _trace(change)), change)


def _trace(change: Compaction) -> tuple[object, ...]:
    """What a copy has of the one that it was made of."""
    return change.base, change.cut, change.size, change.before, change.after, change.at


async def _before(journal: Journal, memory: Memory, change: Compaction) -> Folded:
    """What was shown before a change: that of the same session before it.

    One that was undone may have been so before or after, and so may one that shortened a message as it came; the size that the
    change noted tells.
    """
    newest: Folded | None = None
    async for one in _candidates(journal, change):
        for raw in (journal.raw, NOTHING_RAW) if journal.raw else (journal.raw,):
            folded = await journal.shown_after(memory, one, change.size, raw)
            if folded.tokens == change.before:
                return folded
            newest = newest or folded
    return newest or memory.folded


async def _candidates(journal: Journal, change: Compaction) -> AsyncIterator[Compaction | None]:
    """What may have been in effect when a change was made, the likeliest first; None for nothing."""
    store, seen = journal.store, journal.seen
    for one in reversed(await _earlier(journal, change)):
        yield await store.compaction(seen.owner, one.id)
    base = await store.latest(seen, seen.base_seq) if seen.base else None
    yield base if base is not None and base.branch != seen.branch else None


async def _earlier(journal: Journal, change: Compaction) -> list[Compaction]:
    changes = await journal.store.compactions(journal.seen.owner, change.branch, EVERYTHING)
    return sorted(
        (
            one
            for one in changes
            if one.kind != "arrival"
            and 0 < one.number < change.number
            and change.base == (one.session or one.base)
        ),
        key=lambda one: one.number,
    )


def _read(call: Call) -> Sent:
    try:
        return msgspec.json.decode(call.receipt, type=Sent)
    except msgspec.MsgspecError:
        raise NotFound(
            "what left with this call was not noted", hint="a summary's own call leaves no window"
        ) from None


async def _in_effect(journal: Journal, sent: Sent) -> Compaction | None:
    if not sent.change:
        return None
    found = await journal.store.compaction(journal.seen.owner, sent.change)
    if found is None:
        raise NotFound("the change that was in effect at this call is gone", hint="run `refold doctor`")
    return found


def _once(sent: Sent) -> Compaction:
    return Compaction(id="", branch="", kind="reduce", size=sent.size, shown=sent.only)
