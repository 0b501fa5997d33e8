"""The choice of a counter for a model."""

from __future__ import annotations

from functools import cache

from refold.model.errors import MissingExtra
from refold.model.tokens import TokenCounter
from refold.tokens.exact import ExactCounter, vocabulary_for
from refold.tokens.fitted import CLAUDE_FACTOR, FittedCounter
from refold.tokens.message_cost import CLAUDE_FRAMING
from refold.tokens.names import spellings


def counter_for(model: str) -> TokenCounter:
    """The best counter at hand: exact where splintr is installed and knows the model, else an estimate.

    Models that count alike share one counter, and so what it remembers.
    """
    vocabulary = vocabulary_for(model)
    exact = _exact(vocabulary) if vocabulary else None
    return exact or _fitted("claude" in spellings(model)[-1])


@cache
def _exact(vocabulary: str) -> ExactCounter | None:
    try:
        return ExactCounter(vocabulary)
    except MissingExtra:
        return None


@cache
def _fitted(is_claude: bool) -> FittedCounter:
    return FittedCounter(CLAUDE_FACTOR, CLAUDE_FRAMING) if is_claude else FittedCounter()
