"""The arithmetic of a window: tokens in use, tokens left, and the output that a request asks for.

Every formula is a pure function of numbers. No function here builds or changes a message; `assemble` does
that.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import log2

from msgspec import Struct, structs

from refold.core.stage import Edit
from refold.model.errors import BudgetError, Overflow
from refold.model.tokens import Budget, Share, Tokens, WindowSource

SMALL_WINDOW = 8_000
"""Shares that shrink with the window are stated for a window of this size, and hold for all smaller ones."""


@lru_cache(maxsize=256)
def exact(share: float) -> Fraction:
    """The decimal as written: 0.55 of 100 is 55, not 55.00000000000001."""
    return Fraction(str(share))


def tokens_of(size: Tokens | Share, budget: Budget, *, effective: int = 0) -> int:
    """A size in tokens, rounded down. `effective` is the room that the instructions leave, for shares of it."""
    if isinstance(size, Tokens):
        return size.tokens
    if size.of == "effective":
        whole = effective
    else:
        whole = budget.window if size.of == "window" else limit_of(budget)
    return share_of(fraction_of(size, budget.window), whole)


def share_of(share: float, whole: int) -> int:
    """The share of the whole, rounded down."""
    numerator, denominator = _terms(share)
    # many times faster than multiplying the fraction
    return numerator * whole // denominator


@lru_cache(maxsize=256)
def _terms(share: float) -> tuple[int, int]:
    return exact(share).as_integer_ratio()


def fraction_of(share: Share, window: int) -> float:
    """The fraction that a share stands for in a window of this size."""
    if not share.sinks:
        return share.fraction
    doublings = max(0.0, log2(window / SMALL_WINDOW))
    return max(share.least, round(share.fraction - share.sinks * doublings, 4))


def limit_of(budget: Budget) -> int:
    """The size that shares of the limit refer to: the context budget, or the window if there is none."""
    return budget.limit or budget.window


def input_limit(budget: Budget, output: int | None = None) -> int:
    """The wall: most tokens of input, beside an output that defaults to the budget's and the reserve."""
    output = budget.max_output if output is None else output
    room = budget.window - output - tokens_of(budget.reserve, budget)
    return min(room, budget.limit or room, budget.max_input or room)


OUTPUT_PART = 8
"""No more than this part of the window is kept free for a reply whose length is not stated: a window of 8k must
not be all reply."""
STATED_SOURCES: tuple[WindowSource, ...] = ("override", "upstream")
"""Sources that a provider's refusal does not replace."""


