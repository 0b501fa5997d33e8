"""How full a conversation is: what can be told of it without opening it.

One idea: whoever writes to a conversation notes how full they saw it, with the messages that made it so. A list of many
conversations then costs no more than reading their rows, and after a restart it says what it said before.
"""

from __future__ import annotations

from msgspec import Struct

from refold.engine.memory import Memory
from refold.engine.moments import limit_on, pressure_on


class Standing(Struct, frozen=True):
    """The context of a conversation, by the window and the policy of whoever wrote last."""

    tokens: int = 0
    """What the next request would have, instructions included, as we count."""
    limit: int = 0
    """What it may have; 0 where nothing was noted."""
    reason: str = ""
    """Why it has to be compacted; empty where it has not."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0


def standing_of(memory: Memory) -> Standing:
    """By totals alone: it is asked for with every message."""
    tokens = memory.frame.cost.total.tokens + memory.folded.tokens
    return Standing(tokens, limit_on(memory), pressure_on(memory))
