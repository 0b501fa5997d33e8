"""Which model, which window, how much for the reply: what a transcript is held against.

One idea: whoever asks wins, then the transcript itself, then a default, and the answer remembers who it was.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.budget import Budget
from refold.model.errors import BudgetError
from refold.wire import Request

DEFAULT_MODEL = "gpt-4o"
"""For transcripts that name none: its tokenizer is that of most current models, and its window a usual one."""
MAX_TOKENS = 10**12
"""No window comes near it. A size beyond it is a mistake, and would only fill the screen with digits."""

ModelSource: TypeAlias = Literal["option", "file", "default"]


class Wish(Struct, frozen=True):
    """What was asked for on the command line; empty or None where nothing was."""

    model: str = ""
    window: int | None = None
    max_output: int | None = None


class Sizing(Struct, frozen=True):
    model: str
    model_source: ModelSource
    budget: Budget
    window_source: str
    warning: str = ""
    """Not empty where the window is a guess."""


def size_up(request: Request, wish: Wish) -> Sizing:
    """Choose model and window.

    Raises:
        BudgetError: the transcript asks for an impossible output.
    """
    from refold.tokens import window_for

    model, source = choose_model(request, wish)
    window = window_for(model, override=wish.window)
    budget = Budget(window=window.tokens, max_output=choose_max_output(request, wish))
    return Sizing(model, source, budget, window.source, window.warning)


def choose_model(request: Request, wish: Wish) -> tuple[str, ModelSource]:
    if wish.model:
        return wish.model, "option"
    return (request.model, "file") if request.model else (DEFAULT_MODEL, "default")


def choose_max_output(request: Request, wish: Wish) -> int:
    chosen = request.max_output if wish.max_output is None else wish.max_output
    if chosen is not None and not 0 <= chosen <= MAX_TOKENS:
        raise BudgetError(
            "the transcript asks for an output of a size that cannot be",
            hint="give another with --max-output",
        )
    return chosen or 0
