"""How large is the window, region by region, and how far can the number be trusted?

`measure` counts the regions of a window. A provider's report of a call is better than a count, but always one call old: an `Anchor`
keeps the report together with the history that it speaks of, so that only what came since has to be counted. `Meter` holds the
newest anchor and, apart from it, what was billed so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from msgspec import Struct, structs

from refold.core.budget import tokens_of
from refold.core.calibrate import RATIO_RANGE
from refold.core.view import View
from refold.model.budget import Budget
from refold.model.message import Message
from refold.model.tokens import Measurement, TokenCount, TokenCounter, Usage
from refold.model.window import Fixed, Tool

TOOL_TOKENS = 8
"""What providers add around each tool definition."""
LEAST_COUNTED = 500
"""Tokens: a report of a smaller prompt tells more of what the provider adds to each call than of how it counts."""


class FixedCost(Struct, frozen=True):
    """What system prompt and tools cost in every call; counted once."""

    system: TokenCount = TokenCount()
    tools: TokenCount = TokenCount()

    @property
    def total(self) -> TokenCount:
        return self.system + self.tools


def count_fixed(fixed: Fixed, counter: TokenCounter) -> FixedCost:
    system = sum(map(counter.message, fixed.system))
    tools = sum(_tool_tokens(tool, counter) for tool in fixed.tools)
    return FixedCost(TokenCount.of(system, counter.source), TokenCount.of(tools, counter.source))


def count_messages(messages: Sequence[Message], counter: TokenCounter) -> TokenCount:
    return TokenCount.of(sum(map(counter.message, messages)), counter.source)


def measure(view: View, cost: FixedCost, budget: Budget, *, summary: TokenCount | None = None) -> Measurement:
    """Take the window apart into regions.

    `input` is what the next call adds: everything after the last assistant message. `tail` is the rest of the active turn.
    Older tool results are a region of their own, because they are the first to go.
    """
    size = len(view)
    new = _input_start(view)
    tail = min(view.turn_starts[-1], new) if view.turn_starts else new
    older_results = view.result_tokens_between(0, tail)
    older = view.tokens_between(0, tail).tokens - older_results.tokens
    return Measurement(
        system=cost.system,
        tools=cost.tools,
        summary=summary or TokenCount(),
        history=TokenCount.of(older, view.counter.source),
        tool_results=older_results,
        tail=view.tokens_between(tail, new),
        input=view.tokens_between(new, size),
        reserve=budget.max_output + tokens_of(budget.reserve, budget),
        window=budget.window,
    )


class Anchor(Struct, frozen=True):
    """A provider's report: the prompt had this size when the history was this one."""

    prompt: int
    messages: int
    chain: bytes


def anchor(usage: Usage | None, view: View, *, counted: int) -> Anchor | None:
    """Take the report for a call that sent `view` as an anchor, if it can be one.

    Nothing reported, or something far from our own count of what was sent, is no anchor.
    """
    if usage is None or usage.context <= 0:
        return None
    low, high = RATIO_RANGE
    if counted > 0 and not low * counted <= usage.context <= high * counted:
        return None
    return Anchor(usage.context, len(view), view.chain)


def holds(last: Anchor, view: View) -> bool:
    """Does the view begin with the history of the report? After an undo or a fork it does not."""
    return last.messages <= len(view) and view.prefix(last.messages).chain == last.chain


def backfill(before: Usage, after: Usage, counted: Sequence[int]) -> tuple[int, ...]:
    """What the provider charged for messages that came between two calls, shared out by our own counts.

    Tool results have no report of their own: the growth of the prompt, less the reply that was added, is theirs. The
    shares add up to the growth; where it is not positive nothing can be said, and every share is 0.
    """
    growth = after.context - before.context - (before.output - before.reasoning)
    if growth <= 0 or not counted:
        return (0,) * len(counted)
    weights = counted if sum(counted) > 0 else (1,) * len(counted)
    total = sum(weights)
    bounds = [growth * upto // total for upto in accumulate(weights, initial=0)]
    return tuple(stop - start for start, stop in pairwise(bounds))


class Meter(Struct, frozen=True):
    """Two numbers that are often mistaken for each other: how large the context is, and what has been billed so far."""

    anchor: Anchor | None = None
    billed: Usage = Usage()
    calls: int = 0
    ratio: float = 0.0
    """How many of the provider's tokens one of ours was in the last report, instructions included; 0 where that is not known."""


def record_call(meter: Meter, usage: Usage | None, view: View, *, counted: int) -> Meter:
    """Account for a call that sent `view`. A report that is no anchor is still billed."""
    fresh = anchor(usage, view, counted=counted)
    is_telling = fresh is not None and counted >= LEAST_COUNTED
    ratio = fresh.prompt / counted if fresh and is_telling else meter.ratio
    return Meter(fresh or meter.anchor, meter.billed + (usage or Usage()), meter.calls + 1, ratio)


def forget_size(meter: Meter) -> Meter:
    """After a compaction or a change of model the last report speaks of another window; the bill stays."""
    return structs.replace(meter, anchor=None, ratio=0.0)


def _input_start(view: View) -> int:
    start = len(view)
    while start > 0 and view[start - 1].message.role != "assistant":
        start -= 1
    return start


def _tool_tokens(tool: Tool, counter: TokenCounter) -> int:
    texts = (tool.name, tool.description, tool.schema)
    return TOOL_TOKENS + sum(counter.text(text) for text in texts if text)
