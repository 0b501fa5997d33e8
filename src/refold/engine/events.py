"""What is told about a conversation while it happens: values that say what was done, how much it was before and after, and why.

One idea: whoever listens can follow a context without asking for it. An event has counts, reasons and names, and nothing of what
was said, so it can go into a log, to another program, or onto a screen.

    compaction_start ── compaction_end      messages leave the window; always both, in this order
    pruned                                  messages stay and are made smaller
    summary_written, summary_failed         a summariser was asked, ahead of time or because somebody waits
    recovered                               a request that was too long went through, made smaller
    undone                                  the last change was taken back
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.plan import Decision
from refold.model.tokens import Measurement, Source, TokenCounter, Usage
from refold.model.trigger import Moment

Path: TypeAlias = Literal["automatic", "ahead", "manual", "overflow", "rerun", "new", "resume", "arrival"]
"""How it came about: by itself, by itself with a summary that was written ahead, because somebody asked, after a refusal as too
long, done again, with a session that begins or goes on, or as a message came in."""
Outcome: TypeAlias = Literal["installed", "skipped", "failed", "superseded"]
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
    outcome: Outcome
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


def size_of(measurement: Measurement, limit: int, counter: TokenCounter) -> Size:
    """What was measured, as it is told; where nothing is there, by whoever would have counted it."""
    content = measurement.content
    source = content.source if content.tokens else counter.source
    regions = Regions(**{name: getattr(measurement, name).tokens for name in Regions.__struct_fields__})
    percent = content.tokens * 100 // limit if limit > 0 else 100
    return Size(content.tokens, source, limit, percent, regions)
