"""Make a window fit without any summary being written, whatever it takes.

One idea: the policy's hardest stages take away what they must, and what they took is named. Where whole messages went, the
task and the previous summary stay in front, shortened if there is no other way, with the handles of what is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from refold.core.assemble import lead_of, summary_handle
from refold.core.budget import share_of
from refold.core.fold import Folded
from refold.core.policy import Policy
from refold.core.stages import AnyStage
from refold.core.stages.shown import Edit, Room, Shown, handle_of
from refold.core.summary.pieces import head
from refold.core.unread import LEAST_BESIDE, needed
from refold.model.summary import Summary
from refold.model.window import Fixed

TASK_SHARE = 0.15
"""Of the room, for what the user asked first, where that is no longer shown."""
PREVIOUS_SHARE = 0.35
"""Of the room, for the summary so far, where there is no room for all of it."""
_CHARACTERS_PER_TOKEN = 3
"""A careful guess: what is cut by it must fit."""


def reduce(shown: Shown, stages: tuple[AnyStage, ...], room: Room) -> tuple[Shown, tuple[Edit, ...]]:
    """What is left after some stages, one after the other."""
    edits: list[Edit] = []
    for stage in stages:
        result = stage.apply(shown, room)
        shown = result.shown
        edits += result.edits
    return shown, tuple(edits)


def squeeze_in(
    folded: Folded,
    policy: Policy,
    stages: tuple[AnyStage, ...],
    room: Room,
    fixed: Fixed | None = None,
) -> tuple[Folded, tuple[Edit, ...]]:
    """The branch shown so that it takes no more than `room`, which is for summaries and messages together, if it can be."""
    plain = _squeezed(folded, stages, room)
    if plain[0].tokens <= room.tokens and not _gone(folded, plain[0]):
        return plain
    so_far = folded.summaries
    noted = _squeezed(_noted(folded, so_far, policy, room, (), fixed), stages, room)
    gone = _gone(folded, noted[0])
    named = _noted(noted[0], so_far, policy, room, gone, fixed)
    if gone and named.tokens <= room.tokens:
        return named, noted[1]
    return noted if noted[0].tokens <= room.tokens or _gone(folded, plain[0]) else plain


def _squeezed(folded: Folded, stages: tuple[AnyStage, ...], room: Room) -> tuple[Folded, tuple[Edit, ...]]:
    lead = folded.lead.tokens
    left = structs.replace(room, tokens=max(0, room.tokens - lead), instructions=room.instructions + lead)
    shown, edits = reduce(folded.items, stages, left)
    return (folded.show(shown.items) if edits else folded), edits


def _gone(before: Folded, after: Folded) -> tuple[int, ...]:
    """Numbers of the messages that were shown and are not any more."""
    left = {after.number(index) for index in range(len(after.shown))}
    numbers = (before.number(index) for index in range(len(before.shown)))
    return tuple(number for number in numbers if number not in left)


def _noted(
    folded: Folded,
    so_far: tuple[Summary, ...],
    policy: Policy,
    room: Room,
    gone: tuple[int, ...],
    fixed: Fixed | None,
) -> Folded:
    """The same messages after a note that says what was there: the summary so far, or the task, and what is gone.

    The note stands after the summaries so far, so that their handles lead to them, whatever it had to leave out.
    """
    counter, left = room.counter, _beside_needed(folded, room)
    if so_far:
        last, number = so_far[-1], so_far[-1].number
        most = min(left, share_of(PREVIOUS_SHARE, room.tokens))
        cut = f"{head(last.text, most * _CHARACTERS_PER_TOKEN)}\n[… {summary_handle(number)} …]"
        before = last.text if counter.text(last.text) <= most else cut
    elif gone and _shows_task(folded):
        before = ""
    else:
        before = _task(folded, min(left, share_of(TASK_SHARE, room.tokens)) * _CHARACTERS_PER_TOKEN)
    text = "\n".join(line for line in (before, _said(gone, policy)) if line)
    if not text:
        return folded
    covered = max((*gone, so_far[-1].last - 1 if so_far else -1)) + 1
    note = Summary(text, 0, covered, counter.text(text), "mechanical", "cumulative")
    return folded.lead_by((*so_far, note), lead_of((note,), policy, room.dialect, counter, 0, fixed))


def _beside_needed(folded: Folded, room: Room) -> int:
    """Tokens that a note may take beside the messages that must stay."""
    must = sum(folded.shown[index].tokens for index in needed(folded, room.tokens).all)
    return max(share_of(LEAST_BESIDE, room.tokens), room.tokens - must)


def _task(folded: Folded, most: int) -> str:
    """What the user asked first."""
    if folded.task is None:
        return ""
    text, handle = folded.task.message.text, handle_of(folded.task.number)
    short = head(text, most)
    rest = "" if len(short) == len(text) else f" [… {handle} …]"
    return f"Task {handle}: {short}{rest}"


def _shows_task(folded: Folded) -> bool:
    asked, shown = folded.task, folded.shown.turn_starts
    return asked is not None and bool(shown) and folded.number(shown[0]) == asked.number


def _said(gone: tuple[int, ...], policy: Policy) -> str:
    """The policy's words for what is gone."""
    if not gone:
        return ""
    return policy.texts.dropped.replace("{count}", str(len(gone))).replace("{handles}", _spans(gone))


def _spans(gone: Iterable[int]) -> str:
    """Handles of what is gone, neighbours as one span."""
    spans: list[list[int]] = []
    for number in gone:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    said = [
        handle_of(first) if first == last else f"{handle_of(first)} to {handle_of(last)}"
        for first, last in spans
    ]
    return ", ".join(said)
