"""The past of a conversation: its windows and changes, the size of each message, and its calls over time.

Every change stores a complete snapshot of the shown messages, and a stored message never changes. So any
earlier window can be rebuilt from the change in effect at that time and the messages up to then. For the same
reason an undone change can be restored without a model and without a plan.

    store ─▶ calls, outline, summaries ─▶ timeline_of ─▶ Timeline: TimedCall, TimedChange, BranchLine

A timeline is read from stored rows. What an earlier version did not store is None in it and shown as "not recorded"; nothing
is guessed. No message is read but the newest reply of each branch, so the cost depends on the number of calls and changes only,
and both are limited.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice, pairwise
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
from refold.engine.damage import readable_summaries
from refold.engine.events import Regions
from refold.engine.journal import Journal, read_edits, read_instructions
from refold.engine.recall import newest_replies
from refold.engine.settings import prices_of
from refold.engine.state import IN_TURN, CallSize, Limits, Receipt, SentWindow, State, SummaryAuthor
from refold.model.dialect import alternating
from refold.model.errors import InvalidWindow, NotFound
from refold.model.message import Message
from refold.model.tokens import Prices, Usage, in_proportion
from refold.model.window import FixedFields, Window
from refold.ports.records import (
    Call,
    Compaction,
    CompactionKind,
    CompactionState,
    Head,
    Outline,
    Session,
    StoredMessage,
    StoredSummary,
)
from refold.ports.store import Store
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


# A conversation over time, as a read model: its calls with the regions of their windows, its changes, and its branches.

MOST_CALLS = 5_000
"""Calls of one timeline, the newest. A conversation of 10,000 messages has so many at most, if every message is answered."""
MOST_CHANGES = 200
"""Changes of a branch in one timeline, the newest."""
NEAR_CALLS = 3
_MILLION = 1_000_000


class SentSize(Struct, frozen=True):
    """The fields of a stored `SentWindow` that a timeline needs; its snapshot may be long."""

    change: str = ""
    marks: tuple[Edit, ...] = ()
    window: int = 0
    sizes: CallSize | None = None


_SENT = msgspec.json.Decoder(SentSize)
assert set(SentSize.__struct_fields__) <= set(SentWindow.__struct_fields__)


class TimedCall(Struct, frozen=True, dict=True):
    """One call, with the window that was sent. Its receipt is read when it is needed: of thousands of calls a page shows few."""

    number: int
    """Its number among all calls of the conversation, counted from 1: the number of `refold show --calls`."""
    row: Call
    changes: tuple[str, ...] = ()
    """Ids of the changes to the window since the call before it."""

    @cached_property
    def sent(self) -> SentSize:
        try:
            return _SENT.decode(self.row.receipt)
        except msgspec.MsgspecError:
            return SentSize()  # the call of a summariser has none

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def is_reply(self) -> bool:
        """False for a call of the summariser."""
        return self.row.kind == "reply"

    @property
    def usage(self) -> Usage:
        return self.row.usage

    @property
    def tokens(self) -> int:
        """The size of the window that was sent, by the provider's report."""
        return self.row.usage.context

    @property
    def regions(self) -> Regions | None:
        """The parts of the prompt in the provider's tokens: our counts in proportion to the size that it reported, so that
        they add up to it. None if they were not recorded.
        """
        sizes = self.sent.sizes
        if sizes is None:
            return None
        names = Regions.__struct_fields__
        parts = in_proportion([getattr(sizes, name) for name in names], self.tokens or sizes.content)
        return Regions(**dict(zip(names, parts, strict=True)))

    @property
    def factor(self) -> float:
        """The provider's tokens per token of our count; 1.0 if our count was not recorded."""
        sizes = self.sent.sizes
        return self.tokens / sizes.content if sizes and self.tokens and sizes.content else 1.0

    @property
    def fold(self) -> int | None:
        """The fold point at that time; None if it was not recorded, as with `wall` and `window`."""
        return self.sent.sizes.fold if self.sent.sizes else None

    @property
    def wall(self) -> int | None:
        return self.sent.sizes.wall if self.sent.sizes else None

    @property
    def window(self) -> int | None:
        return self.sent.window or None

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Edits of this call alone: cache breakpoints, a lowered output."""
        return self.sent.marks


class Payback(Struct, frozen=True):
    """The price of a change, and the number of calls after which it has paid for itself.

    A call saves the tokens that left, at the price of reading them from the cache: the smallest price that they would have had.
    """

    summary: float
    """Dollars for the calls of the summariser."""
    prefix: float
    """Dollars for the part of the next prompt that was in the provider's cache before, and had to be written anew."""
    per_call: float
    """Dollars that each later call saves."""
    calls: int | None
    """The number of calls; 0 if it cost nothing, None if no call can ever pay for it."""


