"""Candidates, each one way to keep a conversation inside a window: the protocol, the ways in common use, and Refold's presets.

A candidate sees a conversation as a model's client does, one message after the other, and is asked for the
context before every reply. A preset, another library and ten lines in a notebook are measured in the same
way.

    start(system, tools, window, counter)   a new conversation; all messages must fit into the window
    add(message)                            one message, in order, including the real replies
    context() -> messages                   the messages to send now, system messages first

A candidate may also implement any of the further protocols below; they are separate because few candidates
have all of these abilities.

A preset is the engine itself. With a model and without one, presets differ only in the author of the summaries. A model's
summary is available at once, as in a conversation in which it was requested in time; if the model fails, the same digest is
used as without a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct, structs

from refold.core import extractive_summary
from refold.core.budget import Frame
from refold.core.fold import FoldedBranch
from refold.core.plan import SummaryRequest
from refold.core.presets import PRESETS
from refold.core.prompts import Recipe
from refold.core.stage import HANDLE_PATTERN
from refold.engine import actions
from refold.engine.settings import usual_output
from refold.engine.state import Receipt, State
from refold.engine.summary_source import task_of
from refold.model.dialect import CHAT
from refold.model.errors import ConfigError
from refold.model.message import Message, Part, Text, ToolResult, user
from refold.model.summary import Summary
from refold.model.tokens import Budget, Prices, Share, TokenCounter, Tokens, share_of
from refold.model.window import FixedFields, Tool
from refold.replay.cost import ANTHROPIC
from refold.replay.facts import spoken_text

if TYPE_CHECKING:
    from refold.replay.summarisers import BlockingAuthor, OpenSummarisers, ReplaySummarisers


class ReplayBudget(Struct, frozen=True):
    """Tokens of every window that the messages do not get. None is the default of a conversation."""

    output: int | None = None
    """For the reply; by default an eighth of the window, at most 4,096."""
    reserve: int | None = None
    """By default each preset's own; others leave as much as the preset `refold`."""
    model: str = ""
    """The model whose longest reply limits the default output; empty for none."""

    def output_in(self, window: int) -> int:
        return usual_output(window, self.model) if self.output is None else self.output

    def room_in(self, window: int) -> int:
        """Tokens for messages.

        Raises:
            ConfigError: there are none.
        """
        reserve = (
            share_of(PRESETS["refold"].reserve.fraction, window) if self.reserve is None else self.reserve
        )
        room = window - self.output_in(window) - reserve
        if room < 1:
            raise ConfigError(
                f"output and reserve leave no room for messages in a window of {window:,} tokens",
                hint="lower --output and --reserve, or give a larger --window",
            )
        return room


WHOLE_WINDOW = ReplayBudget(output=0, reserve=0)
"""Messages may fill the window, as the independent scorers measure."""


class Candidate(Protocol):
    """One way to keep a conversation inside a window. A new candidate is made for each conversation."""

    @property
    def name(self) -> str: ...

    def start(
        self, system: tuple[Message, ...], tools: tuple[Tool, ...], window: int, counter: TokenCounter
    ) -> None: ...

    def add(self, message: Message) -> None: ...

    def context(self) -> tuple[Message, ...]:
        """The messages to send now.

        Raises:
            WindowError: nothing can be sent; the call counts as neither valid nor fitting.
        """
        ...


@runtime_checkable
class PlansOutput(Protocol):
    """Keeps output and reserve free itself, so that it is started with the whole window. Others are started
    with what these leave.
    """

    def leave(self, budget: ReplayBudget) -> None:
        """Keep this free in the next conversation."""
        ...

    @property
    def output(self) -> int:
        """The output that the request with the last context asks for."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """Can bring back messages that are not in the context."""

    def recall(self, query: str, max_tokens: int) -> str: ...


@runtime_checkable
class HasHandles(Protocol):
    """Leaves handles in the context, which are names and not facts."""

    @property
    def handle(self) -> str:
        """A regular expression that finds the handles."""
        ...


@runtime_checkable
class CallsModels(Protocol):
    """Calls a model of its own."""

    def model_calls(self) -> Sequence[tuple[int, int]]:
        """Input and output tokens of every call since the last time this was called."""
        ...


class WritingCost(Struct, frozen=True):
    """The cost of summaries written by a model."""

    asked: int = 0
    """Summaries requested."""
    failed: int = 0
    """Summaries that failed; a digest of the messages' own words is used instead."""
    input: int = 0
    """Tokens that the model read and wrote for them, at any time: a cached summary counts with its original
    cost.
    """
    output: int = 0
    dollars: float | None = 0.0
    """None if the prices of the model are not known."""

    def __add__(self, other: WritingCost) -> WritingCost:
        is_known = self.dollars is not None and other.dollars is not None
        return WritingCost(
            self.asked + other.asked,
            self.failed + other.failed,
            self.input + other.input,
            self.output + other.output,
            (self.dollars or 0.0) + (other.dollars or 0.0) if is_known else None,
        )


