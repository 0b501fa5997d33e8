"""Events: one for each change to a conversation, with the size before and after, and the reason.

An event holds counts, reasons and names, and no text of a message, so it can go into a log, to another
program, or onto a screen. Actions return events; the conversation queues them in commit order and delivers
them after each commit.

    compaction_start ── compaction_end      messages leave the window; always both, in this order
    pruned                                  messages stay and are made smaller
    summary_written, summary_failed         a summariser was asked, ahead of time or while a caller waits
    summary_switched                        a model's summary has replaced the digest of the same messages
    summary_discarded                       a model's summary was paid for and cannot be used
    recovered                               a request that was too long was accepted after it was made smaller
    usage_recorded                          a provider has reported the usage of a call
    undone                                  the last change was undone
    messages_damaged                        stored messages cannot be read, and placeholders are shown for them

A compaction that waits for a model begins before the model is asked, and ends with the switch:

    manual, rerun, new, resume     start ──────────── waits ──────────── switch ── end
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, Self, TypeAlias
from weakref import WeakSet

from msgspec import Struct, structs

from refold.core.budget import size_of
from refold.core.fold import FoldedBranch
from refold.core.plan import Decision, Plan, SummaryRequest
from refold.core.policy import Moment
from refold.core.stage import Edit
from refold.model.errors import RefoldError
from refold.model.message import ToolResult
from refold.model.summary import Author, Summary
from refold.model.tokens import CountSource, Usage, WindowSource
from refold.ports.models import PaidQuestion

if TYPE_CHECKING:
    from refold.engine.state import Change, State


_log = logging.getLogger("refold")

ASKED = "asked for"
OVERTAKEN = "the conversation was compacted meanwhile"
NOTHING = "there is nothing to take out"
NO_SUMMARY = "no summary could be written"
MOST_NAMED = 10
"""So many damaged messages are named in a line; `refold doctor` names all."""
UNFIT = "no summary passed its checks"
STOPPED = "it was stopped"

Price: TypeAlias = Callable[[str, Usage], float]
"""Returns the cost of a model's usage in dollars."""

Path: TypeAlias = Literal["automatic", "ahead", "manual", "overflow", "rerun", "new", "resume", "arrival"]
"""The cause: automatic, automatic with a summary that was written ahead, requested by a caller, after a
refusal as too long, a rerun, a new or a resumed session, or the arrival of a message."""
CompactionOutcome: TypeAlias = Literal["installed", "skipped", "failed", "superseded"]
"""Installed: the window is another one now. Skipped: nothing could be gained. Failed: it could not be done.
Superseded: another compaction was first."""


class Regions(Struct, frozen=True):
    """Tokens of a window, region by region."""

    system: int = 0
    tools: int = 0
    summary: int = 0
    history: int = 0
    tool_results: int = 0
    tail: int = 0
    input: int = 0


class ContextSize(Struct, frozen=True):
    """The size of a context: the next request, instructions included."""

    tokens: int
    """In the provider's tokens, as far as its reports tell: the number that the policy compares."""
    source: CountSource
    """The source of `tokens`. The sizes before and after a change have the same source."""
    limit: int
    """The largest request allowed."""
    percent: int
    """Share of the limit, rounded down, so that 100 means full."""
    regions: Regions = Regions()
    """The parts of `tokens`."""
    messages: int = 0
    """Messages that are shown."""
    counted: int = 0
    """The same size by our own count."""


class Reduction(Struct, frozen=True):
    """The effect of one stage."""

    stage: str
    messages: int
    results: int
    """How many of the messages are tool results."""
    before: int
    """Tokens of these messages before; `after` is the same after it."""
    after: int


class Event(Struct, frozen=True, kw_only=True, tag_field="event"):
    """The base of all events. `conversation` and `branch` are empty for a conversation in memory."""

    conversation: str = ""
    branch: str = ""

    @property
    def kind(self) -> str:
        """The name of the event, such as `compaction_end`."""
        return str(type(self).__struct_config__.tag)


