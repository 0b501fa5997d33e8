"""Windows and changes of the past, and the size of each message.

Every change stores a complete snapshot of the shown messages, and a stored message never changes. So any
earlier window can be rebuilt from the change in effect at that time and the messages up to then. For the same
reason an undone change can be restored without a model and without a plan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from refold.core.assemble import assemble
from refold.core.budget import Frame
from refold.core.fold import FoldedBranch
from refold.core.measure import Calibration, Meter, backfill
from refold.core.plan import Decision
from refold.core.stage import Edit, handle_of
from refold.core.stages.tool_results import STAGE as SUPERSEDE
from refold.core.view import ViewEntry
from refold.engine import actions
from refold.engine.journal import Journal, read_edits, read_instructions
from refold.engine.state import IN_TURN, Limits, Receipt, SentWindow, State
from refold.model.dialect import alternating
from refold.model.errors import InvalidWindow, NotFound
from refold.model.message import Message
from refold.model.tokens import Usage
from refold.model.window import FixedFields, Window
from refold.ports.records import Call, Compaction, CompactionKind, StoredMessage
from refold.wire.json_codec import FIELDS, read
from refold.wire.request import fixed_of

EVERYTHING = 10**9
NOTHING_RAW: frozenset[int] = frozenset()


class Difference(Struct, frozen=True):
    """The effect of a change: the shown messages before and after it, and its receipts."""

    before: FoldedBranch
    after: FoldedBranch
    receipts: tuple[Receipt, ...] = ()


async def sent_with(journal: Journal, state: State, call: Call) -> Window:
    """Rebuild the window of a call: with its own system prompt and tools if the store still has them, and with the newest
    ones otherwise.

    Raises:
        NotFound: no window was made for this call.
        Damaged: the stored system prompt cannot be read.
    """
    sent, folded = _read_sent(call), await shown_with(journal, state, call)
    fixed, fields = state.frame.fixed, await instructions_of(journal, call)
    if fields is None:
        journal.instructions.check(fixed)
    else:
        own = fixed_of(read(FIELDS, fields), fixed.dialect) if fields else FixedFields(fixed.dialect)
        fixed = structs.replace(fixed, system=own.system, tools=own.tools, automatic=own.automatic)
    if any(mark.stage == IN_TURN for mark in sent.marks):
        fixed = structs.replace(fixed, dialect=alternating(fixed.dialect))
    return assemble(fixed, folded.shown.messages(), folded.lead)


async def instructions_of(journal: Journal, call: Call) -> bytes | None:
    """Return the fields of the request with its system prompt and tools, as JSON; empty if it had neither, and None if the
    store does not have them any more.

    Raises:
        NotFound: no window was made for this call.
        Damaged: their bytes have changed.
    """
    digest, newest = _read_sent(call).instructions, journal.instructions
    if not digest:
        return digest
    if digest == newest.digest and newest.damage is None:
        return newest.fields
    return await read_instructions(journal.store, journal.head, digest)


async def shown_with(journal: Journal, state: State, call: Call) -> FoldedBranch:
    """Return the messages that were shown with a call.

    Raises:
        NotFound: no window was made for this call.
    """
    sent = _read_sent(call)
    change = _change_for_call(sent) if sent.only else await _change_of(journal, sent)
    return await journal.shown_after(state, change, sent.size, sent.raw)


def edits_of(call: Call) -> tuple[Edit, ...]:
    """Return the edits of a call outside of its window: cache breakpoints, a lowered output, and the gateway's recall tool.

    Raises:
        NotFound: no window was made for this call.
    """
    return _read_sent(call).marks


async def difference(journal: Journal, state: State, change: Compaction) -> Difference:
    """Return the messages that were shown before a change, and those after it.

    Raises:
        NotFound: the change never took effect, or shortened one message on arrival.
        Damaged: its stored edits cannot be read.
    """
    found = await journal.store.compaction(journal.head.owner, change.id)
    if found is None or not found.shown:
        raise NotFound(
            "there is nothing to compare for this change",
            hint="it never took effect, or shortened a message as it came: `refold recall` gives the original",
        )
    after = await journal.shown_after(state, found, found.size)
    before = await _before(journal, state, await _original_of(journal, found))
    summary = after.summaries[-1] if found.kind == "summarise" and after.summaries else None
    edits = read_edits(found)
    decision: Decision = "summarise" if summary else "reduce"
    return Difference(
        before, after, (Receipt(decision, found.reason, found.before, found.after, edits, summary),)
    )


ChangeState: TypeAlias = Literal["kept", "cut", "gone"]
Fate: TypeAlias = Literal["kept", "shortened", "superseded", "folded", "left out"]
"""Superseded: a newer result says the same. Folded: a summary stands for it. Left out: it is not shown, and in no summary."""


def fate_of(edit: Edit | None, *, is_shown: bool, is_summarised: bool) -> Fate:
    """The fate of a message that is not shown as it came, by the last edit of it."""
    if is_summarised:
        return "folded"
    if edit is not None and edit.stage == SUPERSEDE:
        return "superseded"
    return "shortened" if is_shown else "left out"


class MessageChange(Struct, frozen=True):
    """One message of the transcript before and after a compaction."""

    number: int
    state: ChangeState
    role: str
    before: int
    """Tokens before and after."""
    after: int
    original: Message
    shown: tuple[Message, ...] = ()
    edit: Edit | None = None
    """The last edit of it, unless a summary took its place."""
    is_summarised: bool = False

    @property
    def handle(self) -> str:
        return handle_of(self.number)

    @property
    def fate(self) -> Fate:
        """What happened to it, in one word."""
        if self.state == "kept":
            return "kept"
        return fate_of(self.edit, is_shown=self.state == "cut", is_summarised=self.is_summarised)


def changes_of(folded: FoldedBranch, receipts: Iterable[Receipt]) -> tuple[MessageChange, ...]:
    """Every message of the transcript, beside the part of it that is shown now."""
    edits = {edit.seq: edit for receipt in receipts for edit in receipt.edits}
    shown: dict[int, list[int]] = {}
    for index in range(len(folded.shown)):
        shown.setdefault(folded.number(index), []).append(index)
    covered = folded.summaries[-1].last if folded.summaries else 0
    return tuple(
        _change(folded, number, shown.get(number, []), edits.get(number), covered)
        for number in range(len(folded.branch))
    )


def changes_between(
    before: FoldedBranch, after: FoldedBranch, receipts: Iterable[Receipt]
) -> tuple[MessageChange, ...]:
    """Every message that was shown before, beside the part of it that is shown after."""
    edits = {edit.seq: edit for receipt in receipts for edit in receipt.edits}
    was, now = _by_number(before), _by_number(after)
    covered = after.summaries[-1].last if after.summaries else 0
    return tuple(
        _changed(number, was[number], now.get(number, []), edits.get(number), covered) for number in was
    )


def _by_number(folded: FoldedBranch) -> dict[int, list[ViewEntry]]:
    """The entries that are shown, by the numbers of their originals."""
    shown: dict[int, list[ViewEntry]] = {}
    for index, entry in enumerate(folded.shown):
        shown.setdefault(folded.number(index), []).append(entry)
    return shown


def _changed(
    number: int, was: list[ViewEntry], now: list[ViewEntry], edit: Edit | None, covered: int
) -> MessageChange:
    first, messages = was[0].message, tuple(entry.message for entry in now)
    is_same = [message.parts for message in messages] == [entry.message.parts for entry in was]
    return MessageChange(
        number,
        "gone" if not now else "kept" if is_same else "cut",
        first.role,
        sum(entry.tokens for entry in was),
        sum(entry.tokens for entry in now),
        first,
        messages,
        edit,
        not now and number < covered,
    )


def _change(
    folded: FoldedBranch, number: int, at: list[int], edit: Edit | None, covered: int
) -> MessageChange:
    original = folded.branch[number]
    messages = tuple(folded.shown[index].message for index in at)
    state: ChangeState = "gone" if not at else "kept" if messages == (original.message,) else "cut"
    return MessageChange(
        number,
        state,
        original.message.role,
        original.tokens,
        sum(folded.shown[index].tokens for index in at),
        original.message,
        messages,
        edit,
        not at and number < covered,
    )


def rehearse(state: State, frame: Frame, keep: int | None = None) -> Difference:
    """Compute a compaction without committing it; `keep` is the number of tokens to keep."""
    trial = structs.replace(
        state, frame=frame, receipts=(), meter=Meter(), calibration=Calibration(), limits=Limits(), prepared=None,
        has_failed=False, flag="", in_vain=0,
    )  # fmt: skip
    done = actions.compact(trial, keep=keep)
    if done.problem is not None and not isinstance(done.problem, InvalidWindow):
        raise done.problem  # InvalidWindow is ignored: the shown messages change even if no call can follow
    return Difference(state.folded, done.state.folded, done.state.receipts)


async def _original_of(journal: Journal, change: Compaction) -> Compaction:
    """Return the original of a change: a fork begins with a copy of a change of another branch."""
    store, owner = journal.store, journal.head.owner
    session = await store.session(owner, change.base)
    if session is None or session.branch == change.branch:
        return change
    made = await store.compactions(owner, session.branch, EVERYTHING)
    return next((one for one in made if one.number and _fingerprint(one) == _fingerprint(change)), change)


def _fingerprint(change: Compaction) -> tuple[object, ...]:
    """The fields that a copy has in common with its original."""
    return change.base, change.cut, change.size, change.before, change.after, change.at


async def _before(journal: Journal, state: State, change: Compaction) -> FoldedBranch:
    """Return the messages that were shown before a change: after the change that preceded it in the same
    session.

    Whether an undone change, or an undone shortening on arrival, was still in effect then is not stored. The
    size that the change recorded decides.
    """
    newest: FoldedBranch | None = None
    async for one in _candidates(journal, change):
        for raw in (journal.raw, NOTHING_RAW) if journal.raw else (journal.raw,):
            folded = await journal.shown_after(state, one, change.size, raw)
            if folded.tokens == change.before:
                return folded
            newest = newest or folded
    return newest or state.folded


async def _candidates(journal: Journal, change: Compaction) -> AsyncIterator[Compaction | None]:
    """Yield the changes that may have been in effect when a change was made, the likeliest first; None for no
    change.
    """
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


def window_of(call: Call) -> int:
    """The window of a call's request in tokens; 0 if it is not known."""
    try:
        return _read_sent(call).window
    except NotFound:
        return 0