@runtime_checkable
class HasWriter(Protocol):
    """Has its summaries written by a model with prices of its own."""

    def writing(self) -> WritingCost:
        """The cost since the last time this was called."""
        ...


class Stopped(BaseException):  # not an error: code that handles exceptions must not swallow it
    """A candidate stops because the spending limit is reached. The replay ends with the finished recordings."""


class CandidateChange(Struct, frozen=True):
    """One change that a candidate made to its context."""

    decision: str
    """The kind of change, in a word such as `summarise`."""
    reason: str
    """The reason, without any content of the conversation."""
    before: int
    """Tokens before and after."""
    after: int


@runtime_checkable
class Explains(Protocol):
    """Reports its changes of the context."""

    def changes(self) -> Sequence[CandidateChange]:
        """Every change since the last time this was called."""
        ...


CandidateMaker: TypeAlias = Callable[[], Candidate]
"""Makes a candidate; a class or a module-level function, so that it can be pickled for another process."""


Unit: TypeAlias = tuple[Message, ...]
"""Messages that a provider accepts only together: a reply and the results of its calls."""

DROPPED = "[earlier messages were removed]"
_LAST_RESORT = (4_096, 2_048, 1_024, 512, 256, 128, 64)
"""Characters left at each end of a text, until everything fits."""
_MASKED = 300
"""Characters that masking leaves at each end: the echo of the command and its last lines."""
_MARK = "\n[... the middle is left out here ...]\n"
_MARK_CHARACTERS = 60
"""A cut that saves less than its own mark is not made."""
_MASK_AT = 0.80
"""The share of the window at which systems that mask output begin."""
_KEEP_UNITS = 2
"""The newest units stay unchanged: the model is still working on them."""


class Baseline(ABC):
    """The common part of all baselines: the messages so far, and their sizes."""

    name: ClassVar[str]

    def start(
        self, system: tuple[Message, ...], tools: tuple[Tool, ...], window: int, counter: TokenCounter
    ) -> None:
        del tools
        self.system, self.window, self.counter = system, window, counter
        self.body: list[Message] = []
        self._sizes: dict[int, tuple[Message, int]] = {}

    def add(self, message: Message) -> None:
        self.body.append(message)

    @abstractmethod
    def context(self) -> tuple[Message, ...]: ...

    def size(self, messages: Iterable[Message]) -> int:
        return sum(map(self._size, messages))

    def _size(self, message: Message) -> int:
        """Counted once; the message is kept with its size, so that its `id()` is not reused."""
        known = self._sizes.get(id(message))
        if known is None:
            known = self._sizes[id(message)] = message, self.counter.message(message)
        return known[1]

    @property
    def used(self) -> int:
        return self.size(self.system) + self.size(self.body)

    def within_window(self, body: Sequence[Message]) -> tuple[Message, ...]:
        """The last resort: drop whole units, oldest first, then cut texts to their two ends."""
        room = self.window - self.size(self.system)
        kept = newest(units(body), room, self.size)
        for characters in _LAST_RESORT:
            if self.size(flat(kept)) <= room:
                break
            kept = [tuple(shorten(message, characters) for message in unit) for unit in kept]
        return (*self.system, *self._led_by_user(kept, room))

    def _led_by_user(self, kept: Sequence[Unit], room: int) -> Unit:
        if kept and kept[0][0].role != "user":
            note = user(DROPPED)
            if self.size((note, *flat(kept))) > room and len(kept) > 1:
                kept = kept[1:]
            return (note, *flat(kept))
        return flat(kept)


class NoLimit(Baseline):
    """Sends everything: the reference, which does not fit."""

    name = "no limit"

    def context(self) -> tuple[Message, ...]:
        return (*self.system, *self.body)


class DropOldest(Baseline):
    """A sliding window: on every call, drops the oldest units until the rest fits."""

    name = "drop oldest"

    def context(self) -> tuple[Message, ...]:
        return self.within_window(self.body)


