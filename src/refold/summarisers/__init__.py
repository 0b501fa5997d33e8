"""Summarisers: a chain of models behind upstreams, or a function of the user.

`refold.core` holds the prompts, the checks and the division of a transcript into chunks; this package runs
them. `model` tries the models of a chain and checks their answers, reads a transcript that is too long for a
model's window in parts, and checks a text that the user's own function wrote. `cache` avoids paying twice for
the same answer.
"""

from __future__ import annotations

from refold.core.prompts import Recipe
from refold.summarisers.cache import KeptInMemory
from refold.summarisers.model import ModelSummariser, SummaryWriter, checked

__all__ = ["KeptInMemory", "ModelSummariser", "Recipe", "SummaryWriter", "checked"]
