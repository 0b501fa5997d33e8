"""What was shown at an earlier time: with a call, before and after a change, and what each message was reported to take.

Every change stores what is shown after it whole, and a stored message never changes, so any window of the past is put together again
from the change that was in effect and the messages that were there. For the same reason a change that was undone can be made again
without a model and without a plan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Struct, structs

from refold.core.assemble import assemble
from refold.core.cost import call_cost
from refold.core.fold import Folded
from refold.core.measure import Calibration, Meter, backfill
from refold.core.plan import Decision
from refold.core.plan_inputs import Frame
from refold.core.shown import Edit
from refold.engine import actions
from refold.engine import journal as snapshot
from refold.engine.journal import Journal, encoder, write_notes
from refold.engine.state import Limits, Receipt, Sent, State
from refold.model.errors import InvalidWindow, NotFound
from refold.model.tokens import Usage
from refold.model.window import Window
from refold.ports import records
from refold.ports.records import Batch, Call, Compaction, CompactionKind, StoredMessage

EVERYTHING = 10**9
NOTHING_RAW: frozenset[int] = frozenset()


class Difference(Struct, frozen=True):
    """What a change did: what was shown before it and after it, and what was done and why."""

    before: Folded
    after: Folded
    receipts: tuple[Receipt, ...] = ()


def sent_now(journal: Journal, state: State) -> Sent:
    """What to store of the window that was made last. Reads all that was shown, where that was for this call only."""
    only = b"" if state.is_sent_as_shown else snapshot.write(state.sent, encoder(state), in_words=True)
    raw = tuple(sorted(number for number in journal.raw if number >= state.folded.base))
    return Sent(state.sent.size, journal.change, only, state.window_edits, raw)


def sent_once(state: State, folded: Folded, marks: tuple[Edit, ...] = ()) -> Sent:
    """What to store of a window that was made for one call only, and of which the branch shows nothing."""
    return Sent(folded.size, only=snapshot.write(folded, encoder(state), in_words=True), marks=marks)


def reported_call(
    journal: Journal, state: State, usage: Usage, sent: Sent, *, call_id: str = "", reply: bytes = b""
) -> Call:
    """A call that the provider has reported, with what was sent."""
    prices = state.frame.prices
    return Call(
        id=call_id or journal.new_id(),
        reply=reply,
        branch=journal.head.branch,
        session=journal.session.id,
        usage=usage,
        size=sent.size,
        model=journal.model,
        receipt=msgspec.json.encode(sent),
        dollars=call_cost(usage, prices) if prices else 0.0,
        at=journal.clock(),
    )


async def sent_with(journal: Journal, state: State, call: Call) -> Window:
    """What left with a call: with the system prompt and the tools as they are known now.

    Raises:
        NotFound: the call is one that no window was made for.
    """
    sent = _read(call)
    change = _once(sent) if sent.only else await _in_effect(journal, sent)
    folded = await journal.shown_after(state, change, sent.size, sent.raw)
    return assemble(state.frame.fixed, folded.shown.messages(), folded.lead)


def edits_of(call: Call) -> tuple[Edit, ...]:
    """What was changed for a call besides its messages: cache breakpoints, and an output that was lowered.

    Raises:
        NotFound: the call is one that no window was made for.
    """
    return _read(call).marks


async def difference(journal: Journal, state: State, change: Compaction) -> Difference:
    """What was shown before a change and after it.

    Raises:
        NotFound: the change never took effect, or was made to one message as it arrived.
    """
    found = await journal.store.compaction(journal.head.owner, change.id)
    if found is None or not found.shown:
        raise NotFound(
            "there is no before and after of this change",
            hint="it never took effect, or shortened a message as it came: `refold recall` gives the original",
        )
    after = await journal.shown_after(state, found, found.size)
    before = await _before(journal, state, await _made(journal, found))
    summary = after.summaries[-1] if found.kind == "summarise" and after.summaries else None
    edits = msgspec.json.decode(found.edits, type=tuple[Edit, ...]) if found.edits else ()
    decision: Decision = "summarise" if summary else "reduce"
    return Difference(
        before, after, (Receipt(decision, found.reason, found.before, found.after, edits, summary),)
    )


def rehearse(state: State, frame: Frame) -> Difference:
    """What a compaction would do now; nothing comes of it."""
    trial = structs.replace(
        state, frame=frame, receipts=(), meter=Meter(), calibration=Calibration(), limits=Limits(), prepared=None,
        has_failed=False, flag="", in_vain=0,
    )  # fmt: skip
    done = actions.compact(trial)
    if done.problem is not None and not isinstance(done.problem, InvalidWindow):
        raise done.problem  # where no call can follow yet, what is shown changes all the same
    return Difference(state.folded, done.state.folded, done.state.receipts)


async def _made(journal: Journal, change: Compaction) -> Compaction:
    """A change as it was made: what a fork begins with is the copy of one of another branch."""
    store, owner = journal.store, journal.head.owner
    session = await store.session(owner, change.base)
    if session is None or session.branch == change.branch:
        return change
    made = await store.compactions(owner, session.branch, EVERYTHING)
    return next((one for one in made if one.number and _trace(one) == _trace(change)), change)


def _trace(change: Compaction) -> tuple[object, ...]:
    """What a copy has of the one that it was made of."""
    return change.base, change.cut, change.size, change.before, change.after, change.at


async def _before(journal: Journal, state: State, change: Compaction) -> Folded:
    """What was shown before a change: that of the same session before it.

    One that was undone may have been so before or after, and so may one that shortened a message as it came; the size that the
    change noted tells.
    """
    newest: Folded | None = None
    async for one in _candidates(journal, change):
        for raw in (journal.raw, NOTHING_RAW) if journal.raw else (journal.raw,):
            folded = await journal.shown_after(state, one, change.size, raw)
            if folded.tokens == change.before:
                return folded
            newest = newest or folded
    return newest or state.folded


async def _candidates(journal: Journal, change: Compaction) -> AsyncIterator[Compaction | None]:
    """What may have been in effect when a change was made, the likeliest first; None for nothing."""
    store, head = journal.store, journal.head
    for one in reversed(await _earlier(journal, change)):
        yield await store.compaction(head.owner, one.id)
    base = await store.latest(head, head.base_seq) if head.base else None
    yield base if base is not None and base.branch != head.branch else None


async def _earlier(journal: Journal, change: Compaction) -> list[Compaction]:
    changes = await journal.store.compactions(journal.head.owner, change.branch, EVERYTHING)
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
    found = await journal.store.compaction(journal.head.owner, sent.change)
    if found is None:
        raise NotFound("the change that was in effect at this call is gone", hint="run `refold doctor`")
    return found


def _once(sent: Sent) -> Compaction:
    return Compaction(id="", branch="", kind="reduce", size=sent.size, shown=sent.only)


class Taken:
    """Changes that were undone to be made again otherwise, newest first, and how far planning had settled before."""

    def __init__(self, folded: Folded) -> None:
        self.settled, self.declined = folded.settled, folded.declined
        self.changes: list[Compaction] = []

    @property
    def base(self) -> str:
        """The session that is open once it is taken back."""
        return self.changes[-1].base if self.changes else ""


async def last_change(journal: Journal, *kinds: CompactionKind) -> Compaction | None:
    """The newest change of the open session that can be taken back."""
    found = await journal.store.last_change(journal.head.owner, journal.session.id, kinds)
    is_beginning = found is not None and found.kind == "reduce" and bool(found.session)
    return None if is_beginning else found


async def put_back(journal: Journal, state: State, taken: Taken) -> None:
    """Install again what was taken back, unless somebody has gone another way since. Load afterwards.

    Raises:
        Conflict: somebody else has written meanwhile; load and try again.
    """
    if not taken.changes or journal.session.id != taken.base:
        return
    ids = [one.id for one in taken.changes]
    written = {one.id: one for one in await journal.store.written(journal.head.owner, ids)}
    changes, base = list[records.InstalledCompaction](), journal.session.id
    for one in reversed(taken.changes):
        opens = journal.child(journal.session, one.cut, journal.clock()) if one.session else None
        again = records.InstalledCompaction(structs.replace(one, base=base), written.get(one.id), opens)
        changes.append(await journal.renamed(again, *changes))
        base = opens.id if opens else base
    notes = structs.replace(journal.notes_of(state), settled=taken.settled, declined=taken.declined)
    await journal.commit(Batch(at=journal.clock(), changes=tuple(changes), notes=write_notes(notes)))


class MessageTokens(Struct, frozen=True):
    """One message: `reported` came from the provider, `derived` from the difference of two reports, `counted` is our own."""

    seq: int
    tokens: int
    source: Literal["reported", "derived", "counted"]


def session_usage(calls: Sequence[Call]) -> dict[str, Usage]:
    """What the calls of each session took together, summaries included."""
    found: dict[str, Usage] = {}
    for call in calls:
        found[call.session] = found.get(call.session, Usage()) + call.usage
    return found


def message_tokens(calls: Sequence[Call], messages: Sequence[StoredMessage]) -> list[MessageTokens]:
    """The best that is known about each message; calls and messages in their order."""
    known = {one.seq: MessageTokens(one.seq, one.tokens, "counted") for one in messages}
    replies = [call for call in calls if call.kind == "reply"]
    made = {one.seq for one in messages if one.role == "assistant"}
    for call in replies:
        if call.size in made and call.usage.output:
            known[call.size] = MessageTokens(call.size, call.usage.output, "reported")
    for before, after in pairwise(replies):
        if before.size in made:
            _derive(before, after, known)
    return [known[one.seq] for one in messages]


def _derive(before: Call, after: Call, known: dict[int, MessageTokens]) -> None:
    """Tokens of what came between a reply and the next call, unless the window was folded meanwhile."""
    between = [seq for seq in range(before.size + 1, after.size) if seq in known]
    if before.session != after.session:
        return
    shares = backfill(before.usage, after.usage, [known[seq].tokens for seq in between])
    for seq, tokens in zip(between, shares, strict=True):
        if tokens:
            known[seq] = MessageTokens(seq, tokens, "derived")
