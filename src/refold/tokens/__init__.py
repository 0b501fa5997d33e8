"""Token counting and the model catalogue.

`counters` chooses a counter for a model: exact, with the model's own tokenizer, or estimated. `catalog` holds
the known models with their windows and prices, and finds a model by any spelling of its name.

Importing this package loads neither a tokenizer nor a data file: each is loaded at its first use.
"""

from __future__ import annotations

from refold.tokens.catalog import Model, WindowSize, find_model, search_models, window_for
from refold.tokens.counters import ExactCounter, FittedCounter, counter_for

__all__ = [
    "ExactCounter",
    "FittedCounter",
    "Model",
    "WindowSize",
    "counter_for",
    "find_model",
    "search_models",
    "window_for",
]