class DropToHalf(Baseline):
    """When the window is full, drops to half of it; then lets it fill again."""

    name = "drop to 50 %"

    def context(self) -> tuple[Message, ...]:
        if self.used > self.window:
            room = self.window // 2 - self.size(self.system)
            self.body = list(flat(newest(units(self.body), room, self.size)))
        return self.within_window(self.body)


class KeepLast(Baseline):
    """The last ten units, of any size."""

    name = "keep last 10 units"
    keep: ClassVar[int] = 10

    def context(self) -> tuple[Message, ...]:
        return self.within_window(flat(units(self.body)[-self.keep :]))


class MaskOutput(Baseline):
    """Above 80 % of the window, cuts every tool output but the newest to its two ends."""

    name = "mask output at 80 %"

    def context(self) -> tuple[Message, ...]:
        if self.used > _MASK_AT * self.window:
            groups = units(self.body)
            old, new = groups[:-_KEEP_UNITS], groups[-_KEEP_UNITS:]
            masked = (_masked(message) for message in flat(old))
            self.body = [*masked, *flat(new)]
        context = self.within_window(self.body)
        if len(context) < len(self.system) + len(self.body):
            self.body = list(context[len(self.system) :])
        return context


class KeepLastWithStub(Baseline):
    """Above 80 % of the window, keeps two units and a note with the number of removed messages."""

    name = "keep last 2 + stub"

    def start(
        self, system: tuple[Message, ...], tools: tuple[Tool, ...], window: int, counter: TokenCounter
    ) -> None:
        super().start(system, tools, window, counter)
        self.roles: Counter[str] = Counter()
        self.tools: Counter[str] = Counter()
        self.note: Message | None = None

    def context(self) -> tuple[Message, ...]:
        groups = units(self.body)
        if self.used > _MASK_AT * self.window and len(groups) > _KEEP_UNITS:
            self._count(message for message in flat(groups[:-_KEEP_UNITS]) if message is not self.note)
            self.note = user(self._stub())
            self.body = [self.note, *flat(groups[-_KEEP_UNITS:])]
        return self.within_window(self.body)

    def _count(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.roles[message.role] += 1
            self.tools.update(call.name for call in message.calls)

    def _stub(self) -> str:
        roles = ", ".join(f"{count} {role} messages" for role, count in sorted(self.roles.items()))
        tools = ", ".join(f"{name} x{count}" for name, count in sorted(self.tools.items()))
        return f"[What came before, in numbers: {roles}. Tools called: {tools or 'none'}.]"


BASELINES: tuple[CandidateMaker, ...] = (
    NoLimit,
    DropOldest,
    DropToHalf,
    KeepLast,
    MaskOutput,
    KeepLastWithStub,
)


def units(messages: Iterable[Message]) -> list[Unit]:
    found: list[list[Message]] = []
    for message in messages:
        if found and _belongs(message, found[-1]):
            found[-1].append(message)
        else:
            found.append([message])
    return [tuple(unit) for unit in found]


def _belongs(message: Message, unit: list[Message]) -> bool:
    """Results belong to the reply before them; items of one reply belong together if the format splits it."""
    if message.role == "tool":
        return unit[0].role == "assistant"
    is_item = message.origin is not None and message.origin.dialect == "responses"
    return is_item and message.role == unit[-1].role == "assistant"


def flat(groups: Iterable[Unit]) -> Unit:
    return tuple(message for unit in groups for message in unit)


def newest(groups: Sequence[Unit], room: int, size: Callable[[Iterable[Message]], int]) -> list[Unit]:
    """The newest units that fit into the room; at least the last one."""
    kept: list[Unit] = []
    for unit in reversed(groups):
        room -= size(unit)
        if kept and room < 0:
            break
        kept.append(unit)
    return kept[::-1]


def shorten(message: Message, characters: int) -> Message:
    """The message with its text cut in the middle; the model's own messages stay."""
    if message.role not in ("tool", "user") or len(spoken_text(message)) <= 2 * characters + _MARK_CHARACTERS:
        return message
    return message.with_parts(tuple(_cut(part, characters) for part in message.parts))


def _masked(message: Message) -> Message:
    return shorten(message, _MASKED) if message.role == "tool" else message


def _cut(part: Part, characters: int) -> Part:
    if isinstance(part, ToolResult):
        inner = tuple(_cut_text(each, characters) if isinstance(each, Text) else each for each in part.parts)
        return structs.replace(part, parts=inner)
    return _cut_text(part, characters) if isinstance(part, Text) else part


def _cut_text(part: Text, characters: int) -> Text:
    if len(part.text) <= 2 * characters + _MARK_CHARACTERS:
        return part
    return structs.replace(part, text=f"{part.text[:characters]}{_MARK}{part.text[-characters:]}")


_PRICES = Prices(ANTHROPIC.input, ANTHROPIC.output, ANTHROPIC.cache_read, ANTHROPIC.cache_write)
"""The prices that the replay bills by."""


class PresetCandidate:
    """A conversation in memory under one preset, with the extractive summariser. Tools take nothing of the
    window.
    """

    handle = HANDLE_PATTERN

    def __init__(self, preset: str) -> None:
        self.name = self._preset = preset
        self._kept_free = WHOLE_WINDOW

    def leave(self, budget: ReplayBudget) -> None:
        self._kept_free = budget

    @property
    def output(self) -> int:
        return self._state.output

    def start(
        self,
        system: tuple[Message, ...],
        tools: tuple[Tool, ...],  # noqa: ARG002  # tools cost nothing in a replay
        window: int,
        counter: TokenCounter,
    ) -> None:
        fixed, policy, free = FixedFields(CHAT, system), PRESETS[self._preset], self._kept_free
        budget = Budget(
            window=window, max_output=free.output_in(window), is_output_stated=free.output is not None
        )
        if free.reserve is not None:
            budget = structs.replace(budget, reserve=Tokens(free.reserve))
            policy = structs.replace(policy, reserve=Share(0.0))
        self._state = State.begin(fixed, budget, policy, counter, prices=_PRICES, summarise=self._summarise)
        self._reported = 0

    def add(self, message: Message) -> None:
        self._state = actions.add(self._state, [message]).state

    def context(self) -> tuple[Message, ...]:
        done = actions.context(self._state)
        self._state, window = done.state, done.sendable
        return (*window.system, *window.sent)

    def recall(self, query: str, max_tokens: int) -> str:
        return actions.search(self._state, query, max_tokens=max_tokens)

    def changes(self) -> list[CandidateChange]:
        new = self._state.receipts[self._reported :]
        self._reported += len(new)
        return [CandidateChange(made.decision, self._reason(made), made.before, made.after) for made in new]

    def _reason(self, made: Receipt) -> str:
        return made.reason

    def _summarise(self, request: SummaryRequest, folded: FoldedBranch, frame: Frame) -> Summary | None:
        return extractive_summary.summarise(request, folded, frame)


class WrittenCandidate(PresetCandidate):
    """A preset with a model that writes the summaries."""

    def __init__(self, preset: str, author: BlockingAuthor, recipe: Recipe) -> None:
        super().__init__(preset)
        self.name = f"{preset} + {author.name}"
        self._author, self._recipe, self._writing = author, recipe, WritingCost()

    def writing(self) -> WritingCost:
        found, self._writing = self._writing, WritingCost()
        return found

    def _reason(self, made: Receipt) -> str:
        if made.summary is None:
            return made.reason
        author = "by the model" if made.summary.kind == "model" else "the model failed, a digest serves"
        return f"{made.reason}; {author}"

    def _summarise(self, request: SummaryRequest, folded: FoldedBranch, frame: Frame) -> Summary | None:
        task = task_of(request, folded, frame, sent=self._state.window)
        written = self._author.write(task, self._recipe)
        self._writing += written.writing
        return written.summary or super()._summarise(request, folded, frame)


def candidates(presets: tuple[str, ...], opened: OpenSummarisers | None = None) -> list[CandidateMaker]:
    """Makers for presets by name, each with each of the opened summarisers; without any, with the digest.

    Raises:
        ConfigError: there is no preset with this name.
    """
    for name in presets:
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}", hint=f"choose from: {', '.join(PRESETS)}")
    if opened is None:
        return [partial(PresetCandidate, name) for name in presets]
    return [_maker(name, author, opened.order) for name in presets for author in opened.authors]


def _maker(preset: str, author: BlockingAuthor | None, order: ReplaySummarisers) -> CandidateMaker:
    if author is None:
        return partial(PresetCandidate, preset)
    return partial(WrittenCandidate, preset, author, order.recipe_of(PRESETS[preset].recipe))
