"""Fulfil a summary request without any model.

One idea: what must not be lost is carried word for word, the task and the user's rules first; the rest of the room goes to a
digest of what leaves, chosen against what stays in sight.
"""

from __future__ import annotations

from refold.core.budget import exact
from refold.core.fold import Folded
from refold.core.plan import Frame, SummaryRequest
from refold.core.stages.shown import Item, handle_of
from refold.core.summary.extract import Digest, Sight, digest
from refold.core.summary.pieces import head
from refold.model.summary import Summary

TASK_SHARE = 0.15
"""Of the summary's room, for what the user asked first: a longer task is cut at a line end, with its handle."""
RULES_SHARE = 0.20
FRAMING_TOKENS = 8
"""What a message costs beyond its text, in every dialect's worst case."""


def summarise(request: SummaryRequest, folded: Folded, frame: Frame) -> Summary:
    """The task, the rules and a digest, within the room that the request gives."""
    counter = folded.shown.counter
    room = _room(request, frame)
    words = counter.text(frame.policy.texts.opening) + counter.text(frame.policy.texts.closing)
    pins = _pins(folded, request, room)
    budget = max(0, room - words - FRAMING_TOKENS - counter.text(pins))
    found = digest(
        folded.facts,
        first=request.first,
        last=request.last,
        budget=budget,
        window=frame.budget.window,
        counter=counter,
        sight=_sight(request, frame, pins),
        previous=Digest(reserve=request.previous[-1].reserve if request.previous else ()),
        turn_from=request.turn_from,
    )
    text = "\n".join(part for part in (pins, found.text) if part)
    tokens = counter.text(text) + words + FRAMING_TOKENS
    return Summary(text, 0, request.last, tokens, "extractive", "cumulative", found.reserve)


def _room(request: SummaryRequest, frame: Frame) -> int:
    """As much as the policy gives a summary, but not so much that the next one would be due at once."""
    effective = max(0, frame.budget.window - frame.budget.max_output - frame.cost.total.tokens)
    kept = sum(item.tokens for item in request.kept)
    target = (
        int(exact(frame.policy.target.fraction) * effective)
        if hasattr(frame.policy.target, "fraction")
        else effective
    )
    return min(request.max_tokens, max(target - kept, effective * 3 // 20), max(0, effective - kept - 16))


def _pins(folded: Folded, request: SummaryRequest, room: int) -> str:
    """The task and the rules, where they are not shown anyway."""
    shown = {item.seq for item in request.kept}
    lines: list[str] = []
    first = next((index for index in folded.branch.turn_starts if index not in shown), None)
    if first is not None and first == folded.branch.turn_starts[0]:
        task = folded.branch[first].message.text
        short = head(task, int(room * 4 * TASK_SHARE))
        lines.append(f"Task {handle_of(first)}: {short}{' …' if len(short) < len(task) else ''}")
    left = int(room * 4 * RULES_SHARE)
    for rule in folded.ledger.rules:
        if any(rule in line for line in lines) or len(rule) > left:
            continue
        left -= len(rule)
        lines.append(rule)
    return "\n".join(lines)


def _sight(request: SummaryRequest, frame: Frame, pins: str) -> Sight:
    system = tuple(message.text for message in frame.fixed.system)
    partly = tuple(item.seq for item in request.kept if _is_cut(item))
    whole = tuple(item.seq for item in request.kept if not _is_cut(item))
    cut = tuple(_text(item) for item in request.kept if _is_cut(item))
    return Sight((*system, pins, *cut), whole, partly)


def _is_cut(item: Item) -> bool:
    return handle_of(item.seq) in _text(item)


def _text(item: Item) -> str:
    message = item.message
    calls = (f"{call.name} {call.arguments}" for call in message.calls)
    return "\n".join((message.text, *calls, *(result.text for result in message.results)))
