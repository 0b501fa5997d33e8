"""Removes the reasoning of earlier turns.

Reasoning serves the reply that it belongs to. Once that turn is over it is not used again, and providers
leave it out themselves. It is removed whole or not at all, and never from the latest reply, which some
providers check against their signature.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.stage import Room, ShownMessages, StageResult, changed, removed
from refold.core.verify import is_only_reasoning
from refold.core.view import turn_starts
from refold.model.message import Message, Reasoning

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
REASONING_STAGE = "drop_reasoning"
_REASON = "thinking of an earlier turn"


class DropReasoning(Struct, frozen=True, tag="drop_reasoning"):
    """Has no settings: there is one right way to do this."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult:
        thoughtful = [index for index in range(_latest_turn(shown)) if _may_drop(shown, index, room)]
        if not thoughtful:
            return StageResult.skipped(shown, "no earlier turn holds thinking")
        whole = {index for index in thoughtful if is_only_reasoning(shown.items[index].message)}
        rest = {
            index: _without_reasoning(shown.items[index].message)
            for index in thoughtful
            if index not in whole
        }
        shortened = changed(REASONING_STAGE, shown, rest, room, lambda _: _REASON)
        result = removed(REASONING_STAGE, shortened.shown, whole, _REASON)
        return structs.replace(result, edits=(*shortened.edits, *result.edits))


def _latest_turn(shown: ShownMessages) -> int:
    """Start of the latest reply's turn: usually the active turn, or the one before a new question."""
    items = shown.items
    replies = (i for i in range(len(items) - 1, -1, -1) if items[i].message.role == "assistant")
    latest = next(replies, len(items))
    starts = [start for start in turn_starts(shown.messages) if start <= latest]
    return min(shown.protected, starts[-1] if starts else 0)


def _may_drop(shown: ShownMessages, index: int, room: Room) -> bool:
    message = shown.items[index].message
    if Reasoning not in map(type, message.parts) or not room.may_touch(shown, index):
        return False
    return not room.dialect.spreads_calls or not _is_bound(shown, index)


def _is_bound(shown: ShownMessages, index: int) -> bool:
    """True if the provider would refuse the rest of the reply without its reasoning.

    In dialects that spread a reply over items, the provider looks up an item with its own id together with
    its reasoning.
    """
    rest = index + 1
    while rest < len(shown.items) and shown.items[rest].message.role == "assistant":
        if _has_id(shown.items[rest].message):
            return True
        rest += 1
    return False


def _has_id(message: Message) -> bool:
    if message.origin is None or not bytes(message.origin.raw).lstrip().startswith(b"{"):
        return False
    return bytes(_OBJECT.decode(message.origin.raw).get("id", b"null")) != b"null"


def _without_reasoning(message: Message) -> Message:
    return message.with_parts(tuple(part for part in message.parts if type(part) is not Reasoning))
