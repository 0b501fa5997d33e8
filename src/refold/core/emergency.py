"""Makes a window fit without a summary from a model.

The policy's hardest stages remove as much as needed. If whole messages are removed, a note before the
others holds the task, the open question, the user's rules and the previous summary, shortened if
necessary, with the handles of the removed messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec import structs

from refold.core.assemble import lead_of, summary_handle
from refold.core.budget import share_of
from refold.core.digest.pieces import head
from refold.core.digest.sections import rules_section
from refold.core.fold import Folded, UserRequest, unread_by_model
from refold.core.long_messages import LEAST_BESIDE, needed
from refold.core.policy import Policy
from refold.core.secrets import redact
from refold.core.stage import Edit, Item, Room, handle_of, reduce
from refold.core.stages import AnyStage
from refold.core.user_requests import missing_lines, request_lines
from refold.model.summary import Summary, joined
from refold.model.window import Fixed

SHARES = ((0.35, 0.10), (0.15, 0.10), (0.0, 0.05), (0.0, 0.0))
"""Shares of the room for the summary so far and for the user's rules, if both do not fit in full. The next
pair is tried if the messages that must stay leave less. The last pair is for the emergency stages alone,
which have shrunk everything else by then."""
NAMES = 16
"""Tokens left for the names of the messages that are removed in addition, to make room for the names themselves."""
_CHARACTERS_PER_TOKEN = 3
"""A low estimate: text cut by it must fit."""


def squeeze_in(
    folded: Folded,
    policy: Policy,
    stages: tuple[AnyStage, ...],
    room: Room,
    fixed: Fixed | None = None,
) -> tuple[Folded, tuple[Edit, ...]]:
    """Shrink the branch to `room`, which is for summaries and messages together, if the stages can."""
    plain = _apply_stages(folded, stages, room)
    is_all_there = not _removed(folded, plain[0]) and _shows_requests(plain[0], room)
    if plain[0].tokens <= room.tokens and is_all_there:
        return plain
    folded = folded.with_ledger(folded.ledger)  # every note below needs it: read the messages once
    so_far, noted = folded.summaries, plain
    for shares in SHARES if stages == policy.emergency else SHARES[:-1]:
        note = partial(_with_note, so_far=so_far, policy=policy, room=room, fixed=fixed, shares=shares)
        begun = note(folded, gone=(), is_final=False)
        noted = _apply_stages(begun, stages, room)
        gone = _removed(folded, noted[0])
        named = note(noted[0], gone=gone, is_final=True)
        if gone and named.tokens > room.tokens:  # the names of the removed messages need room as well
            tokens = max(0, room.tokens - (named.lead.tokens - noted[0].lead.tokens) - NAMES)
            noted = _apply_stages(begun, stages, structs.replace(room, tokens=tokens))
            gone = _removed(folded, noted[0])
            named = note(noted[0], gone=gone, is_final=True)
        if named.lead is not noted[0].lead and named.tokens <= room.tokens:
            return named, noted[1]
        if gone and noted[0].lead is folded.lead:
            # No note names the removed messages, and there is no room for one: this window does not
            # fit.
            noted = named, noted[1]
        if noted[0].tokens <= room.tokens:
            return noted
    return noted if _removed(folded, plain[0]) else plain


def _apply_stages(
    folded: Folded, stages: tuple[AnyStage, ...], room: Room
) -> tuple[Folded, tuple[Edit, ...]]:
    lead = folded.lead.tokens
    left = structs.replace(room, tokens=max(0, room.tokens - lead), instructions=room.instructions + lead)
    shown, edits = reduce(folded.items, stages, left)
    return (folded.show(shown.items) if edits else folded), edits


def _removed(before: Folded, after: Folded) -> tuple[int, ...]:
    """Numbers of the messages that are shown before and not after."""
    left = {after.number(index) for index in range(len(after.shown))}
    numbers = (before.number(index) for index in range(len(before.shown)))
    return tuple(number for number in numbers if number not in left)


def _with_note(
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
    """The same messages after a note with the user's requests, their rules, the summary so far and the removed messages.

    The note follows the existing summaries in the list, so that their handles stay valid. A note that is
    not final includes the task and the rules even if they are still shown, because the stages may remove
    them.
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
    shown = _remaining_items(folded) if is_final else _remaining_items(folded, without=folded.task)
    opening = missing_lines(before, _requests(folded, shown, covered, room))
    typed = [item.message.text for item in shown if item.message.role == "user"] if is_final else []
    said = "\n".join((before, opening, *typed))
    most = min(left, share_of(shares[1], room.tokens)) * _CHARACTERS_PER_TOKEN
    rules = rules_section(folded.ledger.rules, most, shown=said)
    opening, rules = (redact(one, known=folded.secrets) for one in (opening, rules))  # a summary has none
    text = "\n".join(
        line for line in (opening.rstrip("\n"), rules, before, _dropped_text(gone, policy)) if line
    )
    if not text:
        return folded
    begins = min((*gone, *(item.seq for item in folded.items.items)), default=0)
    told = so_far[-1].told_until if so_far else begins
    note = Summary(
        text, 0, covered, counter.text(text), "mechanical", "cumulative", requests=len(opening), told=told
    )
    note = unread_by_model(note, joined(so_far), folded, begins)
    return folded.lead_by((*so_far, note), lead_of((note,), policy, room.dialect, counter, 0, fixed))


def _beside_needed(folded: Folded, room: Room) -> int:
    """Tokens that a note may take beside the messages that must stay."""
    must = sum(folded.shown[index].tokens for index in needed(folded, room.tokens).all)
    return max(share_of(LEAST_BESIDE, room.tokens), room.tokens - must)


def _requests(folded: Folded, shown: Sequence[Item], covered: int, room: Room) -> tuple[str, ...]:
    """The user's requests that the messages shown beside a note do not hold; the note covers the messages below `covered`."""
    return request_lines(folded, shown, covered or folded.size, room.tokens, counter=room.counter)


def _shows_requests(folded: Folded, room: Room) -> bool:
    """True if every request of the user is shown, or is in the summary before the messages."""
    lead, covered = folded.lead, folded.summaries[-1].last if folded.summaries else 0
    before = "\n".join((lead.block, *(message.text for message in lead.messages)))
    return not missing_lines(before, _requests(folded, folded.items.items, covered, room))


def _remaining_items(folded: Folded, without: tuple[UserRequest, ...] = ()) -> tuple[Item, ...]:
    numbers = {asked.number for asked in without}
    return tuple(item for item in folded.items.items if item.seq not in numbers)


def _dropped_text(gone: tuple[int, ...], policy: Policy) -> str:
    """The policy's text about the removed messages."""
    if not gone:
        return ""
    return policy.texts.dropped.replace("{count}", str(len(gone))).replace("{handles}", _spans(gone))


def _spans(gone: Iterable[int]) -> str:
    """Handles of the removed messages; neighbours become one span."""
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
