"""What a conversation has cost, and what it would have cost without any compaction.

One idea: saved money is the difference of two bills for the same calls. One is the provider's own; the other is computed as
if every call had sent everything so far, with the same prices and a cache that never misses. It is a lower bound: a window
that overflows would not have been answered at all.
"""

from __future__ import annotations

from msgspec import Struct

from refold.core.cost import Prices, call_cost, growing_cost
from refold.model.tokens import Usage


class Bill(Struct, frozen=True):
    """In dollars. Both are 0 where the prices of the model are not known."""

    spent: float = 0.0
    without: float = 0.0
    """What the same calls would have cost had nothing been left out."""
    whole: int = 0
    """What the last call would have sent then, in the provider's tokens."""

    @property
    def saved(self) -> float:
        return self.without - self.spent

    def add(self, usage: Usage, prices: Prices | None, *, sent: int, whole: int) -> Bill:
        """One more call, which sent `sent` of the `whole` tokens there were, as we count."""
        if prices is None:
            return self
        everything = round(whole * usage.context / max(1, sent))
        without = growing_cost(self.whole, everything, usage.output, prices)
        return Bill(self.spent + call_cost(usage, prices), self.without + without, everything)