def with_window(budget: Budget, window: int) -> Budget:
    """The budget of a window that a provider has stated. An output that no request states follows the window."""
    output = budget.max_output
    if not budget.is_output_stated:
        output = min(output, window // OUTPUT_PART)
    # A larger window than the known one is another model's, or a new version's: its input limit is not known.
    most = budget.max_input if window <= budget.window else 0
    return structs.replace(
        budget,
        window=window,
        source="learned",
        limit=min(budget.limit, window),
        max_input=most,
        max_output=output,
    )


@lru_cache(maxsize=256)
def arithmetic(budget: Budget, output: int | None = None) -> str:
    """The wall as a sum, for displays and errors. Cached, because it is stored with every commit."""
    output = budget.max_output if output is None else output
    reserve = tokens_of(budget.reserve, budget)
    room = budget.window - output - reserve
    text = f"window {budget.window:,} − output {output:,} − reserve {reserve:,} = {room:,}"
    if budget.max_input and budget.max_input < room:
        text += f", at most {budget.max_input:,} as the model's input"
    if budget.limit and budget.limit < room:
        text += f", limited to {budget.limit:,}"
    return text


# Output of a request
#
# Instructions (system prompt and tools) and output are taken from the window before the messages.
# If they leave less than a quarter of it, the window is tight: a request that does not fit asks for
# less output, until messages have that quarter. The output is never lowered below `least_output`,
# and a request that fits keeps the output that it asked for.

MESSAGES_PART = 4
"""Messages get a quarter of the window before the requested output is granted in full: the newest turn of a
coding agent rarely takes more."""
LEAST_OUTPUT = 4_096
"""Tokens: enough for a reply with some tool calls. A client that writes large files asks again if its reply was cut."""
LEAST_PART = 8
"""In small windows the least output is the window divided by this."""
BEYOND_THINKING = 1_024
"""Tokens of output beyond the thinking budget: Anthropic counts thinking as output, and refuses a budget that
takes all of it."""
STAGE = "output"
"""Stage name in the recorded edit."""
NO_SEQ = -1
"""Message number in the edit: the change concerns no message."""


class OutputRoom(Struct, frozen=True):
    """The parts of the window that one request's output and instructions take, in the provider's tokens."""

    window: int
    instructions: int
    asked: int
    """The requested output."""
    lowered: int
    """The output to ask for if the request does not fit with `asked`; equal to `asked` if it must not be lowered."""
    reserve: int
    max_input: int = 0
    """The model's own limit of input; 0 if it has none besides its window."""

    @property
    def left(self) -> int:
        """Tokens left for messages with the requested output; may be negative."""
        return self.left_with(self.asked)

    def left_with(self, output: int) -> int:
        """Tokens left for messages with this output."""
        most = self.window - output
        return min(most, self.max_input or most) - self.instructions

    @property
    def is_tight(self) -> bool:
        return self.left * MESSAGES_PART < self.window

    def arithmetic(self, output: int) -> str:
        """The room for messages, written as a sum."""
        left, rest = self.left_with(output), self.window - self.instructions - output
        was = f" (lowered from {self.asked:,})" if output < self.asked else ""
        held = min(self.reserve, left)
        kept = f" ({held:,} of them in reserve)" if held > 0 else ""
        most = f", at most {left:,} by the model's input of {self.max_input:,}" if left < rest else ""
        return (
            f"window {self.window:,} − instructions {self.instructions:,} − output {output:,}{was}"
            f" = {rest:,} left for messages{most}{kept}"
        )

    @property
    def warning(self) -> str:
        """The warning for a conversation with a tight window."""
        return (
            f"messages have less than a quarter of the window: {self.arithmetic(self.asked)};"
            " a smaller output, or fewer tools, leaves them more"
        )

    def edit(self, output: int) -> Edit:
        """The record of a request that was sent with less output than it asked for."""
        left = self.left_with(output)
        reason = f"output lowered: instructions take {self.instructions:,} of {self.window:,} tokens, {left:,} are left for messages"
        return Edit(STAGE, NO_SEQ, self.asked, output, reason)


@lru_cache(maxsize=256)
def output_room(budget: Budget, instructions: int) -> OutputRoom:
    """The room of a budget, with instructions of so many of the provider's tokens. Cached, because every
    decision about one request needs it again.
    """
    window, asked = budget.window, budget.max_output
    quarter = -(-window // MESSAGES_PART)
    wanted = max(window - instructions - quarter, least_output(window, budget.thinking))
    reserve = tokens_of(budget.reserve, budget)
    return OutputRoom(window, instructions, asked, min(asked, wanted), reserve, budget.max_input)


def output_after(
    found: Overflow, budget: Budget, *, output: int, prompt: int, instructions: int, reserve: int
) -> int:
    """The output to ask for after a provider refused a request with `prompt` tokens of input and this `output` as too long.

    If only input and output together were too long, the output is the rest of the window beside the input,
    or the least output if the provider stated no window. Otherwise it is the output of any request in the
    stated window.
    """
    is_stated = found.limit is not None and found.limit_of == "window"
    window = min(found.limit or budget.window, budget.window) if is_stated else budget.window
    least = min(output, least_output(window, budget.thinking))
    if found.kind == "input_plus_output":
        return max(least, min(output, window - prompt - reserve)) if is_stated else least
    stated = structs.replace(budget, window=window, limit=0, max_output=output)
    return output_room(stated, instructions).lowered


def least_output(window: int, thinking: int = 0) -> int:
    """The output below which no request is lowered. A request that asks for less keeps its output."""
    least = min(LEAST_OUTPUT, window // LEAST_PART)
    return max(least, thinking + BEYOND_THINKING) if thinking else least


def check_room(budget: Budget, *, instructions: int, lowers: bool = True) -> None:
    """Refuse a budget in which no conversation fits, before compaction is attempted. With `lowers`, the
    output counts as far lowered as the policy allows.

    Raises:
        BudgetError: output, reserve, system prompt and tools leave no room for messages.
    """
    sizes = output_room(budget, instructions)
    output = sizes.lowered if lowers else sizes.asked
    room = input_limit(budget, output)
    if room <= 0:
        raise BudgetError(
            f"max_output ({output:,}) and the reserve fill the whole window of {budget.window:,} tokens",
            hint=f"{sizes.arithmetic(output)}; lower max_output, or use a model with a larger window",
        )
    if instructions >= room:
        raise BudgetError(
            f"the system prompt and the tools take {instructions:,} of the {room:,} tokens there are for input",
            hint=f"{sizes.arithmetic(output)}; shorten them, lower max_output, or use a model with a larger window",
        )