def _read_sent(call: Call) -> SentWindow:
    try:
        return msgspec.json.decode(call.receipt, type=SentWindow)
    except msgspec.MsgspecError:
        raise NotFound(
            "no window is stored with this call", hint="the call of a summariser has none"
        ) from None


async def _change_of(journal: Journal, sent: SentWindow) -> Compaction | None:
    if not sent.change:
        return None
    found = await journal.store.compaction(journal.head.owner, sent.change)
    if found is None:
        raise NotFound("the change that was in effect at this call is gone", hint="run `refold doctor`")
    return found


def _change_for_call(sent: SentWindow) -> Compaction:
    return Compaction(id="", branch="", kind="reduce", size=sent.size, shown=sent.only)


async def last_change(journal: Journal, *kinds: CompactionKind) -> Compaction | None:
    """Return the newest change of the open session that can be undone."""
    found = await journal.store.last_change(journal.head.owner, journal.session.id, kinds)
    is_beginning = found is not None and found.kind == "reduce" and bool(found.session)
    return None if is_beginning else found


async def change_to_undo(journal: Journal) -> Compaction | None:
    """Return the change that an undo would take back. A summary that replaced another one is a reduction
    after a fold: the fold is undone as a whole.
    """
    last = await last_change(journal)
    if last is not None and last.kind == "reduce" and last.recipe:
        return await last_change(journal, "summarise") or last
    return last


class MessageTokens(Struct, frozen=True):
    """The size of one message. `reported` comes from the provider, `derived` from the difference of two
    reports, `counted` from our tokenizer.
    """

    seq: int
    tokens: int
    source: Literal["reported", "derived", "counted"]


def session_usage(calls: Sequence[Call]) -> dict[str, Usage]:
    """Return the total usage of each session's calls, summaries included."""
    found: dict[str, Usage] = {}
    for call in calls:
        found[call.session] = found.get(call.session, Usage()) + call.usage
    return found


def message_tokens(calls: Sequence[Call], messages: Sequence[StoredMessage]) -> list[MessageTokens]:
    """Return the most reliable size of each message. Calls and messages are in their order."""
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
    """Derive the tokens of the messages between a reply and the next call, unless the window was compacted in
    between.
    """
    between = [seq for seq in range(before.size + 1, after.size) if seq in known]
    if before.session != after.session:
        return
    shares = backfill(before.usage, after.usage, [known[seq].tokens for seq in between])
    for seq, tokens in zip(between, shares, strict=True):
        if tokens:
            known[seq] = MessageTokens(seq, tokens, "derived")
