"""Token counting and the model catalogue.

`counters` chooses a counter for a model: `exact` runs the model's own tokenizer, `fitted` estimates. Both take a message
apart in `message_cost` and remember in `memo` what they have counted. `catalog` knows models, `windows` how large the
window of one is and how that is known, `names` the spellings of a model's name.

Importing this package loads neither a tokenizer nor a data file: each is read at its first use.
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
