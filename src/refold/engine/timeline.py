"""A conversation over time, as a read model: its calls with the regions of their windows, its changes, and its branches.

    store ─▶ calls, outline, summaries ─▶ timeline_of ─▶ Timeline: TimedCall, TimedChange, BranchLine

Everything is read from stored rows. What an earlier version did not store is None here and shown as "not recorded"; nothing is
guessed. No message is read but the newest reply of each branch, so the cost depends on the number of calls and changes only, and both are limited.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice

import msgspec
from msgspec import Struct, structs

from refold.core.stage import Edit
from refold.engine.damage import readable_summaries
from refold.engine.events import Regions
from refold.engine.recall import newest_replies
from refold.engine.settings import prices_of
from refold.engine.state import CallSize, SentWindow, SummaryAuthor
from refold.model.errors import NotFound
from refold.model.tokens import Prices, Usage, in_proportion
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
