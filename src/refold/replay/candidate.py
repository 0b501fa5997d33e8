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

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from refold.core.budget import share_of
from refold.core.presets import PRESETS
from refold.engine.settings import usual_output
from refold.model.errors import ConfigError
from refold.model.message import Message
from refold.model.tokens import TokenCounter
from refold.model.window import Tool


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


class Writing(Struct, frozen=True):
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

    def __add__(self, other: Writing) -> Writing:
        is_known = self.dollars is not None and other.dollars is not None
        return Writing(
            self.asked + other.asked,
            self.failed + other.failed,
            self.input + other.input,
            self.output + other.output,
            (self.dollars or 0.0) + (other.dollars or 0.0) if is_known else None,
        )


@runtime_checkable
class HasWriter(Protocol):
    """Has its summaries written by a model with prices of its own."""

    def writing(self) -> Writing:
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
