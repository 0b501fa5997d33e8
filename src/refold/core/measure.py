"""Measures a window region by region, with the source of each number.

`measure` counts the regions of a window. A provider's usage report is more exact than a count, but one
call old: an `Anchor` stores the report with the history that it belongs to, so that only later messages
have to be counted. `Meter` holds the newest anchor and, separately, the billed total. `Calibration` holds
the ratio of the provider's counts to ours, and `CharacterEstimate` counts without a tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import ceil

import msgspec
from msgspec import Struct, structs

from refold.core.view import View
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
from refold.model.tokens import Budget, CountSource, Measurement, TokenCount, TokenCounter, Usage, tokens_of
from refold.model.window import FixedFields, Tool, Window

# Calibration: the ratio of a provider's token counts to ours, learnt from its usage reports

RATIO_RANGE = (0.5, 5.0)
"""Bounds of the ratio between a provider's count of a text and ours. A report outside of them is no count of that text."""
STABLE_SHARE = 0.10
"""Two observations of the instruction overhead agree if they differ by at most this share."""
CORRECTION_SHARE = 0.15
"""An estimate of the instruction overhead is corrected if it is wrong by more than this share."""
MIN_GROWTH = 0.05
"""Two calls that differ by less than this share show noise rather than growth."""


class Calibration(Struct, frozen=True):
    """The calibration of one model, kept across restarts."""

    reported: int = 0
    counted: int = 0
    ratio: float = 1.0
    overhead: int | None = None
    """Instruction tokens in the provider's count, once two observations have agreed."""
    last_overhead: int | None = None
    last_prompt: int = 0
    last_counted: int = 0
    instructions: int | None = None
    """Our count of the instructions that `overhead` belongs to."""


def observe(calibration: Calibration, *, prompt: int, counted: int, instructions: int) -> Calibration:
    """Learn from one call: the reported prompt, our count of its messages, our estimate of its instructions."""
    if counted <= 0 or prompt < RATIO_RANGE[0] * counted:
        return calibration
    if calibration.instructions != instructions:
        calibration = structs.replace(
            calibration,
            instructions=instructions,
            overhead=None,
            last_overhead=None,
            last_prompt=0,
            last_counted=0,
        )
    learnt = _observe_overhead(calibration, prompt, counted)
    if learnt.overhead != calibration.overhead:
        learnt = structs.replace(learnt, reported=0, counted=0)
    return _observe_ratio(learnt, prompt - instruction_tokens(instructions, learnt), counted)


def _observe_ratio(calibration: Calibration, messages: int, counted: int) -> Calibration:
    """Add a call's messages to the sums, unless the report leaves too few tokens for them, as cache accounting can."""
    low, high = RATIO_RANGE
    if messages <= 0 or messages < low * counted:
        return calibration
    reported_sum, counted_sum = calibration.reported + messages, calibration.counted + counted
    ratio = min(high, max(low, reported_sum / counted_sum))
    return structs.replace(calibration, reported=reported_sum, counted=counted_sum, ratio=ratio)


def _observe_overhead(calibration: Calibration, prompt: int, counted: int) -> Calibration:
    """Compare with the previous call: the slope is the ratio, the remainder the overhead."""
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


def instruction_tokens(estimate: int, calibration: Calibration) -> int:
    """The instruction overhead to plan with: the estimate, unless the observed one is far from it."""
    observed = calibration.overhead
    if observed is None or abs(observed - estimate) <= CORRECTION_SHARE * estimate:
        return estimate
    return observed


def observed_instructions(estimate: int, calibration: Calibration) -> int | None:
    """The observed overhead of these instructions in our tokens; None if our estimate is near enough to it."""
    if calibration.instructions != estimate:
        return None
    tokens = instruction_tokens(estimate, calibration)
    return None if tokens == estimate else ceil(tokens / calibration.ratio)


def forget_sums(calibration: Calibration) -> Calibration:
    """Clear the sums after an edit, because they count text that is no longer sent. The ratio stays."""
    return structs.replace(calibration, reported=0, counted=0, last_prompt=0, last_counted=0)


