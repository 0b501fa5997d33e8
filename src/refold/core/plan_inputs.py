"""What a plan is made for: the frame that stays from call to call, the moment, and the sizes that follow from both.

One idea: how much there is and how much may be sent are plain sums over totals, so that asking is free. Everything that
decides, and everything that only tells, asks here, and they can never disagree about a size.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil

from msgspec import Struct, structs

from refold.core.budget import OutputRoom, input_limit, output_room, tokens_of
from refold.core.cost import Prices
from refold.core.fold import Folded
from refold.core.measure import FixedCost
from refold.core.policy import Policy
from refold.core.shown import Room
from refold.core.system_messages import is_setting, newest_instruction
from refold.model.budget import Budget, Share
from refold.model.trigger import Moment
from refold.model.window import Fixed


class Frame(Struct, frozen=True, dict=True):
    """What stays the same from call to call: the client's instructions, the budget, the policy, the prices."""

    fixed: Fixed
    cost: FixedCost
    budget: Budget
    policy: Policy
    prices: Prices | None = None
    bridge: int = 0
    """What the user's words take that stand first where nothing else of the user's does."""

    @cached_property
    def instructions(self) -> int:
        """What system prompt and tools take, in tokens."""
        return self.cost.total.tokens


class Now(Struct, frozen=True):
    """What is special about this moment."""

    moment: Moment
    size: int | None = None
    """The best measure of the context there is; None where it has to be counted."""
    reported: int | None = None
    idle_s: float | None = None
    limit: int | None = None
    """A limit learnt from a provider's refusal, as we count: the window must be no larger than this."""
    window: int | None = None
    """The window as a provider stated it when it refused input and output together; None where none did."""
    output: int | None = None
    """The output to ask for after such a refusal, whatever was asked for."""
    ratio: float = 1.0
    """How many of the provider's tokens one of ours has turned out to be."""
    flag: str = ""
    """Why an earlier moment asked for a compaction now."""
    in_vain: int = 0
    """How many compactions in a row have gained nothing."""
    keep: int | None = None
    """So many tokens are to stay, whatever the policy says."""
    cut: int | None = None
    """The messages before this number are to leave, whatever the policy says."""


BEFORE_CALL = Now("before_call")
"""A call about which nothing special is known."""


def size_of(folded: Folded, frame: Frame) -> int:
    """What instructions, summaries and messages take, as we count."""
    return frame.instructions + folded.tokens + frame.bridge * folded.bridges


def limit_for(frame: Frame, now: Now, output: int | None = None) -> int:
    """The most that may be sent, as we count, where the request asks for `output`: unless given, the least that it may be
    lowered to. Nothing is folded or shortened for an output that can be lowered instead.
    """
    output = lowered_output(frame, now) if output is None else output
    limit = input_limit(_budget(frame, now), output)
    limit = limit if now.ratio == 1 else int(limit / now.ratio)
    return limit if now.limit is None else min(limit, now.limit)


def room_of(frame: Frame, now: Now) -> OutputRoom:
    """What output and instructions leave for messages, as the provider counts."""
    return output_room(_budget(frame, now), ceil(frame.instructions * now.ratio))


def lowered_output(frame: Frame, now: Now) -> int:
    """The output that a request asks for where it does not fit with the one it was made for."""
    if now.output is not None:
        return min(now.output, frame.budget.max_output)
    return room_of(frame, now).lowered if frame.policy.enabled else frame.budget.max_output


def output_for(folded: Folded, frame: Frame, now: Now) -> int:
    """The output to ask for with this window: the one that was asked for, unless the window does not fit with it."""
    if now.output is None and size_of(folded, frame) <= limit_for(frame, now, frame.budget.max_output):
        return frame.budget.max_output
    return lowered_output(frame, now)


def _budget(frame: Frame, now: Now) -> Budget:
    budget = frame.budget
    if now.window is None or now.window >= budget.window:
        return budget
    return structs.replace(budget, window=now.window, limit=min(budget.limit, now.window))


def fits(folded: Folded, frame: Frame, now: Now) -> bool:
    return size_of(folded, frame) <= limit_for(frame, now)


def room_for(folded: Folded, frame: Frame, now: Now) -> Room:
    """What stages may fill with messages."""
    view, instructions = folded.shown, frame.instructions
    items = folded.items.items
    newest, compacted = newest_instruction(items), folded.compacted[:1]
    before = folded.lead.tokens or frame.bridge
    if newest is not None and folded.lead.tokens and view.dialect.system_follows_user:
        before += frame.bridge  # it may have to stand first
    if compacted and view.dialect.starts_with_user:
        before += frame.bridge
    settings = (item.seq for item in items if is_setting(item.message))
    pinned = folded.pinned | {*settings, *compacted}
    free = limit_for(frame, now) - instructions - before
    return Room(max(0, free), instructions + before, view.counter, view.dialect, pinned, newest=newest)


def effective_for(frame: Frame, now: Now) -> int:
    """What the instructions leave."""
    return max(0, limit_for(frame, now) - frame.instructions)


def target_for(frame: Frame, now: Now) -> int:
    """The size to get down to."""
    instructions, target = frame.instructions, frame.policy.target
    wanted = tokens_of(target, frame.budget, effective=effective_for(frame, now))
    return wanted + instructions if isinstance(target, Share) and target.of == "effective" else wanted
