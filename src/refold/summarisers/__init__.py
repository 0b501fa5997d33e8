"""Those who write summaries: a model behind an upstream, or several in a row.

What a model is told, what is accepted of its answer and how a transcript is parted is decided in `refold.core.summary`; here it
is carried out. `model` goes along the chain, `parts` reads what is too long for a window, `desk` asks and checks one question,
`cache` and `keys` see to it that none is paid for twice. `told` checks what somebody else wrote.
"""

from __future__ import annotations

from refold.core.prompts import Recipe
from refold.summarisers.attempt import SummaryWriter
from refold.summarisers.cache import KeptInMemory
from refold.summarisers.function import checked
from refold.summarisers.model import ModelSummariser

__all__ = ["KeptInMemory", "ModelSummariser", "Recipe", "SummaryWriter", "checked"]