class CompactionStart(Event, frozen=True, kw_only=True, tag="compaction_start"):
    """Messages are about to leave the window. A `compaction_end` always follows."""

    path: Path
    moment: Moment | None = None
    """The moment of the policy, if it acted automatically."""
    reason: str
    before: ContextSize


class CompactionEnd(Event, frozen=True, kw_only=True, tag="compaction_end"):
    """A compaction has ended, with its outcome."""

    path: Path
    moment: Moment | None = None
    reason: str
    outcome: CompactionOutcome
    problem: str = ""
    """Why it was not installed; empty if it was."""
    before: ContextSize
    after: ContextSize
    author: Author = ""
    why: str = ""
    """Why no model wrote the summary; empty if one did, or if there is none."""
    model: str = ""
    """The model that wrote the summary, if known."""
    covered: int = 0
    """How many messages the summary covers."""
    digested: int = 0
    """How many of their texts were too long for the summariser, which got plain digests of them."""
    usage: Usage = Usage()
    """The usage of the summary. The `summary_written` event before has reported the same."""
    dollars: float = 0.0
    reductions: tuple[Reduction, ...] = ()
    """The effects of stages during the compaction."""


class Pruned(Event, frozen=True, kw_only=True, tag="pruned"):
    """Messages were made smaller, and stay in the window."""

    path: Path
    moment: Moment | None = None
    reason: str
    before: ContextSize
    after: ContextSize
    reductions: tuple[Reduction, ...] = ()


class SummaryWritten(Event, frozen=True, kw_only=True, tag="summary_written"):
    """A summariser has written a summary. It may be used later or never."""

    first: int
    """The summary covers the messages numbered `first` up to, not including, `last`."""
    last: int
    is_awaited: bool
    """Whether a caller waits for it; False if it was written ahead."""
    tokens: int
    digested: int = 0
    """How many texts were too long for the summariser, which got plain digests of them."""
    model: str = ""
    usage: Usage = Usage()
    """The usage of all attempts, failed ones included."""
    dollars: float = 0.0


class SummaryFailed(Event, frozen=True, kw_only=True, tag="summary_failed"):
    """A summariser was asked, and no summary could be used."""

    first: int
    last: int
    is_awaited: bool
    problem: str
    usage: Usage = Usage()
    dollars: float = 0.0


class SummarySwitched(Event, frozen=True, kw_only=True, tag="summary_switched"):
    """A model's summary has replaced the digest that stood for the same messages."""

    reason: str
    before: ContextSize
    after: ContextSize
    model: str = ""
    covered: int = 0


class SummaryDiscarded(Event, frozen=True, kw_only=True, tag="summary_discarded"):
    """A model's summary was paid for and cannot be used."""

    first: int
    last: int
    reason: str


class Recovered(Event, frozen=True, kw_only=True, tag="recovered"):
    """A request that was refused as too long was accepted after it was made smaller."""

    attempts: int
    """How many times the request was made smaller."""
    stated: int | None
    """The window that the provider stated, in its own tokens; None if it stated none."""
    size: ContextSize
    """The size that was accepted."""


class UsageRecorded(Event, frozen=True, kw_only=True, tag="usage_recorded"):
    """A provider has reported the usage of a call of the conversation."""

    usage: Usage
    """The provider's figures."""
    counted: int
    """Our own count of the same request, instructions included."""
    window: int
    window_source: WindowSource
    """The size of the model's window, and the source of that figure."""


class Undone(Event, frozen=True, kw_only=True, tag="undone"):
    """The last change was undone."""

    decision: Decision
    """The kind of the change that was undone."""
    reason: str
    """The reason of that change."""
    why: str = ""
    """Why it was undone; empty if somebody asked for it."""
    before: ContextSize
    after: ContextSize


