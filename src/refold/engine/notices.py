"""Events as people read them.

One idea: a notice fits into a chat between two messages: what was done, from how much to how much, and how full the window is now.
Numbers are as short as one speaks them.

    🔧 Tool outputs pruned (12.4k → 2.1k, -83%)
      📊 Context: 18.5k/150k (12%)
"""

from __future__ import annotations

from refold.engine.events import (
    CompactionEnd,
    CompactionStart,
    Event,
    Pruned,
    Recovered,
    Size,
    SummaryFailed,
    SummaryWritten,
    Undone,
)

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
