"""What the user asked for, as every summary carries it: the task and the open question, word for word.

A summary stands for the beginning of a conversation, so the task has to be in it, whoever wrote it: a model, a digest, a mechanical
summary, a function of the user's. The same holds for the question of a turn that goes on after the messages that the summary covers.
Each is a line of its own (`Task #m0: …`, `Question #m40: …`) at the beginning of the summary, unless the message itself is shown or
the summary holds its words anyway. Of a text that is longer than its share of the room, the beginning and the end stay, with the
handle that opens all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import structs

from refold.core.budget import share_of
from refold.core.fold import Asked, Folded
from refold.core.stages.shown import Item, handle_of
from refold.core.stages.truncate import Mark, truncate
from refold.core.summary.line_markers import quoted_lines, visible
from refold.core.summary.long_texts import MAX_LEDGER, with_ends
from refold.core.summary.shorten import fair_share
from refold.core.summary.typed_text import request_text
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter

TASK_SHARE = 0.10
"""Of the room for messages, for what the user asked for first, all messages before the first reply together."""
LEAST_TASK = 64
"""Tokens that the task may take of a small room, as long as they are no more than a fifth of it."""
QUESTION_LINE_SHARE = 0.10
"""Of the room for messages, for the question of a turn that goes on after the summary."""
MAX_ROOM = 32_000
"""Tokens: the shares are of a room of this size at most; nobody reads more."""
TASK, QUESTION = "Task", "Question"
_MARK = Mark("\n[… {handle} …]\n")
_CHARACTERS_PER_TOKEN = 4
_SHORTER = 0.8
"""How much of its length a text keeps with every attempt at making it fit."""

Shorten: TypeAlias = Callable[[Asked, str, int], str]
"""Makes the text of a message as short as a number of tokens."""


def request_lines(
    folded: Folded,
    shown: Sequence[Item],
    last: int,
    room: int,
    *,
    counter: TokenCounter,
    shorten: Shorten | None = None,
) -> tuple[str, ...]:
    """The lines that a summary of the messages before the number `last` has to hold, beside the messages that are `shown`.

    `room` is the room for messages in tokens. Nothing of the conversation but its originals is read, so that this can be done in
    another thread than the one that indexes them, unless `shorten` reads the index.
    """
    room = min(room, MAX_ROOM)
    cut = shorten or (lambda asked, text, limit: keep_ends(asked.number, text, limit, counter))
    question = open_question(folded, shown, last)
    asked = [one for one in folded.task if one.number < last]
    numbers = {one.number for one in asked}
    limits = _limits(asked, max(share_of(TASK_SHARE, room), min(LEAST_TASK, room // 5)), counter)
    lines = [
        _line(TASK, one, limit, cut)
        for one, limit in zip(asked, limits, strict=True)
        if not _is_shown(one, shown, limit)
    ]
    if question is not None and question.number not in numbers:
        limit = share_of(QUESTION_LINE_SHARE, room)
        lines += [] if _is_shown(question, shown, limit) else [_line(QUESTION, question, limit, cut)]
    return tuple(filter(None, lines))


def open_question(folded: Folded, shown: Sequence[Item], last: int) -> Asked | None:
    """What the user asked in the turn that goes on at the number `last`; None where none does."""
    following = next((item for item in shown if item.seq >= last and _is_turn(item.message)), None)
    is_over = folded.is_turn_over if following is None else following.message.role == "user"
    return None if is_over else folded.question_before(last)


def with_requests(summary: Summary, lines: Sequence[str], counter: TokenCounter) -> Summary:
    """The summary with those of the lines in front that it does not hold."""
    opening = missing_lines(summary.text, lines)
    if not opening:
        return summary
    tokens = summary.tokens + counter.text(opening)
    return structs.replace(
        summary, text=f"{opening}{summary.text}", tokens=tokens, requests=len(opening) + summary.requests
    )


def missing_lines(text: str, lines: Sequence[str]) -> str:
    """Those of the lines that a text does not hold, each with its end."""
    plain = _plain(text)
    return "".join(f"{line}\n" for line in lines if not _holds(text, plain, line))


def _holds(text: str, plain: str, line: str) -> bool:
    """Is the line there, in whatever length, or are its words?"""
    label, _, said = line.partition(": ")
    return text.startswith(f"{label}: ") or f"\n{label}: " in text or _plain(said) in plain


def _plain(text: str) -> str:
    return " ".join(text.split())


def _line(label: str, asked: Asked, limit: int, shorten: Shorten) -> str:
    handle, said = handle_of(asked.number), shorten(asked, _said(asked), limit).strip()
    return f"{label} {handle}: {said}" if said and said != _MARK.spell(handle=handle).strip() else ""


def _said(asked: Asked) -> str:
    """What a message asks for, in which no line reads as one of ours."""
    mark, message = _MARK.spell(handle=handle_of(asked.number)).strip(), with_ends(asked.message, MAX_LEDGER)
    said = request_text(message, mark) or visible(message.text)
    return quoted_lines(said, own=handle_of(asked.number))


def _limits(asked: Sequence[Asked], most: int, counter: TokenCounter) -> list[int]:
    """What each of several messages may take of `most` tokens: short ones are whole, and the others share the rest."""
    if len(asked) < 2:
        return [most] * len(asked)
    return [fair_share([counter.text(_said(one)) for one in asked], most)] * len(asked)


def _is_shown(asked: Asked, shown: Sequence[Item], limit: int) -> bool:
    """Is a message shown whole, or at least as much of it as a line would hold?"""
    item = next((item for item in shown if item.seq == asked.number), None)
    if item is None:
        return False
    return (
        item.tokens >= limit
        or item.message is asked.message
        or _said_in(item.message) == _said_in(asked.message)
    )


def _said_in(message: Message) -> str:
    return request_text(with_ends(message, MAX_LEDGER))


def _is_turn(message: Message) -> bool:
    """Does a message belong to a turn? What the system says may stand anywhere."""
    return message.role in ("user", "assistant", "tool")


def keep_ends(number: int, text: str, limit: int, counter: TokenCounter) -> str:
    """The beginning and the end of the text of a message, in as many tokens."""
    length, handle = len(text), handle_of(number)
    short = text
    while counter.text(short) > limit and length > len(_MARK.text):
        length = min(limit * _CHARACTERS_PER_TOKEN, int(length * _SHORTER))
        short = truncate(text, length, _MARK, handle)
    return short
