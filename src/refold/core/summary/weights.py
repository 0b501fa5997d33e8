"""What makes a term likely to be needed again.

One idea: the chance that the assistant writes a term again falls with the time since it was last said, and grows with every
message in which the assistant has used it. The first part changes with every message, so it is worked out when pieces are
chosen; the rest changes only when the term is said, and is kept up to date as messages arrive.

The numbers were fitted on one half of 79 recorded agent transcripts and hold on the other; the choice is not sensitive to
them.
"""

from __future__ import annotations

from msgspec import Struct


class Weights(Struct, frozen=True):
    age: float = 0.55
    """The odds of being used again fall with the age, in windows, to this power."""
    youngest: float = 0.25
    """Below this age, in windows, nothing is more likely for being younger: all of it is part of the work at hand."""
    used: float = 4.0
    """A term that the assistant has used once is (1 + this) to the power below as likely to be used again."""
    habit: float = 0.65
    asked: float = 1.5
    """The user has said it."""
    repeated: float = 1.4
    """The assistant has not used it, but more than one message holds it."""
    overhead: float = 10.0
    """Characters added to the length of every piece, so that the shortest ones do not win by being short alone."""
    crowd: float = 0.2
    """When a message has taken this share of the room, its pieces are worth half: a list of a hundred ids would fill it."""
    cut_off: float = 0.5
    """Pieces of a message that is shown in part: some of it is in sight already."""

    def standing(self, used: int, *, is_repeated: bool, is_asked: bool) -> float:
        """How likely a term is to come back, its age aside, when the assistant has used it in so many messages."""
        odds = float((1 + self.used * used) ** self.habit)
        if is_asked:
            odds *= self.asked
        if is_repeated and not used:
            odds *= self.repeated
        return odds


DEFAULT = Weights()
