"""The user's task and open question, word for word, in the form that every summary carries.

A summary replaces the beginning of a conversation, so it must contain the task, regardless of its author:
a model, a digest, a mechanical summary or a function of the user's. The same holds for the question of a
turn that continues after the covered messages, for the user's later additions to it, and for a summary of
everything before it that the client itself had made.

Each is one line (`Task #m0: …`, `Question #m40: …`) at the beginning of the summary, unless the message
itself is shown or the summary already contains its words. A text that is longer than its share of the room
keeps its beginning and its end, with the handle that opens the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import structs

from refold.core.digest.line_markers import quoted_lines
from refold.core.digest.shorten import MAX_LEDGER, fair_share, with_ends
from refold.core.digest.terms import contains_separate_word
from refold.core.digest.typed_text import is_client_summary, request_text
from refold.core.fold import FoldedBranch, UserRequest
from refold.core.stage import Item, handle_of
from refold.core.stages.parts import Mark, truncate
from refold.model.message import Message, visible
from refold.model.summary import Summary
from refold.model.tokens import TokenCounter, share_of

TASK_SHARE = 0.10
"""Share of the room for the task: all user messages before the first reply together."""
LEAST_TASK, MOST_OF_SMALL, FRAME = 160, 0.3, 40
"""Tokens for the task in a small room, and the share of the room without the frame of a summary that they may take:
most tasks are no longer than a paragraph, and nothing in a summary is worth more."""
QUESTION_LINE_SHARE = 0.10
"""Share of the room for the open question: all its messages together."""
MAX_ROOM = 32_000
"""Tokens: shares refer to a room of at most this size, because longer texts are not read."""
SUMMARY_SHARE = 0.25
"""Share of the room for a summary that the client itself had made: it stands for a whole conversation."""
TASK, QUESTION, SUMMARY = "Task", "Question", "Summary"
_REQUEST = re.compile(rf"^(?:{TASK}|{QUESTION}|{SUMMARY}) #m[0-9]+: ", re.MULTILINE)
"""The beginning of a request. No line of a request looks like one: they are quoted."""
_MARK = Mark("\n[… {handle} …]\n")
_CHARACTERS_PER_TOKEN = 4
_SHORTER = 0.8
"""Factor by which a text is shortened in every attempt to make it fit."""

Shorten: TypeAlias = Callable[[UserRequest, str, int], str]
"""Shortens the text of a message to a number of tokens."""


def request_lines(
    folded: FoldedBranch,
    shown: Sequence[Item],
    last: int,
    room: int,
    *,
    counter: TokenCounter,
    shorten: Shorten | None = None,
    more: int = 0,
) -> tuple[str, ...]:
    """The lines that a summary of the messages numbered below `last` must contain, beside the messages that are `shown`.

    `room` is the room for messages in tokens; the task may take `more` tokens than its share of it. Only the originals of the conversation are read, so this can
    run in another thread than the indexing, unless `shorten` reads the index.
    """
    room = min(room, MAX_ROOM)
    cut = shorten or (lambda asked, text, limit: keep_ends(asked.number, text, limit, counter))
    covered = [one for one in folded.task if one.number < last]
    numbers = {one.number for one in covered}
    task = [one for one in covered if not is_client_summary(one.message)]
    told = [one for one in covered if is_client_summary(one.message)]
    questions = [one for one in folded.questions_before(last) if one.number not in numbers]
    most = (
        max(share_of(TASK_SHARE, room), min(LEAST_TASK, share_of(MOST_OF_SMALL, max(0, room - FRAME)))) + more
    )
    most_told = share_of(SUMMARY_SHARE, room)
    shares = (
        (TASK, task, most),
        (SUMMARY, told, most_told),
        (QUESTION, questions, share_of(QUESTION_LINE_SHARE, room)),
    )
    lines = [
        _line(label, one, limit, cut)
        for label, asked, most in shares
        for one, limit in zip(asked, _limits(asked, most, counter), strict=True)
        if not _is_shown(one, shown, limit)
    ]
    return tuple(filter(None, lines))


def with_requests(summary: Summary, lines: Sequence[str], counter: TokenCounter) -> Summary:
    """The summary with the missing lines at the front."""
    opening = missing_lines(summary.text, lines)
    if not opening:
        return summary
    tokens = summary.tokens + counter.text(opening)
    return structs.replace(
        summary, text=f"{opening}{summary.text}", tokens=tokens, requests=len(opening) + summary.requests
    )


def without_questions(summary: Summary, counter: TokenCounter) -> Summary:
    """The summary without the questions at its front, for one that is made to cover more messages: a question may
    have been answered in them. `with_requests` adds those that are still open.
    """
    opening = summary.text[: summary.requests]
    starts = [0, *(found.start() for found in _REQUEST.finditer(opening)), len(opening)]
    entries = [opening[start:end] for start, end in pairwise(starts)]
    closed = [entry for entry in entries if entry.startswith(f"{QUESTION} ")]
    if not closed:
        return summary
    kept = "".join(entry for entry in entries if entry not in closed)
    tokens = max(0, summary.tokens - sum(map(counter.text, closed)))
    return structs.replace(summary, text=f"{kept}{summary.own_text}", tokens=tokens, requests=len(kept))


def missing_lines(text: str, lines: Sequence[str]) -> str:
    """The lines that a text does not contain, each with a line end."""
    plain = _plain(text)
    return "".join(f"{line}\n" for line in lines if not _holds(text, plain, line))


def _holds(text: str, plain: str, line: str) -> bool:
    """True if the text contains the line, in any length, or its words."""
    label, _, said = line.partition(": ")
    return (
        text.startswith(f"{label}: ") or f"\n{label}: " in text or contains_separate_word(plain, _plain(said))
    )


def _plain(text: str) -> str:
    return " ".join(text.split())


def _line(label: str, asked: UserRequest, limit: int, shorten: Shorten) -> str:
    handle, said = handle_of(asked.number), shorten(asked, _quoted_request(asked), limit).strip()
    return f"{label} {handle}: {said}" if said and said != _MARK.spell(handle=handle).strip() else ""


def _quoted_request(asked: UserRequest) -> str:
    """The request of a message, quoted so that none of its lines looks like one of ours."""
    mark, message = _MARK.spell(handle=handle_of(asked.number)).strip(), with_ends(asked.message, MAX_LEDGER)
    said = request_text(message, mark) or visible(message.text)
    return quoted_lines(said, own=handle_of(asked.number))


def _limits(asked: Sequence[UserRequest], most: int, counter: TokenCounter) -> list[int]:
    """Limit of each message within `most` tokens: short ones are whole, and the longer ones share the rest."""
    if len(asked) < 2:
        return [most] * len(asked)
    return [fair_share([counter.text(_quoted_request(one)) for one in asked], most)] * len(asked)


def _is_shown(asked: UserRequest, shown: Sequence[Item], limit: int) -> bool:
    """True if a message is shown in full, or at least as much of it as a line would hold."""
    item = next((item for item in shown if item.seq == asked.number), None)
    if item is None:
        return False
    is_long = item.tokens >= limit and not item.message.results  # beside a result, the text may be short
    return is_long or item.message is asked.message or _typed_text(item.message) == _typed_text(asked.message)


def _typed_text(message: Message) -> str:
    return request_text(with_ends(message, MAX_LEDGER))


def keep_ends(number: int, text: str, limit: int, counter: TokenCounter) -> str:
    """The beginning and the end of a message's text, in at most `limit` tokens."""
    length, handle = len(text), handle_of(number)
    short = text
    while counter.text(short) > limit and length > len(_MARK.text):
        length = min(limit * _CHARACTERS_PER_TOKEN, int(length * _SHORTER))
        short = truncate(text, length, _MARK, handle)
    return short
