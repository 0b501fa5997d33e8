"""How large is the window, region by region, and how far can the number be trusted?

`measure` counts the regions of a window. A provider's report of a call is better than a count, but always one call old: an `Anchor`
keeps the report together with the history that it speaks of, so that only what came since has to be counted. `Meter` holds the
newest anchor and, apart from it, what was billed so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec
from msgspec import Struct, structs

from refold.core.budget import tokens_of
from refold.core.view import View
from refold.model.budget import Budget
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    compaction_of,
)
from refold.model.tokens import Measurement, Source, TokenCount, TokenCounter, Usage
from refold.model.window import Fixed, Tool, Window

# Calibration: how a provider's counts relate to ours, learnt from what it reports.

RATIO_RANGE = (0.5, 5.0)
"""What a provider's count of the same text can be of ours; anything else is not a count of it."""
STABLE_SHARE = 0.10
"""Two observations of the instruction overhead agree when they differ by no more than this."""
CORRECTION_SHARE = 0.15
"""An estimate of the instruction overhead is corrected when it is further off than this."""
MIN_GROWTH = 0.05
"""Two calls that differ by less than this tell more about noise than about growth."""


class Calibration(Struct, frozen=True):
    """What was learnt about one model. Kept per model across restarts."""

    reported: int = 0
    counted: int = 0
    ratio: float = 1.0
    overhead: int | None = None
    """Instruction tokens as the provider counts them, once two observations agreed."""
    last_overhead: int | None = None
    last_prompt: int = 0
    last_counted: int = 0


def observe(calibration: Calibration, *, prompt: int, counted: int, instructions: int) -> Calibration:
    """Learn from one call: its reported prompt, our count of its messages, our estimate of its instructions."""
    if counted <= 0 or prompt < RATIO_RANGE[0] * counted:
        return calibration
    learnt = _observe_overhead(calibration, prompt, counted)
    if learnt.overhead != calibration.overhead:
        learnt = structs.replace(learnt, reported=0, counted=0)
    return _observe_ratio(learnt, prompt - instruction_tokens(instructions, learnt), counted)


def _observe_ratio(calibration: Calibration, messages: int, counted: int) -> Calibration:
    """Take a call's messages into the sums, unless the report leaves too little for them: cache accounting does that."""
    low, high = RATIO_RANGE
    if messages <= 0 or messages < low * counted:
        return calibration
    reported_sum, counted_sum = calibration.reported + messages, calibration.counted + counted
    ratio = min(high, max(low, reported_sum / counted_sum))
    return structs.replace(calibration, reported=reported_sum, counted=counted_sum, ratio=ratio)


def _observe_overhead(calibration: Calibration, prompt: int, counted: int) -> Calibration:
    """Compare with the call before: the slope is the ratio, the rest the overhead."""
    more, last = counted - calibration.last_counted, calibration.last_overhead
    remembered = structs.replace(calibration, last_prompt=prompt, last_counted=counted)
    if not calibration.last_counted or abs(more) < MIN_GROWTH * counted:
        return remembered
    slope = (prompt - calibration.last_prompt) / more
    observed = round(prompt - slope * counted)
    if not RATIO_RANGE[0] <= slope <= RATIO_RANGE[1] or observed < 0:
        return structs.replace(remembered, last_overhead=None)
    agrees = last is not None and abs(observed - last) <= STABLE_SHARE * max(last, 1)
    best = observed if agrees else calibration.overhead
    return structs.replace(remembered, overhead=best, last_overhead=observed)


def calibrated(tokens: int, calibration: Calibration) -> int:
    """Our count in the provider's tokens."""
    return round(tokens * calibration.ratio)


def instruction_tokens(estimate: int, calibration: Calibration) -> int:
    """The instruction overhead to plan with: the estimate, unless the provider's own is known to be far from it."""
    observed = calibration.overhead
    if observed is None or abs(observed - estimate) <= CORRECTION_SHARE * estimate:
        return estimate
    return observed


def forget_sums(calibration: Calibration) -> Calibration:
    """After an edit to what was sent, the sums speak of text that is gone; the ratio stays."""
    return structs.replace(calibration, reported=0, counted=0, last_prompt=0, last_counted=0)


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


# An estimate of tokens without a tokenizer: fixed arithmetic over characters and bytes. A policy
# that decides on a rough count must always decide on the same one. So the estimate is exact
# arithmetic with golden values, and not an approximation of a better count.

MEDIA_TOKENS = 256
"""Flat cost of an image or file: its true cost depends on resolution and provider."""
_MESSAGE_CHARACTERS = 12
_SYSTEM_BLOCK_CHARACTERS = 20
_TOOL_CHARACTERS = 20


class CharacterEstimate:
    """Two and a half characters to a token: text in characters, ids and arguments in bytes, media flat."""

    source: Source = "estimated"

    def text(self, text: str, /) -> int:
        return len(text) * 2 // 5

    def message(self, message: Message, /) -> int:
        parts = list(_flat(message.parts))
        characters = sum(map(_characters, parts)) + _MESSAGE_CHARACTERS
        if message.role == "system":
            characters += _SYSTEM_BLOCK_CHARACTERS * _blocks(message)
        media = sum(isinstance(part, Image | File) for part in parts)
        return characters * 2 // 5 + MEDIA_TOKENS * media

    def tools(self, tools: Iterable[Tool], /) -> int:
        """What tool definitions cost: name, description, parameters and framing."""
        return sum(map(_tool_characters, tools)) * 2 // 5


def estimate_window(window: Window) -> int:
    """All of a window by its characters: instructions with their summary, messages and tools."""
    counter = CharacterEstimate()
    messages = (*window.system, *window.sent)
    return sum(map(counter.message, messages)) + counter.tools(window.fixed.tools)


def _flat(parts: Iterable[Part]) -> Iterable[Part]:
    """The parts of a message and those inside its results."""
    for part in parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.parts


def _characters(part: Part) -> int:
    match part:
        case Text() | Reasoning():
            return len(part.text)
        case ToolCall():
            return _bytes(part.id) + _bytes(part.kind) + _bytes(part.name) + _bytes(part.arguments)
        case ToolResult():
            return _bytes(part.call_id)
        case Opaque():
            return _compacted(part)
        case _:
            return 0


def _compacted(part: Opaque) -> int:
    """Characters of a provider's own compaction; nothing else that is opaque counts."""
    compaction = compaction_of(part)
    return compaction.characters if compaction else 0


def _blocks(message: Message) -> int:
    """A system prompt in blocks pays for each of them; one string does not."""
    texts = [part for part in message.parts if isinstance(part, Text)]
    return len(texts) if len(texts) > 1 or any(part.raw for part in texts) else 0


def _tool_characters(tool: Tool) -> int:
    schema = msgspec.json.format(tool.schema, indent=-1) if tool.schema else ""
    return _bytes(tool.name) + _bytes(tool.description) + _bytes(schema) + _TOOL_CHARACTERS


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