class MessagesDamaged(Event, frozen=True, kw_only=True, tag="messages_damaged"):
    """Stored messages cannot be read. A placeholder is shown for each; everything else goes on."""

    messages: tuple[int, ...]
    """Their numbers."""


Listener: TypeAlias = Callable[[Event], object]
"""Is called synchronously, in the thread of the conversation: start a task for slow work."""


MAX_UNREAD = 1_000
"""Events that an `EventReader` holds for a slow reader: hours of a busy conversation."""


class EventReader(AsyncIterator[Event]):
    """The events of one conversation from the creation of the stream until the conversation is closed.

    A reader that is more than `MAX_UNREAD` events behind loses the oldest ones.
    """

    def __init__(self) -> None:
        self._unread: deque[Event] = deque(maxlen=MAX_UNREAD)
        self._arrived, self._is_closed = asyncio.Event(), False

    def put(self, event: Event) -> None:
        self._unread.append(event)
        self._arrived.set()

    def read_all(self) -> list[Event]:
        """Return the events that are not read yet, without waiting."""
        found = [*self._unread]
        self._unread.clear()
        return found

    def close(self) -> None:
        """End the stream after the events that are not read yet."""
        self._is_closed = True
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._unread:
            if self._is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._unread.popleft()


class EventQueue:
    """Delivers the events of one conversation to its listener and its streams, in the order in which they
    were put.
    """

    def __init__(self, listener: Listener | None = None, price: Price = lambda _model, _usage: 0.0) -> None:
        self.conversation, self.branch = "", ""
        self._listener, self._price = listener, price
        self._waiting: deque[Event] = deque()
        self._streams: WeakSet[EventReader] = WeakSet()
        self._is_closed = False

    def stream(self) -> EventReader:
        """Open a stream of the events from now on. It ends with `close`, or when its reader drops it."""
        opened = EventReader()
        self._streams.add(opened)
        if self._is_closed:
            opened.close()
        return opened

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.close()

    def put(self, events: Iterable[Event]) -> None:
        """Queue events; `deliver` passes them to the listener and the streams."""
        if self._listener is not None or self._streams:
            self._waiting.extend(events)

    def deliver(self) -> None:
        """Pass every queued event on. A listener that wants to call the conversation starts a task for it."""
        while self._waiting:
            event = self._waiting.popleft()
            if isinstance(event, CompactionEnd) and event.model:
                event = structs.replace(event, dollars=self._price(event.model, event.usage))
            event = structs.replace(event, conversation=self.conversation, branch=self.branch)
            if self._streams:
                for stream in list(self._streams):
                    stream.put(event)
            if self._listener is None:
                continue
            try:
                self._listener(event)
            except Exception as error:  # noqa: BLE001  # code of the user's: its failure must not stop the conversation
                reason = type(error).__name__
                if isinstance(error, RefoldError):  # one of ours: its text never quotes content
                    reason = f"{reason}: {error.message}" + (f" (hint: {error.hint})" if error.hint else "")
                _log.warning("a listener failed on %s: %s", event.kind, reason)

    def summary_event(
        self,
        request: SummaryRequest,
        summary: Summary | None,
        questions: Sequence[PaidQuestion],
        problem: str,
        *,
        is_awaited: bool,
    ) -> Event:
        """Return the event of a summariser's answer or failure, with the cost of all its questions."""
        first, last, usage = request.first, request.last, sum((used for _, used in questions), Usage())
        dollars = sum(self._price(model, used) for model, used in questions)
        if summary is None:
            return SummaryFailed(
                first=first, last=last, is_awaited=is_awaited, problem=problem, usage=usage, dollars=dollars
            )
        return SummaryWritten(
            first=first,
            last=last,
            is_awaited=is_awaited,
            tokens=summary.tokens,
            digested=summary.digested,
            model=summary.model,
            usage=usage,
            dollars=dollars,
        )