class TimedChange(Struct, frozen=True, kw_only=True):
    """One change to the shown messages, or a summary that came to nothing."""

    id: str
    branch: str
    number: int
    kind: CompactionKind
    state: CompactionState
    reason: str
    moment: str
    author: SummaryAuthor
    """The author of its summary; empty if it wrote none."""
    size: int
    """Messages in the branch at that time."""
    cut: int
    before: int
    after: int
    """Tokens of messages and summaries before and after, in our count."""
    at: float
    error: str = ""
    dollars: float = 0.0
    """The cost of the summariser's calls for it."""
    call: int | None = None
    """The number of the first call after it; None if there was none yet."""
    calls_since: int = 0
    """Calls for replies since, on its branch."""
    payback: Payback | None = None
    """None if it was not installed, if no call followed, or if the prices of the model are not known."""


class BranchLine(Struct, frozen=True):
    """A branch with its sessions, oldest first, those that were undone included."""

    branch: str
    base: str
    base_seq: int
    size: int
    sessions: tuple[Session, ...] = ()
    reply: int = 0
    """Messages of the newest reply, which the client has not sent back yet: they are not counted in `size`."""


class Timeline(Struct, frozen=True, kw_only=True, dict=True):
    """The calls and changes of one branch with those of the branches that it was forked from, and all branches."""

    conversation: str
    branch: str
    size: int
    """Messages of the branch."""
    calls: tuple[TimedCall, ...]
    """Oldest first, those of the summariser included."""
    changes: tuple[TimedChange, ...]
    """Oldest first."""
    branches: tuple[BranchLine, ...]
    is_cut: bool = False
    """Whether there are earlier calls that were not read."""
    pending: tuple[str, ...] = ()
    """Ids of the changes since the last call."""
    all_calls: tuple[TimedCall, ...] = ()
    """The calls of all branches, each once, oldest first."""
    all_changes: tuple[Compaction, ...] = ()
    """The changes of all branches, each once."""

    @cached_property
    def replies(self) -> tuple[TimedCall, ...]:
        return tuple(one for one in self.calls if one.is_reply)

    @property
    def dollars(self) -> float:
        """What all calls cost, those of the summariser included."""
        return sum(one.row.dollars for one in self.calls)

    @property
    def summary_dollars(self) -> float:
        return sum(one.row.dollars for one in self.calls if not one.is_reply)

    @property
    def unsent(self) -> int:
        return sum(one.row.unsent for one in self.replies)

    @property
    def net_dollars(self) -> float:
        """Dollars that were not spent on replies, less the price of the summaries. It may be negative."""
        return sum(one.row.saved for one in self.replies) - self.summary_dollars

    @property
    def is_estimated(self) -> bool:
        """Whether the usage of a call is an estimate, because the provider reported none."""
        return any(one.row.is_estimated for one in self.calls)


async def timeline_of(
    store: Store, owner: str, name: str, *, branch: str = "", limit: int = MOST_CALLS
) -> Timeline:
    """Read the timeline of a branch, by default of the one that was used last.

    Raises:
        NotFound: there is no such conversation or branch.
    """
    head = await store.head(owner, name, branch)
    if head is None:
        raise NotFound("there is no such conversation", hint="`refold conversations` lists them")
    outline = await store.outline(owner, name, MOST_CHANGES)
    rows = await store.calls(owner, name, limit + 1)
    is_cut, rows = len(rows) > limit, rows[-limit:]
    earlier = await store.calls_before(owner, name, rows[0].id) if is_cut else 0
    lines = _ancestry(outline, head)
    shown = tuple(one for one in outline.changes if _is_shown(one))
    made = sorted((one for one in shown if _is_on(one, lines)), key=lambda one: (one.at, one.number))
    written = await readable_summaries(store, owner, [one.id for one in made if one.kind == "summarise"])
    everything = tuple(TimedCall(number, row) for number, row in enumerate(rows, earlier + 1))
    calls = [one for one in everything if _is_on(one.row, lines)]
    first_calls = _first_calls(made, [one for one in calls if one.is_reply])
    since: dict[str, list[str]] = {}
    for which, number in first_calls.items():
        since.setdefault(number, []).append(which)
    authors = {one.id: one for one in written}
    return Timeline(
        conversation=name,
        branch=head.branch,
        size=head.next_seq,
        calls=tuple(_with_changes(one, since.get(one.id, ())) for one in calls),
        changes=tuple(_changes(made, calls, authors, first_calls)),
        branches=tuple(_branch_lines(outline, await newest_replies(store, outline.heads))),
        is_cut=is_cut,
        pending=tuple(one.id for one in made if one.number and one.id not in first_calls),
        all_calls=everything,
        all_changes=shown,
    )


def _with_changes(one: TimedCall, changes: Sequence[str]) -> TimedCall:
    return structs.replace(one, changes=tuple(changes)) if changes else one


def _ancestry(outline: Outline, head: Head) -> dict[str, int]:
    """The branch and those it was forked from, each with the number of its messages that belong to it."""
    known = {one.branch: one for one in outline.heads}
    found, size = {head.branch: head.next_seq}, head.next_seq
    while head.base and head.base in known and head.base not in found:
        size = min(size, head.base_seq)
        head = known[head.base]
        found[head.branch] = size
    return found