TOOL_TOKENS = 8
"""Tokens that providers add for each tool definition."""
LEAST_COUNTED = 500
"""Tokens. In a smaller prompt the provider's fixed additions per call outweigh the counting ratio."""


class FixedCost(Struct, frozen=True):
    """Tokens of the system prompt and the tools in every call, counted once."""

    system: TokenCount = TokenCount()
    tools: TokenCount = TokenCount()

    @property
    def total(self) -> TokenCount:
        return self.system + self.tools

    def with_total(self, tokens: int) -> FixedCost:
        """The same with another total, divided in the same proportion."""
        total, source = self.total.tokens, self.total.source
        system = tokens * self.system.tokens // total if total else tokens
        return FixedCost(TokenCount.of(system, source), TokenCount.of(tokens - system, source))


def count_fixed(fixed: FixedFields, counter: TokenCounter) -> FixedCost:
    system = sum(map(counter.message, fixed.system))
    tools = sum(_tool_tokens(tool, counter) for tool in fixed.tools)
    return FixedCost(TokenCount.of(system, counter.source), TokenCount.of(tools, counter.source))


def count_messages(messages: Sequence[Message], counter: TokenCounter) -> TokenCount:
    return TokenCount.of(sum(map(counter.message, messages)), counter.source)


def measure(view: View, cost: FixedCost, budget: Budget, *, summary: TokenCount | None = None) -> Measurement:
    """Split the window into regions.

    `input` is the part that the next call adds: everything after the last assistant message. `tail` is the
    rest of the active turn. Older tool results are a region of their own, because they are reduced first.
    """
    size, starts = view.size, view.turn_starts
    new = _input_start(view)
    tail = min(starts[-1], new) if starts else new
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
    """A provider's report: the size of the prompt that was sent for a known history."""

    prompt: int
    messages: int
    chain: bytes


def anchor(usage: Usage | None, view: View, *, counted: int) -> Anchor | None:
    """The report of the call that sent `view`, as an anchor.

    None if nothing was reported, or if the report is far from our own count of the prompt.
    """
    context = usage.context if usage is not None else 0
    if context <= 0:
        return None
    low, high = RATIO_RANGE
    if counted > 0 and not low * counted <= context <= high * counted:
        return None
    return Anchor(context, view.size, view.chain)


def holds(last: Anchor, view: View) -> bool:
    """True if the view begins with the anchor's history. After an undo or a fork it does not."""
    return last.messages <= view.size and view.chain_at(last.messages) == last.chain