def sized(
    state: State,
    folded: FoldedBranch | None = None,
    *,
    like: State | None = None,
    scale: float | None = None,
) -> ContextSize:
    """Return the size of the context, or the size it would have with `folded`, measured as in the state `like`:
    a provider's report of the messages before a change is all that is known of its count after it. `scale` is
    the `scale_of` that state, if the caller knows it.
    """
    shown, known = state.folded if folded is None else folded, like or state
    measurement, limit = state.measured(shown), state.limit
    content = measurement.content
    source = content.source if content.tokens else shown.shown.counter.source
    factor = scale_of(known) if scale is None else scale
    names = Regions.__struct_fields__
    counts = [getattr(measurement, name).tokens for name in names]
    bounds = [round(upto * factor) for upto in accumulate(counts, initial=0)]
    regions = Regions(
        **{name: last - first for name, (first, last) in zip(names, pairwise(bounds), strict=True)}
    )
    tokens = round(content.tokens * factor)
    percent = tokens * 100 // limit if limit > 0 else 100
    return ContextSize(
        tokens,
        "reported" if known.is_reported else source,
        limit,
        percent,
        regions,
        len(shown.shown),
        content.tokens,
    )


def scale_of(state: State) -> float:
    """Return the size of the context as the policy measures it, in relation to our own count."""
    counted = size_of(state.folded, state.frame)
    return state.compared / counted if counted else 1.0


def pruned(state: State, change: Change, path: Path, moment: Moment | None = None) -> Pruned:
    """Return the event of a change in which messages stay and become smaller."""
    before, after = change.before, change.after
    if change.raw:  # without the cut on arrival, the whole message would have been shown
        before = before.extend(after.originals(before.size, after.size))
    return Pruned(
        path=path,
        moment=moment,
        reason=change.receipt.reason,
        before=sized(state, before),
        after=sized(state, after),
        reductions=reductions(change.receipt.edits, before),
    )


def compaction_events(
    before: State, after: State, asked: Plan, done: Plan, change: Change | None, *, is_ahead: bool
) -> Iterator[Event]:
    """Yield the events of a plan that was carried out; none if it changed nothing."""
    moment = asked.now.moment
    path: Path = "ahead" if is_ahead else "automatic"
    if moment in ("manual", "overflow"):
        path = moment
    is_installed = False
    if _is_compaction(asked, before.folded):
        scale = scale_of(before)  # once: some policies measure by reading all messages
        size = sized(before, scale=scale)
        start = CompactionStart(path=path, moment=moment, reason=asked.reason, before=size)
        end = _end_of(start, asked, done, change)
        is_installed = end.outcome == "installed"
        yield start
        yield structs.replace(end, after=sized(after, like=before, scale=scale))
    if change is not None and not is_installed:
        yield pruned(before, change, path, moment)


def summary_switched(before: State, after: State, change: Change, summary: Summary) -> SummarySwitched:
    """Return the event of a model's summary that replaces a digest."""
    return SummarySwitched(
        reason=change.receipt.reason,
        before=sized(before),
        after=sized(after, like=before),
        model=summary.model,
        covered=sum(end - first for first, end in summary.ranges),
    )


def _is_compaction(asked: Plan, folded: FoldedBranch) -> bool:
    """Whether this plan removes messages, or was requested explicitly (manual or overflow) and is reported in
    any case.
    """
    is_wanted = asked.now.moment in ("manual", "overflow")
    is_other = asked.request is not None or asked.next.lead is not folded.lead
    return is_wanted or is_other or bool(asked.refusal)


def _end_of(start: CompactionStart, asked: Plan, done: Plan, change: Change | None) -> CompactionEnd:
    summary = change.receipt.summary if change else None
    if done.refusal:
        return end_of(start, "failed", done.refusal)
    if change is None or (asked.request and not summary and change.after.lead is change.before.lead):
        problem = done.reason if done.reason != asked.reason else NO_SUMMARY
        return end_of(start, "skipped", problem if asked.request is not None else NOTHING)
    end = structs.replace(
        end_of(start, "installed"), reductions=reductions(change.receipt.edits, change.before)
    )
    if summary is not None:
        return with_summary(end, summary)
    return structs.replace(end, author=change.receipt.author, why=change.receipt.why)


