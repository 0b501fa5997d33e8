"""Turns and the boundaries between them.

A turn is a user message and everything up to the next one; its start is where messages are cut. A message that holds tool
results starts no turn, also where the user's own words stand beside them: the results belong to the calls before it.
Functions take the sorted indices of the turn starts, which a View keeps as it grows; none walks the messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from refold.model.message import Message


def starts_turn(message: Message) -> bool:
    return message.role == "user"


def turn_starts(messages: Iterable[Message]) -> tuple[int, ...]:
    return tuple(index for index, message in enumerate(messages) if starts_turn(message))


def safe_boundary(starts: Sequence[int], length: int, target: int) -> int:
    """The turn start nearest before `target`, else the nearest after it; 0 where nothing can be cut.

    Without any user message there are no turns to respect, and the target itself is the answer.
    """
    if target <= 0:
        return 0
    if target >= length:
        return length
    if not starts:
        return target
    at = bisect_right(starts, target)
    if at and starts[at - 1] > 0:
        return starts[at - 1]
    return starts[at] if at < len(starts) else 0