def _is_on(one: Call | Compaction, lines: Mapping[str, int]) -> bool:
    """Whether a row belongs to the messages of these branches, and not to what followed a fork on its base."""
    return one.branch in lines and one.size <= lines[one.branch]


def _is_shown(one: Compaction) -> bool:
    """Whether it took effect at some time, or came to an end without one; the copy that a fork begins with is neither."""
    return bool(one.number) or one.state in ("failed", "superseded")


def _first_calls(made: Sequence[Compaction], replies: Sequence[TimedCall]) -> dict[str, str]:
    """The id of the first call after each change that took effect: by its time and by the number of messages. If calls of the
    same time are near, the one that names the change as the one in effect.
    """
    found: dict[str, str] = {}
    times = list(accumulate((call.row.at for call in replies), max))  # a clock may have been set back
    for one in made:
        if not one.number:
            continue
        later = islice(replies, bisect_left(times, one.at), None)
        near = list(islice((call for call in later if call.row.size >= one.size), NEAR_CALLS))
        if near:
            named = next((call for call in near if call.sent.change == one.id), near[0])
            found[one.id] = named.id
    return found


def _changes(
    made: Sequence[Compaction],
    calls: Sequence[TimedCall],
    written: Mapping[str, StoredSummary],
    first_calls: Mapping[str, str],
) -> Iterator[TimedChange]:
    replies = [one for one in calls if one.is_reply]
    places = {one.id: at for at, one in enumerate(replies)}
    has_cache = any(one.usage.cache_read or one.usage.cache_write for one in replies)
    paid = _summary_dollars(made, calls, written)
    for one in made:
        summary = written[one.id].summary if one.id in written else None
        place = places.get(first_calls.get(one.id, ""))
        dollars = paid.get(one.id, 0.0)
        payback = None
        if place is not None:
            before = replies[place - 1] if place else None
            payback = _payback(one, dollars, before if has_cache else None, replies[place])
        yield TimedChange(
            id=one.id,
            branch=one.branch,
            number=one.number,
            kind=one.kind,
            state=one.state,
            reason=one.reason,
            moment=one.moment,
            author=SummaryAuthor.of(summary) if summary else SummaryAuthor(),
            size=one.size,
            cut=one.cut,
            before=one.before,
            after=one.after,
            at=one.at,
            error=one.error,
            dollars=dollars,
            call=replies[place].number if place is not None else None,
            calls_since=len(replies) - place if place is not None else 0,
            payback=payback,
        )


def _summary_dollars(
    made: Sequence[Compaction], calls: Sequence[TimedCall], written: Mapping[str, StoredSummary]
) -> dict[str, float]:
    """The cost of the summariser's calls by change: a call belongs to the summary that was written from as many messages and not
    used, or else to the first one of the session in which it was asked for that was made from no fewer messages. The
    calls of failed attempts are part of it.
    """
    summarised: dict[str, list[Compaction]] = {}
    for one in made:
        if one.kind == "summarise":
            summarised.setdefault(one.base, []).append(one)
    found: dict[str, float] = {}
    for call in calls:
        if call.is_reply:
            continue
        owners = [one for one in summarised.get(call.row.session, ()) if one.size >= call.row.size]
        unused = (one for one in owners if one.state == "superseded" and one.id in written)
        first = next((one for one in unused if one.size == call.row.size), None)
        first = first or min(owners, key=lambda one: (not one.number, one.number), default=None)
        if first is not None:
            found[first.id] = found.get(first.id, 0.0) + call.row.dollars
    return found


def _payback(
    change: Compaction, summary: float, before: TimedCall | None, after: TimedCall
) -> Payback | None:
    prices = prices_of(after.row.model)
    if prices is None:
        return None
    per_call = (change.before - change.after) * after.factor * prices.read / _MILLION
    prefix = _broken_prefix(before, after, prices)
    cost = summary + prefix
    if per_call <= 0:
        return Payback(summary, prefix, per_call, None if cost > 0 else 0)
    return Payback(summary, prefix, per_call, math.ceil(cost / per_call))


def _broken_prefix(before: TimedCall | None, after: TimedCall, prices: Prices) -> float:
    """Dollars for tokens that the call before had in the cache and this one did not read from it. What a cache that had expired
    anyway would have cost is counted too, against the change.
    """
    if before is None or before.row.model != after.row.model:
        return 0.0
    rewritten = min(before.tokens, after.tokens) - after.usage.cache_read
    return max(0, rewritten) * (prices.write - prices.read) / _MILLION


def _branch_lines(outline: Outline, replies: Mapping[str, Sequence[StoredMessage]]) -> Iterator[BranchLine]:
    for head in outline.heads:
        own = tuple(one for one in outline.sessions if one.branch == head.branch)
        reply = len(replies.get(head.branch, ()))
        yield BranchLine(head.branch, head.base, head.base_seq, head.next_seq, own, reply)