def end_of(start: CompactionStart, outcome: CompactionOutcome, problem: str = "") -> CompactionEnd:
    """Return the end of a compaction. The sizes are equal unless `after` is replaced."""
    return CompactionEnd(
        path=start.path,
        moment=start.moment,
        reason=start.reason,
        outcome=outcome,
        problem=problem,
        before=start.before,
        after=start.before,
    )


def with_summary(end: CompactionEnd, summary: Summary) -> CompactionEnd:
    return structs.replace(
        end,
        author=summary.author,
        why=summary.why,
        model=summary.model,
        covered=sum(end - first for first, end in summary.ranges),
        digested=summary.digested,
        usage=summary.usage,
    )


def as_part_of(start: CompactionStart, events: Iterable[Event]) -> Iterator[Event]:
    """Turn the events of a switch into the end of a compaction that began earlier. There is one end with the
    data of `start`, and no second start.
    """
    end = end_of(start, "skipped", NOTHING)
    for event in events:
        if isinstance(event, CompactionEnd):
            end = structs.replace(
                event, path=start.path, moment=start.moment, reason=start.reason, before=start.before
            )
        elif not isinstance(event, CompactionStart):
            yield event
    yield end


def reductions(edits: Sequence[Edit], before: FoldedBranch) -> tuple[Reduction, ...]:
    """Return the effect of each stage, in the order of the stages."""
    if not edits:
        return ()
    edited = {edit.seq for edit in edits}
    items = [item for item in before.items.items if item.seq in edited]
    results = {item.seq for item in items if ToolResult in map(type, item.message.parts)}
    stages = dict.fromkeys(edit.stage for edit in edits)
    return tuple(
        _reduction(stage, [edit for edit in edits if edit.stage == stage], results) for stage in stages
    )


def _reduction(stage: str, edits: Sequence[Edit], results: Collection[int]) -> Reduction:
    numbers = {edit.seq for edit in edits}
    before, after = sum(edit.before for edit in edits), sum(edit.after for edit in edits)
    return Reduction(stage, len(numbers), len(numbers.intersection(results)), before, after)


def problem_of(error: BaseException) -> str:
    """Describe an error without content: the message of our own errors, the type name of others, whose text
    may hold anything.
    """
    if isinstance(error, RefoldError):
        return error.message
    return type(error).__name__ if isinstance(error, Exception) else STOPPED


# Event texts for people

_ENDED = {"skipped": "skipped", "failed": "failed", "superseded": "not needed any more"}
_INSTALLED = {"new": "New session", "resume": "Session resumed", "rerun": "Compacted again"}
"""The title by path, if it is not `Compacted`."""


def pruning(event: Pruned) -> str:
    """Describe a pruning, and the fill level after it."""
    before, after = (sum(getattr(one, name) for one in event.reductions) for name in ("before", "after"))
    is_output = all(one.results == one.messages for one in event.reductions)
    what, saved = "Tool outputs pruned" if is_output else "Messages shortened", before - after
    percent = f", -{saved * 100 // before}%" if before > 0 and saved >= 0 else ""
    return f"🔧 {what} ({short(before)} → {short(after)}{percent})\n  📊 Context: {_share(event.after)}"


def compaction(event: CompactionEnd) -> str:
    """Describe a compaction, and the regions of the window after it; one line if it was not installed."""
    if event.outcome != "installed":
        return f"⚙️ Compaction {_ENDED[event.outcome]}: {event.problem}"
    after, done = event.after.regions, _INSTALLED.get(event.path, "Compacted")
    kept, tools = after.history + after.tail + after.input, after.tools + after.tool_results
    return "\n".join(
        (
            f"⚙️ {done} ({short(event.before.tokens)} → {short(event.after.tokens)})",
            f"  🔧 System: {short(after.system)} tokens",
            f"  📝 Summary: {short(after.summary)} tokens{_digested(event.digested)}",
            f"  💬 Kept context: {short(kept)} tokens",
            f"  🛠️ Tools: {short(tools)} tokens ({short(after.tools)} defs + {short(after.tool_results)} calls)",
            f"  📊 Total: {_share(event.after)}",
        )
    )


