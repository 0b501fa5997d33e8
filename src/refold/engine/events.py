"""Events: what was done to a conversation, how large it was before and after, and why.

An event has counts, reasons and names, and nothing of what was said, so it can go into a log, to another program, or onto a screen.
Actions return events; the conversation queues them in the order of its commits and delivers them after each.

    compaction_start ── compaction_end      messages leave the window; always both, in this order
    pruned                                  messages stay and are made smaller
    summary_written, summary_failed         a summariser was asked, ahead of time or because somebody waits
    recovered                               a request that was too long went through, made smaller
    undone                                  the last change was taken back

A compaction that waits for a model begins before the model is asked, and ends with the switch:

    manual, rerun, new, resume     start ──────────── waits ──────────── switch ── end
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct, structs

from refold.core.fold import Folded
from refold.core.plan import Decision, Plan, SummaryRequest
from refold.core.shown import Edit
from refold.model.errors import RefoldError
from refold.model.summary import Summary
from refold.model.tokens import Source, Usage
from refold.model.trigger import Moment

if TYPE_CHECKING:
    from refold.engine.state import Change, State


_log = logging.getLogger("refold")

ASKED = "asked for"
OVERTAKEN = "the conversation was compacted meanwhile"
NOTHING = "there is nothing to take out"
NO_SUMMARY = "no summary could be written"
UNFIT = "no summary passed its checks"
STOPPED = "it was stopped"

Price: TypeAlias = Callable[[str, Usage], float]
"""What a model's usage costs, in dollars."""

Path: TypeAlias = Literal["automatic", "ahead", "manual", "overflow", "rerun", "new", "resume", "arrival"]
"""How it came about: by itself, by itself with a summary that was written ahead, because somebody asked, after a refusal as too
long, done again, with a session that begins or goes on, or as a message came in."""
CompactionOutcome: TypeAlias = Literal["installed", "skipped", "failed", "superseded"]
"""The window is another one now; it is as it was, because nothing could be gained; it could not be done; somebody was first."""
Author: TypeAlias = Literal["", "model", "digest"]
"""Who wrote the summary: a model, the messages' own words, or nobody where there is none."""


class Regions(Struct, frozen=True):
    """Tokens of a window, region by region."""

    system: int = 0
    tools: int = 0
    summary: int = 0
    history: int = 0
    tool_results: int = 0
    tail: int = 0
    input: int = 0


class Size(Struct, frozen=True):
    """How large a context is: the next request, instructions included."""

    tokens: int
    source: Source
    """Where the count comes from; the one before and the one after come from the same."""
    limit: int
    """What a request may have."""
    percent: int
    """Of the limit, rounded down: what is not full is never called full."""
    regions: Regions = Regions()


class Reduction(Struct, frozen=True):
    """What one stage did."""

    stage: str
    messages: int
    results: int
    """How many of the messages are results of tools."""
    before: int
    """Tokens of these messages before and after."""
    after: int


