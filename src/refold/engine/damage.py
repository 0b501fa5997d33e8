"""Damaged messages: the placeholder that stands for one, and its place between calls and results.

`read_run` reads a run of stored messages. One that cannot be read has the role of its row and a text that says so, never its
content. The messages around it tell which calls it made or which it answered, so that no other message loses its
counterpart. Nothing is stored: once the row is readable again, the message is there again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
from msgspec import Struct

from refold.core.fold import FoldedBranch
from refold.core.pairs import match_results
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import Damaged
from refold.model.message import Message, Role, Text, ToolCall, ToolResult
from refold.ports.records import Head, StoredMessage, StoredSummary, read_with_shown
from refold.ports.store import Store

UNKNOWN_CALL = "unreadable_call"
"""The name of a call that cannot be read."""
_PLAIN_KINDS = ("function", "custom")
AROUND = 64
"""The counterparts of a call are among so many messages before and after it: more calls at once are rare."""


def placeholder_text(number: int) -> str:
    """The text that stands for a message that cannot be read."""
    return f"[message {number} cannot be read: its stored bytes are damaged. `refold doctor` names it.]"


class ReadMessage(Struct, frozen=True):
    """A stored message that was read, or the placeholder for it."""

    number: int
    message: Message
    shown: Message
    """The form in which it was shown on arrival."""
    damage: Damaged | None = None
    """Why it cannot be read; then both messages are the placeholder."""


def read_run(stored: Sequence[StoredMessage], head: Head) -> list[ReadMessage | None]:
    """Read a run of messages of a branch; None for each whose content is not stored."""
    found, damaged = list[ReadMessage | None](), list[int]()
    for index, one in enumerate(stored):
        try:
            both = read_with_shown(one, head)
        except Damaged as error:
            message = Message(_role_of(one), (Text(placeholder_text(one.seq)),))
            found.append(ReadMessage(one.seq, message, message, error))
            damaged.append(index)
        else:
            found.append(None if both is None else ReadMessage(one.seq, *both))
    if damaged:
        _pair(found, damaged, DIALECTS[head.format])  # type: ignore[index]
    return found


async def read_one(store: Store, head: Head, number: int) -> ReadMessage | None:
    """Read one message, with the messages around it if it is damaged; None if its content is not stored."""
    stored = await store.messages(head, max(0, number - AROUND), number + AROUND + 1)
    return next(one for row, one in zip(stored, read_run(stored, head), strict=True) if row.seq == number)


async def readable_summaries(store: Store, owner: str, ids: Sequence[str]) -> list[StoredSummary]:
    """Return summaries by id without the damaged ones, which the doctor reports."""
    try:
        return await store.written(owner, ids)
    except Damaged:
        each = ids if len(ids) > 1 else ()
        return [one for which in each for one in await readable_summaries(store, owner, [which])]


def placeholders_in(folded: FoldedBranch) -> tuple[int, ...]:
    """The numbers of the messages that are shown as placeholders, also where somebody said just these words."""
    return tuple(item.seq for item in folded.items.items if is_placeholder(item.message, item.seq))


def is_placeholder(message: Message, number: int) -> bool:
    first = message.parts[0] if message.parts else None
    match first:
        case Text():
            return first.text == placeholder_text(number)
        case ToolResult():
            return first.text == placeholder_text(number)
        case ToolCall():
            return first.name == UNKNOWN_CALL and first.arguments == _arguments(number)
    return False


def _role_of(stored: StoredMessage) -> Role:
    return stored.role if stored.role in get_args(Role) else "user"  # type: ignore[return-value]


def _arguments(number: int) -> str:
    return msgspec.json.encode({"note": placeholder_text(number)}).decode()


class _Unpaired(Struct):
    """The calls and results among some messages that have no counterpart there, each with the index of its message."""

    calls: list[tuple[int, ToolCall]]
    results: list[tuple[int, ToolResult]]


def _unpaired(whole: Sequence[Message], dialect: Dialect) -> _Unpaired:
    """Those of other kinds have a form of their own, which a text cannot have: they are left to the repair."""
    matched = match_results(whole, dialect, continues=False)
    calls = [(at, one) for at, slots in matched.slots.items() for one in slots if one.result is None]
    results = [
        (at, result)
        for at, unwanted in matched.unwanted.items()
        for result, why in unwanted
        if why == "orphan_result"
    ]
    return _Unpaired(
        [(at, one.call) for at, one in calls if not one.is_superseded and one.call.kind in _PLAIN_KINDS],
        [(at, one) for at, one in results if one.kind in _PLAIN_KINDS],
    )


def _pair(found: list[ReadMessage | None], damaged: Sequence[int], dialect: Dialect) -> None:
    """Give the placeholders among some messages the calls and results that their counterparts need."""
    whole = [Message("user", ()) if one is None else one.message for one in found]
    left = _unpaired(whole, dialect)
    for index in damaged:
        one = found[index]
        assert one is not None
        if one.message.role == "assistant":
            last = _end_of_exchange(whole, index, 1, dialect)
            results = [pair for pair in left.results if index < pair[0] < last]
            results = results[:1] if dialect.spreads_calls else results  # there, an item is one call
            left.results = [pair for pair in left.results if pair not in results]
            message = _calling(one, [result for _, result in results], dialect)
        elif one.message.role == "tool":
            first = _end_of_exchange(whole, index, -1, dialect)
            calls = [pair for pair in left.calls if first <= pair[0] < index]
            calls = calls if dialect.joint_results else calls[:1]
            left.calls = [pair for pair in left.calls if pair not in calls]
            message = _answering(one, [call for _, call in calls])
        else:
            continue
        found[index] = ReadMessage(one.number, message, message, one.damage)


def _end_of_exchange(whole: Sequence[Message], index: int, step: int, dialect: Dialect) -> int:
    """The first index before or after a message, by the `step`, that has nothing to do with its calls. Looking back, the
    message with the calls belongs to them.
    """
    at = index + step
    while 0 <= at < len(whole):
        role = whole[at].role
        is_reply = role == "assistant"
        if not (role == "tool" or (is_reply and dialect.spreads_calls)):
            return at
        at += step
    return max(0, at)


def _calling(one: ReadMessage, lost: Sequence[ToolResult], dialect: Dialect) -> Message:
    calls = tuple(
        ToolCall(result.call_id, UNKNOWN_CALL, _arguments(one.number), result.kind) for result in lost
    )
    said = () if calls and dialect.spreads_calls else one.message.parts
    return Message("assistant", (*said, *calls))


def _answering(one: ReadMessage, calls: Sequence[ToolCall]) -> Message:
    """Results for calls; words of the user's if nothing was called."""
    text = Text(placeholder_text(one.number))
    results = tuple(ToolResult(call.id, (text,), kind=call.kind) for call in calls)
    return Message("tool", results) if results else Message("user", (text,))
