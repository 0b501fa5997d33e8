"""The inputs of a plan: the frame that stays the same from call to call, the moment, and the sizes computed from both.

Sizes and limits are sums over totals, so computing them is cheap. Decisions and displays use the same
functions, so they cannot disagree about a size.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil

from msgspec import Struct

from refold.core.budget import OutputRoom, input_limit, output_room, tokens_of
from refold.core.fold import FoldedBranch
from refold.core.measure import FixedCost
from refold.core.policy import Moment, Policy
from refold.core.stage import Room
from refold.core.system_messages import newest_instruction
from refold.core.topic_change import NewTopic
from refold.model.tokens import Budget, Prices, Share
from refold.model.window import FixedFields


class Frame(Struct, frozen=True, dict=True):
    """The inputs that stay the same from call to call: the client's instructions, the budget, the policy, the prices."""

    fixed: FixedFields
    cost: FixedCost
    budget: Budget
    policy: Policy
    prices: Prices | None = None
    bridge: int = 0
    """Tokens of the bridge message that stands first if no other user message does."""
    overhead: int | None = None
    """Tokens of system prompt and tools by the provider's reports, in our tokens; None if our count is used."""

    @cached_property
    def instructions(self) -> int:
        """Tokens of system prompt and tools."""
        return self.cost.total.tokens if self.overhead is None else self.overhead

    @property
    def regions(self) -> FixedCost:
        """The same tokens, for system prompt and tools apart."""
        return self.cost if self.overhead is None else self.cost.with_total(self.overhead)

    @cached_property
    def walls(self) -> dict[tuple[int | None, int | None, float], Wall]:
        """Cache of `wall_of`, because every decision about one request needs the wall again."""
        return {}


class Wall(Struct, frozen=True):
    """The most that a request may hold at one moment."""

    output: int
    """The output that a request asks for if it does not fit with the budget's output."""
    room: int
    """Most tokens of input beside that output by the budget, in the provider's count."""
    limit: int
    """The same in our count, with the limit that a refusal has taught."""
    target: int
    """The size to which a compaction should shrink the window, in our count."""


class Now(Struct, frozen=True):
    """The inputs of one moment."""

    moment: Moment
    size: int | None = None
    """The best known size of the context; None if it has to be counted."""
    reported: int | None = None
    idle_s: float | None = None
    limit: int | None = None
    """A limit learnt from a provider's refusal, in our tokens."""
    output: int | None = None
    """The output to ask for after a refusal of input and output together, instead of the requested one."""
    ratio: float = 1.0
    """The provider's tokens per token of ours, as observed."""
    flag: str = ""
    """The reason for which an earlier moment asked for a compaction now."""
    in_vain: int = 0
    """Number of compactions in a row that gained nothing."""
    keep: int | None = None
    """Tokens to keep, instead of the policy's number."""
    cut: int | None = None
    """The messages below this number leave, instead of those of the policy's cut."""
    is_prepared: bool = False
    """Whether a summary was written ahead of time."""
    largest_output: int = 0
    """The largest output that the last calls asked for."""
    topic: NewTopic | None = None
    """The last change of topic, if the policy looks for changes and one was recognised."""


BEFORE_CALL = Now("before_call")
"""A call without special circumstances."""


def size_of(folded: FoldedBranch, frame: Frame) -> int:
    """Tokens of instructions, summaries and messages, in our count."""
    return frame.instructions + folded.tokens + frame.bridge * folded.bridges


MOST_WALLS = 8
"""Walls that a frame remembers: those of the last ratios that the provider's reports have shown."""


def wall_of(frame: Frame, *, ratio: float = 1.0, limit: int | None = None, output: int | None = None) -> Wall:
    """The wall at a moment; `ratio`, `limit` and `output` as in `Now`."""
    key, walls = (limit, output, ratio), frame.walls
    found = walls.get(key)
    if found is None:
        if len(walls) >= MOST_WALLS:
            walls.clear()
        found = walls[key] = _wall(frame, ratio, limit, output)
    return found


