"""The budget of a call: how large its window may be, and how much output it may ask for.

`Frame` stays the same from call to call, `Now` is one moment. `Wall` and `OutputRoom` follow from both: sums over totals, so
computing them is cheap. Decisions and displays use the same functions, so they cannot disagree about a size. No function here
builds or changes a message; `assemble` does that.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import ceil

from msgspec import Struct, structs

from refold.core.fold import FoldedBranch
from refold.core.measure import FixedCost
from refold.core.policy import Moment, Policy
from refold.core.stage import Edit, Room
from refold.core.system_messages import newest_instruction
from refold.model.errors import BudgetError, Overflow
from refold.model.tokens import Budget, Prices, Share, WindowSource, input_limit, tokens_of
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


class NewTopic(Struct, frozen=True):
    """A recognised change of topic."""

    first: int
    """The number of the first message of the new topic."""
    at: int
    """The number of the user's message with which the change was certain."""
    distance: float
    """Of the turns of the new topic to the topic before."""


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


OUTPUT_PART = 8
"""No more than this part of the window is kept free for a reply whose length is not stated: a window of 8k must
not be all reply."""
STATED_SOURCES: tuple[WindowSource, ...] = ("override", "upstream")
"""Sources that a provider's refusal does not replace."""


def with_window(budget: Budget, window: int) -> Budget:
    """The budget of a window that a provider has stated. An output that no request states follows the window."""
    output = budget.max_output
    if not budget.is_output_stated:
        output = min(output, window // OUTPUT_PART)
    # A larger window than the known one is another model's, or a new version's: its input limit is not known.
    most = budget.max_input if window <= budget.window else 0
    return structs.replace(
        budget,
        window=window,
        source="learned",
        limit=min(budget.limit, window),
        max_input=most,
        max_output=output,
    )


@lru_cache(maxsize=256)
def arithmetic(budget: Budget, output: int | None = None) -> str:
    """The wall as a sum, for displays and errors. Cached, because it is stored with every commit."""
    output = budget.max_output if output is None else output
    reserve = tokens_of(budget.reserve, budget)
    room = budget.window - output - reserve
    text = f"window {budget.window:,} − output {output:,} − reserve {reserve:,} = {room:,}"
    if budget.max_input and budget.max_input < room:
        text += f", at most {budget.max_input:,} as the model's input"
    if budget.limit and budget.limit < room:
        text += f", limited to {budget.limit:,}"
    return text


# Output of a request
#
# Instructions (system prompt and tools) and output are taken from the window before the messages.
# If they leave less than a quarter of it, the window is tight: a request that does not fit asks for
# less output, until messages have that quarter. The output is never lowered below `least_output`,
# and a request that fits keeps the output that it asked for.

MESSAGES_PART = 4
"""Messages get a quarter of the window before the requested output is granted in full: the newest turn of a
coding agent rarely takes more."""
LEAST_OUTPUT = 4_096
"""Tokens: enough for a reply with some tool calls. A client that writes large files asks again if its reply was cut."""
LEAST_PART = 8
"""In small windows the least output is the window divided by this."""
BEYOND_THINKING = 1_024
"""Tokens of output beyond the thinking budget: Anthropic counts thinking as output, and refuses a budget that
takes all of it."""
STAGE = "output"
"""Stage name in the recorded edit."""
NO_SEQ = -1
"""Message number in the edit: the change concerns no message."""


class OutputRoom(Struct, frozen=True):
    """The parts of the window that one request's output and instructions take, in the provider's tokens."""

    window: int
    instructions: int
    asked: int
    """The requested output."""
    lowered: int
    """The output to ask for if the request does not fit with `asked`; equal to `asked` if it must not be lowered."""
    reserve: int
    max_input: int = 0
    """The model's own limit of input; 0 if it has none besides its window."""

    @property
    def left(self) -> int:
        """Tokens left for messages with the requested output; may be negative."""
        return self.left_with(self.asked)

    def left_with(self, output: int) -> int:
        """Tokens left for messages with this output."""
        most = self.window - output
        return min(most, self.max_input or most) - self.instructions

    @property
    def is_tight(self) -> bool:
        return self.left * MESSAGES_PART < self.window

    def arithmetic(self, output: int) -> str:
        """The room for messages, written as a sum."""
        left, rest = self.left_with(output), self.window - self.instructions - output
        was = f" (lowered from {self.asked:,})" if output < self.asked else ""
        held = min(self.reserve, left)
        kept = f" ({held:,} of them in reserve)" if held > 0 else ""
        most = f", at most {left:,} by the model's input of {self.max_input:,}" if left < rest else ""
        return (
            f"window {self.window:,} − instructions {self.instructions:,} − output {output:,}{was}"
            f" = {rest:,} left for messages{most}{kept}"
        )

    @property
    def warning(self) -> str:
        """The warning for a conversation with a tight window."""
        return (
            f"messages have less than a quarter of the window: {self.arithmetic(self.asked)};"
            " a smaller output, or fewer tools, leaves them more"
        )

    def edit(self, output: int) -> Edit:
        """The record of a request that was sent with less output than it asked for."""
        left = self.left_with(output)
        reason = f"output lowered: instructions take {self.instructions:,} of {self.window:,} tokens, {left:,} are left for messages"
        return Edit(STAGE, NO_SEQ, self.asked, output, reason)


@lru_cache(maxsize=256)
def output_room(budget: Budget, instructions: int) -> OutputRoom:
    """The room of a budget, with instructions of so many of the provider's tokens. Cached, because every
    decision about one request needs it again.
    """
    window, asked = budget.window, budget.max_output
    quarter = -(-window // MESSAGES_PART)
    wanted = max(window - instructions - quarter, least_output(window, budget.thinking))
    reserve = tokens_of(budget.reserve, budget)
    return OutputRoom(window, instructions, asked, min(asked, wanted), reserve, budget.max_input)


def output_after(
    found: Overflow, budget: Budget, *, output: int, prompt: int, instructions: int, reserve: int
) -> int:
    """The output to ask for after a provider refused a request with `prompt` tokens of input and this `output` as too long.

    If only input and output together were too long, the output is the rest of the window beside the input,
    or the least output if the provider stated no window. Otherwise it is the output of any request in the
    stated window.
    """
    is_stated = found.limit is not None and found.limit_of == "window"
    window = min(found.limit or budget.window, budget.window) if is_stated else budget.window
    least = min(output, least_output(window, budget.thinking))
    if found.kind == "input_plus_output":
        return max(least, min(output, window - prompt - reserve)) if is_stated else least
    stated = structs.replace(budget, window=window, limit=0, max_output=output)
    return output_room(stated, instructions).lowered


def least_output(window: int, thinking: int = 0) -> int:
    """The output below which no request is lowered. A request that asks for less keeps its output."""
    least = min(LEAST_OUTPUT, window // LEAST_PART)
    return max(least, thinking + BEYOND_THINKING) if thinking else least


def check_room(budget: Budget, *, instructions: int, lowers: bool = True) -> None:
    """Refuse a budget in which no conversation fits, before compaction is attempted. With `lowers`, the
    output counts as far lowered as the policy allows.

    Raises:
        BudgetError: output, reserve, system prompt and tools leave no room for messages.
    """
    sizes = output_room(budget, instructions)
    output = sizes.lowered if lowers else sizes.asked
    room = input_limit(budget, output)
    if room <= 0:
        raise BudgetError(
            f"max_output ({output:,}) and the reserve fill the whole window of {budget.window:,} tokens",
            hint=f"{sizes.arithmetic(output)}; lower max_output, or use a model with a larger window",
        )
    if instructions >= room:
        raise BudgetError(
            f"the system prompt and the tools take {instructions:,} of the {room:,} tokens there are for input",
            hint=f"{sizes.arithmetic(output)}; shorten them, lower max_output, or use a model with a larger window",
        )
