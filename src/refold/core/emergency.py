"""Make a window fit without any summary being written, whatever it takes.

One idea: the policy's hardest stages take away what they must, and what they took is named. Where whole messages went, the
task, the open question, the user's rules and the previous summary stay in front, shortened if there is no other way, with the
handles of what is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import structs

from refold.core.assemble import lead_of, summary_handle
from refold.core.budget import share_of
from refold.core.digest.pieces import head
from refold.core.digest.sections import rules_section
from refold.core.fold import Folded, UserRequest
from refold.core.policy import Policy
from refold.core.shown import Edit, Item, Room, Shown, handle_of
from refold.core.stages import AnyStage
from refold.core.unread_cut import LEAST_BESIDE, needed
from refold.core.user_requests import missing_lines, request_lines
from refold.model.summary import Summary
from refold.model.window import Fixed

SHARES = ((0.35, 0.10), (0.15, 0.10), (0.0, 0.05), (0.0, 0.0))
"""Of the room, for the summary so far and for the rules that the user gave, where there is no room for all of them; the next pair where
the messages that must stay leave less. The last pair is for the emergency alone, which has made everything else smaller by then."""
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
    is_all_there = not _gone(folded, plain[0]) and _is_said(plain[0], room)
    if plain[0].tokens <= room.tokens and is_all_there:
        return plain
    so_far, noted = folded.summaries, plain
    for shares in SHARES if stages == policy.emergency else SHARES[:-1]:
        note = partial(_noted, so_far=so_far, policy=policy, room=room, fixed=fixed, shares=shares)
        noted = _squeezed(note(folded, gone=(), is_final=False), stages, room)
        gone = _gone(folded, noted[0])
        named = note(noted[0], gone=gone, is_final=True)
        if named.lead is not noted[0].lead and named.tokens <= room.tokens:
            return named, noted[1]
        if gone and noted[0].lead is folded.lead:
            # Nothing names what is gone, and there is no room for it: that is a window that does not fit.
            noted = named, noted[1]
        if noted[0].tokens <= room.tokens:
            return noted
    return noted if _gone(folded, plain[0]) else plain


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
    *,
    so_far: tuple[Summary, ...],
    policy: Policy,
    room: Room,
    fixed: Fixed | None,
    shares: tuple[float, float],
    gone: tuple[int, ...],
    is_final: bool,
) -> Folded:
    """The same messages after a note that says what was there: what the user asked for, their rules, the summary so far, and what is
    gone.

    The note stands after the summaries so far, so that their handles lead to them, whatever it had to leave out. One that is not
    final holds the task and the rules also where they are still shown: they may be about to go.
    """
    counter, left, before = room.counter, _beside_needed(folded, room), ""
    if so_far:
        last, number = so_far[-1], so_far[-1].number
        most = min(left, share_of(shares[0], room.tokens))
        is_small = counter.text(last.text) <= most
        before = (
            last.text
            if is_small
            else f"{head(last.own_text, most * _CHARACTERS_PER_TOKEN)}\n[… {summary_handle(number)} …]"
        )
    covered = max((*gone, so_far[-1].last - 1 if so_far else -1)) + 1
    shown = _left(folded) if is_final else _left(folded, without=folded.task)
    opening = missing_lines(before, _requests(folded, shown, covered, room))
    typed = [item.message.text for item in shown if item.message.role == "user"] if is_final else []
    said = "\n".join((before, opening, *typed))
    most = min(left, share_of(shares[1], room.tokens)) * _CHARACTERS_PER_TOKEN
    rules = rules_section(folded.ledger.rules, most, shown=said)
    text = "\n".join(line for line in (opening.rstrip("\n"), rules, before, _said(gone, policy)) if line)
    if not text:
        return folded
    told = so_far[-1].told_until if so_far else 0
    note = Summary(
        text, 0, covered, counter.text(text), "mechanical", "cumulative", requests=len(opening), told=told
    )
    return folded.lead_by((*so_far, note), lead_of((note,), policy, room.dialect, counter, 0, fixed))


def _beside_needed(folded: Folded, room: Room) -> int:
    """Tokens that a note may take beside the messages that must stay."""
    must = sum(folded.shown[index].tokens for index in needed(folded, room.tokens).all)
    return max(share_of(LEAST_BESIDE, room.tokens), room.tokens - must)


def _requests(folded: Folded, shown: Sequence[Item], covered: int, room: Room) -> tuple[str, ...]:
    """What the user asked for, as far as it is not shown beside a note about the messages before the number `covered`."""
    return request_lines(folded, shown, covered or folded.size, room.tokens, counter=room.counter)


def _is_said(folded: Folded, room: Room) -> bool:
    """Is all that the user asked for shown, or in the summary before it?"""
    lead, covered = folded.lead, folded.summaries[-1].last if folded.summaries else 0
    before = "\n".join((lead.block, *(message.text for message in lead.messages)))
    return not missing_lines(before, _requests(folded, folded.items.items, covered, room))


def _left(folded: Folded, without: tuple[UserRequest, ...] = ()) -> tuple[Item, ...]:
    numbers = {asked.number for asked in without}
    return tuple(item for item in folded.items.items if item.seq not in numbers)


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
