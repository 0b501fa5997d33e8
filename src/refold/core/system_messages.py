"""System and developer messages inside a conversation: the ones that stay, and their legal places.

The newest one stays unchanged, because it may hold rules for everything after it. Older ones are history:
a compaction removes them like any other message, and the summary covers them. Messages that set an option
at their provider, such as a tool or an effort, stay, because no text can replace them.

One dialect accepts a system message only after a user message, and only as the last one or before an
assistant message. If the messages around one are gone, it moves to the next legal place; two that meet
there are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refold.core.stage import Edit, Item, handle_of
from refold.core.verify import is_directive, is_instruction, takes_system
from refold.model.dialect import Dialect
from refold.model.message import Message, Opaque, opening_span

MOVED = "a system message may stand only behind a user message"
INSTRUCTION_ROLES = ("system", "developer")


def is_setting(message: Message) -> bool:
    """True for a system or developer message that sets an option at its provider, with or without text."""
    return message.role in INSTRUCTION_ROLES and any(type(part) is Opaque for part in message.parts)


def newest_instruction(items: Iterable[Item]) -> int | None:
    """Number of the newest system or developer message with text."""
    found = [item for item in items if item.message.role in INSTRUCTION_ROLES]
    return max((item.seq for item in found if is_instruction(item.message)), default=None)


def legal_order(
    messages: Sequence[Message], dialect: Dialect, *, follows_user: bool
) -> list[tuple[int, ...]]:
    """The legal order: indices of the messages in their new order, with joined system messages in one group.

    `follows_user` says that a user message precedes the list. If there is no legal place, a system message
    comes first, and the caller must put a user message before it.
    """
    as_they_are: list[tuple[int, ...]] = [(index,) for index in range(len(messages))]
    if not dialect.system_follows_user or not any(map(is_instruction, messages)):
        return as_they_are
    if not _is_misplaced(messages, follows_user=follows_user):
        return as_they_are
    order: list[tuple[int, ...]] = []
    waiting: tuple[int, ...] = ()
    is_open = follows_user
    for index, message in enumerate(messages):
        if is_instruction(message):
            waiting = (*waiting, index)
            continue
        if waiting and is_open and message.role == "assistant":
            order.append(waiting)
            waiting = ()
        order.append((index,))
        if not is_directive(message):
            is_open = takes_system(message)
    if waiting and is_open:
        order.append(waiting)
    elif waiting:
        _put_back(order, waiting, messages)
    return order


def _put_back(order: list[tuple[int, ...]], waiting: tuple[int, ...], messages: Sequence[Message]) -> None:
    """Move system messages without a later legal place to the last one before."""
    for place in range(len(order) - 1, -1, -1):
        message = messages[order[place][0]]
        if is_instruction(message):
            order[place] = (*order[place], *waiting)
            return
        if takes_system(message):
            order.insert(place + 1, waiting)
            return
    order.insert(0, waiting)


def _is_misplaced(messages: Sequence[Message], *, follows_user: bool) -> bool:
    is_open, is_unanswered = follows_user, False
    for message in messages:
        if is_directive(message):
            continue
        is_system = is_instruction(message)
        if (is_system and not is_open) or (is_unanswered and message.role != "assistant"):
            return True
        is_open, is_unanswered = takes_system(message), is_system
    return False


def joined(messages: Sequence[Message], group: tuple[int, ...]) -> Message:
    """The message of a group of indices: the single message, or the newest with the text of all."""
    newest = messages[group[-1]]
    if len(group) == 1:
        return newest
    return newest.with_parts(tuple(part for index in group for part in messages[index].parts))


def holds_more(message: Message, original: Message) -> bool:
    """True if another message was joined to the original."""
    more = len(message.parts) - len(original.parts)
    return more > 0 and message.parts[more:] == original.parts


def moved_edits(before: Sequence[Item], after: Sequence[Item]) -> tuple[Edit, ...]:
    """An edit for every system message that has moved behind a later message."""
    known = {item.seq for item in _displaced(before)}
    return tuple(
        Edit("place", item.seq, item.tokens, item.tokens, MOVED, handle_of(item.seq))
        for item in _displaced(after)
        if item.seq not in known
    )


def _displaced(items: Sequence[Item]) -> Iterable[Item]:
    newest = -1
    for item in items[opening_span([item.message for item in items[:2]]) :]:
        if item.seq < newest and item.message.role in INSTRUCTION_ROLES:
            yield item
        newest = max(newest, item.seq)
