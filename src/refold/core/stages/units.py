"""Groups messages into units that can only be removed together.

A reply and the results of its calls are one unit, so a list of whole units is always valid. Stages that
drop messages drop units.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from refold.core.shown import Room, Shown
from refold.core.view import starts_turn
from refold.model.dialect import Dialect
from refold.model.message import Message


def units(messages: Sequence[Message], dialect: Dialect) -> list[range]:
    """The messages as ranges of indices: each user message alone, each reply with its results."""
    last_result = _last_results(messages)
    starts: list[int] = []
    reach = -1
    for index in range(len(messages)):
        if index > reach and not _continues(messages, index, dialect):
            starts.append(index)
        reach = max(reach, last_result.get(index, -1))
    return [range(start, stop) for start, stop in pairwise((*starts, len(messages)))]


def turn_units(messages: Sequence[Message], dialect: Dialect) -> list[range]:
    """The messages as whole turns; the messages before the first user message are one unit."""
    joined: list[range] = []
    for unit in units(messages, dialect):
        if joined and not starts_turn(messages[unit.start]):
            joined[-1] = range(joined[-1].start, unit.stop)
        else:
            joined.append(unit)
    return joined


def may_drop(unit: range, shown: Shown, room: Room) -> bool:
    """True if the whole unit may be removed: it ends before the active turn, and none of its messages is pinned."""
    return unit.stop <= shown.protected and not any(room.is_pinned(shown.items[index]) for index in unit)


def _continues(messages: Sequence[Message], index: int, dialect: Dialect) -> bool:
    """True if the message belongs to the one before it."""
    role = messages[index].role
    if index == 0 or role == "tool":
        return index > 0
    return dialect.spreads_calls and role == messages[index - 1].role == "assistant"


def _last_results(messages: Sequence[Message]) -> dict[int, int]:
    """For each message with answered calls, the index of the last result: a result may follow other messages."""
    caller: dict[str, int] = {}
    last: dict[int, int] = {}
    for index, message in enumerate(messages):
        if message.role == "assistant":
            caller.update((call.id, index) for call in message.calls)
        for result in message.results:
            at = caller.get(result.call_id)
            if at is not None:
                last[at] = index
    return last
