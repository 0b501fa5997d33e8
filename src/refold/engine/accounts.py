"""What was reported for what: per call by the provider, per session as a sum, per message as far as it can be derived.

One idea: a provider reports calls, not messages. A reply's tokens are its call's output; what came between two calls is what the
prompt has grown by, shared out by our own counts and marked as derived. Nothing is guessed where nothing was reported, nor where
something else was said before the reply came.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from refold.core.measure import backfill
from refold.model.tokens import Usage
from refold.ports.store import Call, Stored


class MessageTokens(Struct, frozen=True):
    """One message: `reported` came from the provider, `derived` from the difference of two reports, `counted` is our own."""

    seq: int
    tokens: int
    source: Literal["reported", "derived", "counted"]


def session_usage(calls: Sequence[Call]) -> dict[str, Usage]:
    """What the calls of each session took together, summaries included."""
    found: dict[str, Usage] = {}
    for call in calls:
        found[call.session] = found.get(call.session, Usage()) + call.usage
    return found


def message_tokens(calls: Sequence[Call], messages: Sequence[Stored]) -> list[MessageTokens]:
    """The best that is known about each message; calls and messages in their order."""
    known = {one.seq: MessageTokens(one.seq, one.tokens, "counted") for one in messages}
    replies = [call for call in calls if call.kind == "reply"]
    made = {one.seq for one in messages if one.role == "assistant"}
    for call in replies:
        if call.size in made and call.usage.output:
            known[call.size] = MessageTokens(call.size, call.usage.output, "reported")
    for before, after in pairwise(replies):
        if before.size in made:
            _derive(before, after, known)
    return [known[one.seq] for one in messages]


def _derive(before: Call, after: Call, known: dict[int, MessageTokens]) -> None:
    """Tokens of what came between a reply and the next call, unless the window was folded meanwhile."""
    between = [seq for seq in range(before.size + 1, after.size) if seq in known]
    if before.session != after.session:
        return
    shares = backfill(before.usage, after.usage, [known[seq].tokens for seq in between])
    for seq, tokens in zip(between, shares, strict=True):
        if tokens:
            known[seq] = MessageTokens(seq, tokens, "derived")