def backfill(before: Usage, after: Usage, counted: Sequence[int]) -> tuple[int, ...]:
    """The provider's tokens for messages added between two calls, divided in proportion to our own counts.

    Tool results have no report of their own: their tokens are the growth of the prompt minus the reply
    that was added. The shares add up to the growth. If the growth is not positive it tells nothing, and
    every share is 0.
    """
    growth = after.context - before.context - (before.output - before.reasoning)
    if growth <= 0 or not counted:
        return (0,) * len(counted)
    weights = counted if sum(counted) > 0 else (1,) * len(counted)
    total = sum(weights)
    bounds = [growth * upto // total for upto in accumulate(weights, initial=0)]
    return tuple(stop - start for start, stop in pairwise(bounds))


class Meter(Struct, frozen=True):
    """The size of the context and the billed total, which are different numbers."""

    anchor: Anchor | None = None
    billed: Usage = Usage()
    calls: int = 0
    ratio: float = 0.0
    """The provider's tokens per token of ours in the last report, instructions included; 0 if unknown."""


def record_call(meter: Meter, usage: Usage | None, view: View, *, counted: int) -> Meter:
    """Record a call that sent `view`. A report that cannot be an anchor is still billed."""
    fresh = anchor(usage, view, counted=counted)
    is_telling = fresh is not None and counted >= LEAST_COUNTED
    ratio = fresh.prompt / counted if fresh and is_telling else meter.ratio
    return Meter(fresh or meter.anchor, meter.billed + (usage or Usage()), meter.calls + 1, ratio)


def observe_refusal(meter: Meter, prompt: int | None, *, counted: int) -> Meter:
    """Learn the ratio from a refusal that states the size of the prompt, of which we counted `counted` tokens."""
    low, high = RATIO_RANGE
    if prompt is None or counted < LEAST_COUNTED or not low * counted <= prompt <= high * counted:
        return meter
    return structs.replace(meter, ratio=max(meter.ratio, prompt / counted))


def forget_size(meter: Meter) -> Meter:
    """Drop the anchor after a compaction or a change of model: it belongs to another window. The bill stays."""
    return structs.replace(meter, anchor=None, ratio=0.0)


def _input_start(view: View) -> int:
    start = len(view)
    while start > 0 and view[start - 1].message.role != "assistant":
        start -= 1
    return start


def _tool_tokens(tool: Tool, counter: TokenCounter) -> int:
    texts = (tool.name, tool.description, tool.schema)
    return TOOL_TOKENS + sum(counter.text(text) for text in texts if text)


# Estimate without a tokenizer
#
# Fixed arithmetic over characters and bytes. A policy that decides on a rough count must always
# decide on the same one, so this is exact arithmetic with golden values, not an approximation of a
# better count.

MEDIA_TOKENS = 256
"""Flat cost of an image or file: its true cost depends on resolution and provider."""
_MEDIA = frozenset((Image, File))
_MESSAGE_CHARACTERS = 12
_SYSTEM_BLOCK_CHARACTERS = 20
_TOOL_CHARACTERS = 20


class CharacterEstimate:
    """Counts two and a half characters as one token: text in characters, ids and arguments in bytes, media flat."""

    source: CountSource = "estimated"

    def text(self, text: str, /) -> int:
        return len(text) * 2 // 5

    def message(self, message: Message, /) -> int:
        characters, media = _MESSAGE_CHARACTERS, 0
        for part in _flat(message.parts):
            if type(part) is Text:  # most parts, without a call
                characters += len(part.text)
            elif type(part) in _MEDIA:
                media += 1
            else:
                characters += _characters(part)
        if message.role == "system":
            characters += _SYSTEM_BLOCK_CHARACTERS * _blocks(message)
        return characters * 2 // 5 + MEDIA_TOKENS * media

    def tools(self, tools: Iterable[Tool], /) -> int:
        """Tokens of tool definitions: name, description, parameters and framing."""
        return sum(map(_tool_characters, tools)) * 2 // 5


def estimate_window(window: Window) -> int:
    """Tokens of a whole window by its characters: system prompt with summary, messages and tools."""
    counter = CharacterEstimate()
    messages = (*window.system, *window.sent)
    return sum(map(counter.message, messages)) + counter.tools(window.fixed.tools)


def _flat(parts: tuple[Part, ...]) -> Sequence[Part]:
    """The parts of a message and those inside its results."""
    if len(parts) == 1 and type(parts[0]) is ToolResult:
        return (parts[0], *parts[0].parts)
    if ToolResult not in map(type, parts):
        return parts
    return [one for part in parts for one in (part, *(part.parts if type(part) is ToolResult else ()))]


def _characters(part: Part) -> int:
    if type(part) is Text:
        return len(part.text)
    match part:
        case Reasoning():
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
    """Characters of a provider's own compaction; other opaque parts count nothing."""
    compaction = compaction_of(part)
    return compaction.characters if compaction else 0


def _blocks(message: Message) -> int:
    """Blocks of a system prompt, each of which costs extra; 0 if the prompt is one string."""
    texts = [part for part in message.parts if isinstance(part, Text)]
    return len(texts) if len(texts) > 1 or any(part.raw for part in texts) else 0


def _tool_characters(tool: Tool) -> int:
    schema = msgspec.json.format(tool.schema, indent=-1) if tool.schema else ""
    return _bytes(tool.name) + _bytes(tool.description) + _bytes(schema) + _TOOL_CHARACTERS


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