def text_of(event: Event) -> str:
    """Describe any event. Prunings and compactions take several lines."""
    match event:
        case Pruned():
            return pruning(event)
        case CompactionEnd():
            return compaction(event)
        case CompactionStart():
            return f"⚙️ Compacting ({_share(event.before)}): {event.reason}"
        case SummaryWritten() | SummaryFailed() | SummarySwitched() | SummaryDiscarded():
            return _summary_text(event)
        case Recovered():
            return f"🩹 The provider took it in the end, at {_share(event.size)}"
        case UsageRecorded():
            counts = (
                f"{short(event.usage.context)} tokens by the provider, {short(event.counted)} by our count"
            )
            return f"📊 {counts}; window {short(event.window)} ({event.window_source})"
        case Undone():
            return f"↩️ Taken back ({short(event.before.tokens)} → {short(event.after.tokens)})"
        case MessagesDamaged():
            return f"⚠️ {damage_text(event.messages)}"
    return event.kind


def damage_text(messages: Sequence[int]) -> str:
    """Name the messages that placeholders are shown for."""
    named = ", ".join(map(str, messages[:MOST_NAMED])) + (", …" if len(messages) > MOST_NAMED else "")
    if len(messages) == 1:
        return (
            f"message {named} is damaged and cannot be read: a placeholder is shown for it (`refold doctor`)"
        )
    return (
        f"messages {named} are damaged and cannot be read: placeholders are shown for them (`refold doctor`)"
    )


def _summary_text(event: SummaryWritten | SummaryFailed | SummarySwitched | SummaryDiscarded) -> str:
    match event:
        case SummaryWritten():
            written = f"📝 Summary of messages {event.first} to {event.last - 1} written, {short(event.tokens)} tokens"
            return f"{written}{_digested(event.digested)}"
        case SummaryFailed():
            return f"📝 No summary of messages {event.first} to {event.last - 1}: {event.problem}"
        case SummarySwitched():
            sizes = f"{short(event.before.tokens)} → {short(event.after.tokens)}"
            more = "; a compaction follows" if event.after.tokens > event.after.limit else ""
            return f"📝 Digest replaced by the model's summary ({sizes}){more}"
        case SummaryDiscarded():
            return f"📝 Summary of messages {event.first} to {event.last - 1} not used: {event.reason}"


def notice(event: Event, *, pruning: bool = True, compaction: bool = True) -> str:
    """Return the text of an event, or nothing if its kind is switched off."""
    if isinstance(event, Pruned):
        return text_of(event) if pruning else ""
    is_compaction = isinstance(event, CompactionStart | CompactionEnd)
    return text_of(event) if compaction or not is_compaction else ""


def short(tokens: int) -> str:
    """Abbreviate a number of tokens: 300, 2.1k, 150k, 1M."""
    if tokens < 1_000:
        return str(tokens)
    if tokens < 999_500:  # from there on it would be rounded to 1000k
        decimals = 0 if tokens >= 100_000 else 1
        return f"{tokens / 1_000:.{decimals}f}".removesuffix(".0") + "k"
    return f"{tokens / 1_000_000:.1f}".removesuffix(".0") + "M"


def _digested(texts: int) -> str:
    """Mention the texts that were too long for the summariser; empty if there was none."""
    return f" ({texts:,} long text{'' if texts == 1 else 's'} by plain digest)" if texts else ""


def _share(size: ContextSize) -> str:
    return f"{short(size.tokens)}/{short(size.limit)} ({size.percent}%)"
