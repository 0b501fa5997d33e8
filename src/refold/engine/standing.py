"""How full a conversation is: what can be told of it without opening it.

One idea: whoever writes to a conversation notes how full they saw it, and what most messages add to that is known with them. A
list of many conversations then costs no more than reading some of their rows, and after a restart it says what it said before.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from refold.engine.memory import Memory
from refold.engine.moments import limit_on, pressure_on
from refold.ports.store import Stored

MOST_SINCE = 16
"""Messages after which it is noted anew: so many are read to tell how full a conversation is."""


class Standing(Struct, frozen=True):
    """The context of a conversation, by the window and the policy of whoever wrote last."""

    tokens: int = 0
    """What the next request would have, instructions included, as we count."""
    limit: int = 0
    """What it may have; 0 where nothing was noted."""
    reason: str = ""
    """Why it has to be compacted; empty where it has not."""
    size: int = -1
    """With how many messages; below 0 where nobody knows."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0

    def after(self, messages: Sequence[Stored]) -> Standing:
        """With messages that followed, and that changed nothing else."""
        if self.size < 0:
            return self
        tokens = self.tokens + sum(message.tokens for message in messages)
        return structs.replace(self, tokens=tokens, size=self.size + len(messages))


def standing_of(memory: Memory) -> Standing:
    """By totals alone: it is asked for with every message."""
    tokens = memory.frame.instructions + memory.folded.tokens
    return Standing(tokens, limit_on(memory), pressure_on(memory), memory.folded.size)