class Event(Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something that was done. `conversation` and `branch` are empty where nothing is stored."""

    conversation: str = ""
    branch: str = ""

    @property
    def kind(self) -> str:
        """Its name, such as `compaction_end`."""
        return str(type(self).__struct_config__.tag)


class CompactionStart(Event, frozen=True, kw_only=True, tag="compaction_start"):
    path: Path
    moment: Moment | None = None
    """When the policy looked, where it acted by itself."""
    reason: str
    before: Size


class CompactionEnd(Event, frozen=True, kw_only=True, tag="compaction_end"):
    path: Path
    moment: Moment | None = None
    reason: str
    outcome: CompactionOutcome
    problem: str = ""
    """Why nothing came of it; empty where something did."""
    before: Size
    after: Size
    author: Author = ""
    model: str = ""
    """Who wrote it, where that is known."""
    covered: int = 0
    """How many messages the summary stands for."""
    digested: int = 0
    """How many of their texts were too long for the summariser, which was given plain digests of them."""
    usage: Usage = Usage()
    """What the summary cost, whenever that was: `summary_written` has told it before."""
    dollars: float = 0.0
    reductions: tuple[Reduction, ...] = ()
    """What stages did on the way."""


class Pruned(Event, frozen=True, kw_only=True, tag="pruned"):
    path: Path
    moment: Moment | None = None
    reason: str
    before: Size
    after: Size
    reductions: tuple[Reduction, ...] = ()


class SummaryWritten(Event, frozen=True, kw_only=True, tag="summary_written"):
    first: int
    """The messages numbered `first` up to, not including, `last`."""
    last: int
    is_awaited: bool
    """Does somebody wait for it, or was it written ahead?"""
    tokens: int
    digested: int = 0
    """How many texts were too long for the summariser, which was given plain digests of them."""
    model: str = ""
    usage: Usage = Usage()
    """All that was asked for it, in vain too."""
    dollars: float = 0.0


class SummaryFailed(Event, frozen=True, kw_only=True, tag="summary_failed"):
    first: int
    last: int
    is_awaited: bool
    problem: str
    usage: Usage = Usage()
    dollars: float = 0.0


class Recovered(Event, frozen=True, kw_only=True, tag="recovered"):
    attempts: int
    """How often the request was made smaller."""
    stated: int | None
    """The limit that the provider has stated, as we count; None where it stated none."""
    size: Size
    """What it took in the end."""


class Undone(Event, frozen=True, kw_only=True, tag="undone"):
    decision: Decision
    """What was taken back."""
    reason: str
    """Why that had been done."""
    before: Size
    after: Size


Listener: TypeAlias = Callable[[Event], object]
"""Is called at once, in the thread of the conversation: what takes long belongs elsewhere."""


class EventQueue:
    """Delivers the events of one conversation to its listener, in the order in which they were put."""

    def __init__(self, listener: Listener | None = None, price: Price = lambda _model, _usage: 0.0) -> None:
        self.conversation, self.branch = "", ""
        self._listener, self._price = listener, price
        self._waiting: deque[Event] = deque()

    def put(self, events: Iterable[Event]) -> None:
        """Queue events; `deliver` hands them to the listener."""
        if self._listener is not None:
            self._waiting.extend(events)

    def deliver(self) -> None:
        """Call the listener with every queued event. A listener that calls the conversation starts a task for it."""
        while self._waiting and self._listener is not None:
            event = self._waiting.popleft()
            if isinstance(event, CompactionEnd) and event.model:
                event = structs.replace(event, dollars=self._price(event.model, event.usage))
            try:
                self._listener(structs.replace(event, conversation=self.conversation, branch=self.branch))
            except Exception as error:  # noqa: BLE001  # code of the user's: its failure must not stop the conversation
                _log.warning("a listener failed on %s: %s", event.kind, type(error).__name__)

    def summary_event(
        self,
        request: SummaryRequest,
        summary: Summary | None,
        bill: Mapping[str, Usage],
        problem: str,
        *,
        is_awaited: bool,
    ) -> Event:
        """A summariser has answered, or could not; the bill is by model."""
        first, last, usage = request.first, request.last, sum(bill.values(), Usage())
        dollars = sum(self._price(model, used) for model, used in bill.items())
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


def sized(state: State, folded: Folded | None = None) -> Size:
    """How large the context is, or would be if this were shown."""
    shown = state.folded if folded is None else folded
    measurement, limit = state.measured(shown), state.limit
    content = measurement.content
    source = content.source if content.tokens else shown.shown.counter.source
    regions = Regions(**{name: getattr(measurement, name).tokens for name in Regions.__struct_fields__})
    percent = content.tokens * 100 // limit if limit > 0 else 100
    return Size(content.tokens, source, limit, percent, regions)


def pruned(state: State, change: Change, path: Path, moment: Moment | None = None) -> Pruned:
    """Messages stay and are smaller now."""
    before, after = change.before, change.after
    if change.raw:  # of a message that was cut as it arrived, all of it would have been shown
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
    """The events of a plan that was carried out; none where it changed nothing."""
    moment = asked.now.moment
    path: Path = "ahead" if is_ahead else "automatic"
    if moment in ("manual", "overflow"):
        path = moment
    is_installed = False
    if _is_compaction(asked, before.folded):
        start = CompactionStart(path=path, moment=moment, reason=asked.reason, before=sized(before))
        end = _end_of(start, asked, done, change)
        is_installed = end.outcome == "installed"
        yield start
        yield structs.replace(end, after=sized(after))
    if change is not None and not is_installed:
        yield pruned(after, change, path, moment)


def _is_compaction(asked: Plan, folded: Folded) -> bool:
    """Does the plan take messages out, or was it asked for or forced, and so told in any case?"""
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
    return with_summary(end, summary) if summary is not None else end


def end_of(start: CompactionStart, outcome: CompactionOutcome, problem: str = "") -> CompactionEnd:
    """The end of a compaction; what is shown is as it was unless `after` is set."""
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
        author="model" if summary.kind == "model" else "digest",
        model=summary.model,
        covered=summary.last - summary.first,
        digested=summary.digested,
        usage=summary.usage,
    )


def as_part_of(start: CompactionStart, events: Iterable[Event]) -> Iterator[Event]:
    """The events of the switch that ends a compaction which began earlier: the end is that of the whole, and has no second start."""
    end = end_of(start, "skipped", NOTHING)
    for event in events:
        if isinstance(event, CompactionEnd):
            end = structs.replace(
                event, path=start.path, moment=start.moment, reason=start.reason, before=start.before
            )
        elif not isinstance(event, CompactionStart):
            yield event
    yield end


def reductions(edits: Sequence[Edit], before: Folded) -> tuple[Reduction, ...]:
    """What each stage did, in the order of the stages."""
    results = {item.seq for item in before.items.items if item.message.results}
    stages = dict.fromkeys(edit.stage for edit in edits)
    return tuple(
        _reduction(stage, [edit for edit in edits if edit.stage == stage], results) for stage in stages
    )


def _reduction(stage: str, edits: Sequence[Edit], results: Collection[int]) -> Reduction:
    numbers = {edit.seq for edit in edits}
    before, after = sum(edit.before for edit in edits), sum(edit.after for edit in edits)
    return Reduction(stage, len(numbers), len(numbers.intersection(results)), before, after)


def problem_of(error: BaseException) -> str:
    """What went wrong, in words of ours; the text of other errors may hold anything."""
    if isinstance(error, RefoldError):
        return error.message
    return type(error).__name__ if isinstance(error, Exception) else STOPPED


# Events as people read them.

_ENDED = {"skipped": "skipped", "failed": "failed", "superseded": "not needed any more"}
_INSTALLED = {"new": "New session", "resume": "Session resumed", "rerun": "Compacted again"}
"""What it is called by its path, where that is not `Compacted`."""


def pruning(event: Pruned) -> str:
    """What pruning did, and how full the window is now."""
    before, after = (sum(getattr(one, name) for one in event.reductions) for name in ("before", "after"))
    is_output = all(one.results == one.messages for one in event.reductions)
    what, saved = "Tool outputs pruned" if is_output else "Messages shortened", before - after
    percent = f", -{saved * 100 // before}%" if before > 0 and saved >= 0 else ""
    return f"🔧 {what} ({short(before)} → {short(after)}{percent})\n  📊 Context: {_share(event.after)}"


def compaction(event: CompactionEnd) -> str:
    """What a compaction did, and what the window is made of now; one line where it did nothing."""
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
    """Any event as a text; of several lines where it is a notice of pruning or of a compaction."""
    match event:
        case Pruned():
            return pruning(event)
        case CompactionEnd():
            return compaction(event)
        case CompactionStart():
            return f"⚙️ Compacting ({_share(event.before)}): {event.reason}"
        case SummaryWritten():
            said = f"📝 Summary of messages {event.first} to {event.last - 1} written, {short(event.tokens)} tokens"
            return f"{said}{_digested(event.digested)}"
        case SummaryFailed():
            return f"📝 No summary of messages {event.first} to {event.last - 1}: {event.problem}"
        case Recovered():
            return f"🩹 The provider took it in the end, at {_share(event.size)}"
        case Undone():
            return f"↩️ Taken back ({short(event.before.tokens)} → {short(event.after.tokens)})"
    return event.kind


def notice(event: Event, *, pruning: bool = True, compaction: bool = True) -> str:
    """The text of an event, by what people want to be told; empty where they do not."""
    if isinstance(event, Pruned):
        return text_of(event) if pruning else ""
    is_compaction = isinstance(event, CompactionStart | CompactionEnd)
    return text_of(event) if compaction or not is_compaction else ""


def short(tokens: int) -> str:
    """A number of tokens as one reads it at a glance: 300, 2.1k, 150k, 1M."""
    if tokens < 1_000:
        return str(tokens)
    if tokens < 999_500:  # from there on it would be rounded to 1000k
        decimals = 0 if tokens >= 100_000 else 1
        return f"{tokens / 1_000:.{decimals}f}".removesuffix(".0") + "k"
    return f"{tokens / 1_000_000:.1f}".removesuffix(".0") + "M"


def _digested(texts: int) -> str:
    """That some texts were too long for the summariser; nothing where none was."""
    return f" ({texts:,} long text{'' if texts == 1 else 's'} by plain digest)" if texts else ""


def _share(size: Size) -> str:
    return f"{short(size.tokens)}/{short(size.limit)} ({size.percent}%)"
