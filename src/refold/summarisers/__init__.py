"""Summarisers: a chain of models behind upstreams, or a function of the user.

`refold.core` holds the prompts, the checks and the division of a transcript into chunks; this package runs
them. `model` tries the models of a chain, `long_input` reads a transcript that is too long for a model's
window, `attempt` asks one question and checks the answer, `cache` avoids paying twice for the same answer,
and `function` checks a text that the user's own function wrote.
"""

from __future__ import annotations

from refold.core.prompts import Recipe
from refold.summarisers.attempt import SummaryWriter
from refold.summarisers.cache import KeptInMemory
from refold.summarisers.function import checked
from refold.summarisers.model import ModelSummariser

__all__ = ["KeptInMemory", "ModelSummariser", "Recipe", "SummaryWriter", "checked"]
