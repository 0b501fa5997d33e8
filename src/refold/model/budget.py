"""Budgets: the size of a window and its parts, in tagged units.

`95` must never mean percent in one place and tokens in another. A size is tagged with its unit, and its
range is checked in the constructor.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.errors import BudgetError

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
