"""Which result answers which call.

One idea: ids repeat across turns, so a result belongs to the latest call with its id that has no result yet; within one
reply, calls that share an id are answered in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.dialect import Dialect
from refold.model.message import Message, ToolCall, ToolResult

Unwanted: TypeAlias = Literal["duplicate_result", "missing_call_id", "orphan_result"]


class Slot(Struct):
    """A call and, once found, its result. `new_id` is the id under which both will leave."""

    call: ToolCall
    batch: int
    new_id: str
    result: ToolResult | None = None
    result_index: int = -1
    is_superseded: bool = False
    """A later call took its id before it was answered: no result can come any more."""


class Matched(Struct, frozen=True):
    slots: dict[int, list[Slot]]
    """By the index of the message that makes the calls, in call order; calls without an id have none."""
    unwanted: dict[int, list[tuple[ToolResult, Unwanted]]]
    """Results that answer no call, by the index of their message."""
    foreign: frozenset[int]
    """Messages whose result answers a call that only the provider holds."""


def match_results(messages: Sequence[Message], dialect: Dialect, *, continues: bool) -> Matched:
    slots: dict[int, list[Slot]] = {}
    unwanted: dict[int, list[tuple[ToolResult, Unwanted]]] = {}
    foreign: set[int] = set()
    waiting: dict[str, list[Slot]] = {}
    answered: set[str] = set()
    batch = -1
    for index, message in enumerate(messages):
        if message.role == "assistant":
            if index == 0 or not dialect.spreads_calls or messages[index - 1].role != "assistant":
                batch, answered = index, set()
            slots[index] = [Slot(call, batch, call.id) for call in message.calls if call.id]
            for slot in slots[index]:
                _wait(slot, waiting)
        for result in message.results:
            reason = _assign(result, index, waiting, answered)
            if reason == "orphan_result" and continues:
                foreign.add(index)
            elif reason:
                unwanted.setdefault(index, []).append((result, reason))
    return Matched(slots, unwanted, frozenset(foreign))


def _wait(slot: Slot, waiting: dict[str, list[Slot]]) -> None:
    """A call takes the place of an earlier one with its id, unless both are of one reply."""
    others = waiting.get(slot.call.id)
    if others and others[0].batch == slot.batch:
        others.append(slot)
    else:
        for other in others or ():
            other.is_superseded = True
        waiting[slot.call.id] = [slot]


def _assign(
    result: ToolResult, index: int, waiting: dict[str, list[Slot]], answered: set[str]
) -> Unwanted | None:
    slots = waiting.get(result.call_id)
    if not result.call_id:
        return "missing_call_id"
    if not slots:
        return "duplicate_result" if result.call_id in answered else "orphan_result"
    slot = slots.pop(0)
    slot.result, slot.result_index = result, index
    answered.add(result.call_id)
    return None