def wall_at(frame: Frame, now: Now) -> Wall:
    """The wall at this moment."""
    return wall_of(frame, ratio=now.ratio, limit=now.limit, output=now.output)


def _wall(frame: Frame, ratio: float, most: int | None, output: int | None) -> Wall:
    budget, target = frame.budget, frame.policy.target
    if output is not None:
        output = min(output, budget.max_output)
    elif frame.policy.enabled:
        output = output_room(budget, ceil(frame.instructions * ratio)).lowered
    else:
        output = budget.max_output
    room = input_limit(budget, output)
    limit = _counted(room, ratio, most)
    effective = max(0, limit - frame.instructions)
    wanted = tokens_of(target, budget, effective=effective)
    if isinstance(target, Share) and target.of == "effective":
        wanted += frame.instructions
    return Wall(output, room, limit, wanted)


def _counted(room: int, ratio: float, most: int | None) -> int:
    """A limit of the provider in our count, and not above the limit that a refusal has taught."""
    limit = room if ratio == 1 else int(room / ratio)
    return limit if most is None else min(limit, most)


def limit_for(frame: Frame, now: Now, output: int | None = None) -> int:
    """Most tokens of input, in our count, if the request asks for `output`. The default is the lowest output
    allowed: nothing is summarised or shortened for an output that can be lowered instead.
    """
    wall = wall_at(frame, now)
    if output is None or output == wall.output:
        return wall.limit
    return _counted(input_limit(frame.budget, output), now.ratio, now.limit)


def room_of(frame: Frame, now: Now) -> OutputRoom:
    """The room that output and instructions leave for messages, in the provider's count."""
    return output_room(frame.budget, ceil(frame.instructions * now.ratio))


def lowered_output(frame: Frame, now: Now) -> int:
    """The output that a request asks for if it does not fit with the budget's output."""
    return wall_at(frame, now).output


def output_for(folded: FoldedBranch, frame: Frame, now: Now) -> int:
    """The output to ask for with this window: the requested one, unless the window does not fit with it."""
    if now.output is None and size_of(folded, frame) <= limit_for(frame, now, frame.budget.max_output):
        return frame.budget.max_output
    return lowered_output(frame, now)


def fits(folded: FoldedBranch, frame: Frame, now: Now) -> bool:
    return size_of(folded, frame) <= wall_at(frame, now).limit


def room_for(folded: FoldedBranch, frame: Frame, now: Now) -> Room:
    """The room that stages may fill with messages."""
    view, instructions = folded.shown, frame.instructions
    newest, compacted = newest_instruction(folded.instructions), folded.compacted[:1]
    before = folded.lead.tokens or frame.bridge
    if newest is not None and folded.lead.tokens and view.dialect.system_follows_user:
        before += frame.bridge  # it may have to stand first
    if folded.lead.ends_with_assistant or (folded.lead.tokens and not folded.lead.messages):
        before += frame.bridge  # the summary stands among the instructions, and the assistant may speak first
    if compacted and view.dialect.starts_with_user:
        before += frame.bridge
    pinned = folded.pinned | folded.settings | {*compacted}
    free = limit_for(frame, now) - instructions - before
    tools, target = frame.policy.file_tools, target_for(frame, now) - instructions - before
    return Room(
        max(0, free),
        instructions + before,
        view.counter,
        view.dialect,
        pinned,
        newest=newest,
        tools=tools,
        pruned=folded.pruned,
        target=max(0, min(free, target)),
    )


def effective_for(frame: Frame, now: Now) -> int:
    """The tokens that the instructions leave for summaries and messages."""
    return max(0, limit_for(frame, now) - frame.instructions)


def target_for(frame: Frame, now: Now) -> int:
    """The size to which a compaction should shrink the window."""
    return wall_at(frame, now).target
