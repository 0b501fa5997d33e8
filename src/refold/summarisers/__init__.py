"""Those who write summaries: a model behind an upstream, or several in a row.

What a model is told, what is accepted of its answer and how a transcript is parted is decided in `refold.core.summary`; here it
is carried out.
"""

from __future__ import annotations

from refold.summarisers.cache import KeptInMemory
from refold.summarisers.model import ModelSummariser, Writer
from refold.summarisers.recipe import Recipe

__all__ = ["KeptInMemory", "ModelSummariser", "Recipe", "Writer"]
