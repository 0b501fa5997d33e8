"""What is shown of a message as it arrives.

One idea: one huge thing is cut once, before it was ever sent, so cutting it never changes bytes that a provider has cached.
"""

from __future__ import annotations

from refold.core.emergency import reduce
from refold.core.fold import Folded
from refold.core.plan import Frame, Now, limit_for
from refold.core.stages.shown import Edit, Item, Room, Shown
from refold.model.message import Message

_BEFORE_CALL = Now("before_call")


def arrive(folded: Folded, frame: Frame, number: int) -> tuple[Message, tuple[Edit, ...]]:
    """How an original, which is indexed and not yet shown, is to be shown, and what was cut from it."""
    message = folded.branch[number].message
    if not frame.policy.arrival:
        return message, ()
    counter, instructions = folded.shown.counter, frame.cost.total.tokens
    room = Room(
        max(0, limit_for(frame, _BEFORE_CALL) - instructions), instructions, counter, folded.shown.dialect
    )
    item = Item(message, number, folded.branch[number].tokens)
    shown, edits = reduce(Shown((item,), 1), frame.policy.arrival, room)
    return shown.items[0].message, edits
