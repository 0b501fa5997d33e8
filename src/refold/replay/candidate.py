"""Candidates: the protocol of one way to keep a conversation inside a window.

A candidate sees a conversation as a model's client does, one message after the other, and is asked for the
context before every reply. A preset, another library and ten lines in a notebook are measured in the same
way.

    start(system, tools, window, counter)   a new conversation; all messages must fit into the window
    add(message)                            one message, in order, including the real replies
    context() -> messages                   the messages to send now, system messages first

A candidate may also implement any of the further protocols below; they are separate because few candidates
have all of these abilities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct, structs

from refold.core.budget import share_of
from refold.core.presets import PRESETS
from refold.engine.settings import usual_output
from refold.model.errors import ConfigError
from refold.model.message import Message, Part, Text, ToolResult, user
from refold.model.tokens import TokenCounter
from refold.model.window import Tool
from refold.replay.facts import spoken_text


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
