"""Token counts with their sources, a provider's usage report and its cost, and the budget of a window with the sums over it.

A number without its source misleads. A provider's report, a tokenizer's count and an estimate can be
added, but the sum is only as good as its weakest term, and a difference between different sources is
meaningless. A size in a budget is tagged with its unit, so that `95` never means percent in one place and
tokens in another, and its range is checked in the constructor.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import log2
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct, structs

from refold.model.errors import MAX_TOKENS, MIN_WINDOW, NOT_TOKENS, BudgetError, ConfigError
from refold.model.message import Message

CountSource: TypeAlias = Literal["reported", "counted", "estimated"]
Region: TypeAlias = Literal[
    "system", "tools", "summary", "history", "tool_results", "tail", "input", "reserve", "free"
]


class TokenCount(Struct, frozen=True, gc=False):
    """A number of tokens as the sum of its terms, one per source."""

    reported: int = 0
    counted: int = 0
    estimated: int = 0

    @classmethod
    def of(cls, tokens: int, source: CountSource) -> TokenCount:
        if source == "counted":
            return cls(0, tokens)
        return cls(0, 0, tokens) if source == "estimated" else cls(tokens)

    @property
    def tokens(self) -> int:
        return self.reported + self.counted + self.estimated

    @property
    def source(self) -> CountSource:
        """The weakest source among the terms."""
        if self.estimated:
            return "estimated"
        return "reported" if self.reported and not self.counted else "counted"

    def __add__(self, other: TokenCount) -> TokenCount:
        return TokenCount(
            self.reported + other.reported, self.counted + other.counted, self.estimated + other.estimated
        )

    def minus(self, other: TokenCount) -> int:
        """The difference between two counts of one source.

        Raises:
            ValueError: the counts come from different sources.
        """
        sources = {name for count in (self, other) for name in _SOURCES if getattr(count, name)}
        if len(sources) > 1:
            raise ValueError(f"a difference between {' and '.join(sorted(sources))} counts means nothing")
        return self.tokens - other.tokens

    def __str__(self) -> str:
        terms = [f"{getattr(self, name):,} {name}" for name in _SOURCES if getattr(self, name)]
        if len(terms) > 1:
            return f"{self.tokens:,} ({' + '.join(terms)})"
        return terms[0] if terms else "0"


_SOURCES: tuple[CountSource, ...] = ("reported", "counted", "estimated")


class TokenCounter(Protocol):
    """Counts the tokens of texts and messages in a window. `source` is `counted` or `estimated`."""

    @property
    def source(self) -> CountSource: ...

    def text(self, text: str, /) -> int: ...

    def message(self, message: Message, /) -> int: ...


class Usage(Struct, frozen=True, gc=False):
    """A provider's report for one call, normalised: `input` was neither read from nor written to a cache.

    `reasoning` is part of `output`.
    """

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    last_prompt: int = 0
    """The prompt of the last turn, if the provider made several turns in one call; otherwise 0."""

    @property
    def prompt(self) -> int:
        """Everything the model read, as it is billed."""
        return self.input + self.cache_read + self.cache_write

    @property
    def context(self) -> int:
        """The size of the window. The prompts of several turns in one call overlap, so only the last one counts."""
        return self.last_prompt or self.input + self.cache_read + self.cache_write

    def without(self, tokens: int) -> Usage:
        """The same call as if its prompt had so many tokens less."""
        return (
            Usage(max(0, self.context - tokens), output=self.output, reasoning=self.reasoning)
            if tokens
            else self
        )

    def __add__(self, other: Usage) -> Usage:
        """The bill of both; a sum has no window."""
        return Usage(
            self.input + other.input,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )


_MILLION = 1_000_000


class Prices(Struct, frozen=True):
    """Dollars per million tokens."""

    input: float
    output: float = 0.0
    cache_read: float | None = None
    """None if the provider has no cache: all input is read at the full price."""
    cache_write: float | None = None
    """None if writing to the cache costs nothing extra."""

    @property
    def read(self) -> float:
        return self.input if self.cache_read is None else self.cache_read

    @property
    def write(self) -> float:
        return self.input if self.cache_write is None else self.cache_write


def call_cost(usage: Usage, prices: Prices) -> float:
    """Dollars that the provider bills for a call."""
    billed = (
        usage.input * prices.input
        + usage.cache_read * prices.read
        + usage.cache_write * prices.write
        + usage.output * prices.output
    )
    return billed / _MILLION


def growing_cost(before: int, now: int, output: int, prices: Prices) -> float:
    """Dollars for a call if its prompt had only grown: the part sent before is read from the cache."""
    known = min(before, now)
    return (known * prices.read + (now - known) * prices.write + output * prices.output) / _MILLION


def in_proportion(counts: Sequence[int], total: int) -> list[int]:
    """Divide a total in proportion to some counts. The parts add up to it; without any count they are 0."""
    factor = total / sum(counts) if sum(counts) else 0.0
    bounds = [round(upto * factor) for upto in accumulate(counts, initial=0)]
    return [last - first for first, last in pairwise(bounds)]


class Measurement(Struct, frozen=True, gc=False):
    """The size of a window, region by region. `reserve` and `free` are room, not content."""

    system: TokenCount = TokenCount()
    tools: TokenCount = TokenCount()
    summary: TokenCount = TokenCount()
    history: TokenCount = TokenCount()
    tool_results: TokenCount = TokenCount()
    tail: TokenCount = TokenCount()
    input: TokenCount = TokenCount()
    reserve: int = 0
    window: int = 0

    @property
    def content(self) -> TokenCount:
        """Everything that is sent."""
        return self.instructions + self.messages

    @property
    def instructions(self) -> TokenCount:
        return self.system + self.tools

    @property
    def messages(self) -> TokenCount:
        return self.summary + self.history + self.tool_results + self.tail + self.input

    @property
    def free(self) -> int:
        """Room left; negative if the window is overfull."""
        return self.window - self.reserve - self.content.tokens

    def in_proportion(self, tokens: int) -> Measurement:
        """The same regions in proportion to another size of the content. Their sources stay, because the division between them
        is still as good as the counts.
        """
        if tokens == self.content.tokens:
            return self
        names = ("system", "tools", "summary", "history", "tool_results", "tail", "input")
        counts: list[TokenCount] = [getattr(self, name) for name in names]
        parts = in_proportion([one.tokens for one in counts], tokens)
        changed = {
            name: TokenCount.of(part, one.source)
            for name, one, part in zip(names, counts, parts, strict=True)
        }
        return structs.replace(self, **changed)


Whole: TypeAlias = Literal["window", "limit", "effective"]
WindowSource: TypeAlias = Literal[
    "override", "upstream", "learned", "output", "catalogue", "pattern", "default"
]
"""The source of a window's size, best first: the user, the upstream's own report, a provider's refusal, a
multiple of the output (in a policy that takes the window from it), the catalogue of models, the model's name,
or nothing."""


class Tokens(Struct, frozen=True, tag="tokens"):
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise BudgetError(f"a size cannot be {self.tokens} tokens", hint="give 0 or more tokens")


class Share(Struct, frozen=True, tag="share"):
    """A fraction of the window, of the limit, or of the room that instructions leave (`effective`)."""

    fraction: float
    of: Whole = "window"
    sinks: float = 0.0
    """Decrease of the fraction with every doubling of the window beyond 8,000 tokens, down to `least`: a
    large window needs a smaller share."""
    least: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise BudgetError(
                f"a share of the {self.of} cannot be {self.fraction}",
                hint="give a fraction between 0 and 1 (0.8 for 80 %), or a number of tokens",
            )


class Messages(Struct, frozen=True, tag="messages"):
    messages: int

    def __post_init__(self) -> None:
        if self.messages < 0:
            raise BudgetError(f"a size cannot be {self.messages} messages", hint="give 0 or more messages")


class Turns(Struct, frozen=True, tag="turns"):
    turns: int

    def __post_init__(self) -> None:
        if self.turns < 0:
            raise BudgetError(f"a size cannot be {self.turns} turns", hint="give 0 or more turns")


Size: TypeAlias = Tokens | Share | Messages | Turns


class Budget(Struct, frozen=True, cache_hash=True):
    """The part of a model's window that a conversation may use."""

    window: int
    """The model's total capacity, input and output together."""
    limit: int = 0
    """Most tokens of input that this conversation may send; 0 means all that the window takes. Output and
    reserve are not part of it."""
    max_input: int = 0
    """The model's own limit of input, if it has one besides its window; 0 if not."""
    max_output: int = 0
    thinking: int = 0
    """Tokens of the output that the model may think with; 0 if no request states them."""
    is_output_stated: bool = True
    """True if requests state `max_output` themselves. Otherwise it is only kept free, and no request is changed by it."""
    reserve: Tokens | Share = Tokens(0)
    """Headroom that is never filled: counts are estimates, and providers add framing of their own."""
    trigger: Tokens | Share = Share(0.8)
    target: Tokens | Share = Share(0.5)
    keep_recent: Size = Share(0.25)
    source: WindowSource = "override"
    """The source of `window`."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise BudgetError(
                f"a window cannot be {self.window} tokens", hint="give the size of the model's window"
            )
        if not 0 <= self.limit <= self.window:
            raise BudgetError(
                f"the limit ({self.limit:,}) must lie within the window ({self.window:,} tokens)",
                hint="give a limit from 0 (the whole window) up to the window",
            )
        if isinstance(self.reserve, Share) and self.reserve.of == "effective":
            raise BudgetError(
                "the reserve cannot be a share of the room that it leaves", hint="use a share of the window"
            )
        if self.max_output < 0:
            raise BudgetError(f"max_output cannot be {self.max_output} tokens", hint="give 0 or more tokens")
        if self.thinking < 0:
            raise BudgetError(
                f"a thinking budget cannot be {self.thinking} tokens", hint="give 0 or more tokens"
            )


def check_window(value: object, name: str) -> None:
    """
    Raises:
        ConfigError: the value is not the size of a window.
    """
    if type(value) is not int or not MIN_WINDOW <= value <= MAX_TOKENS:  # `True` is no window
        raise ConfigError(
            f"{name} {NOT_TOKENS.format(MIN_WINDOW, MAX_TOKENS)}",
            hint="give the model's window in tokens, such as 32000",
        )


# Sizes in tokens

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
