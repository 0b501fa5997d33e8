"""Candidates: whatever can say what it would send.

One idea: a candidate sees a conversation as a model's client does, one message after the other, and is asked for the context
before every reply. How it gets there is its own business; a preset, somebody else's library and ten lines in a notebook are
measured alike.

    start(system, tools, window, counter)   a new conversation; the window bounds the messages, the system's among them
    add(message)                            one message, in order, the real replies too
    context() -> messages                   what would be sent now, system messages first

A candidate may also have any of the abilities below; each is its own protocol, since few have all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from refold.model.message import Message
from refold.model.tokens import TokenCounter
from refold.model.window import Tool


class Candidate(Protocol):
    """One way to keep a conversation inside a window. A new one is made for each conversation."""

    @property
    def name(self) -> str: ...

    def start(
        self, system: tuple[Message, ...], tools: tuple[Tool, ...], window: int, counter: TokenCounter
    ) -> None: ...

    def add(self, message: Message) -> None: ...

    def context(self) -> tuple[Message, ...]:
        """What would be sent now.

        Raises:
            WindowError: nothing can be sent; the call counts as neither valid nor fitting.
        """
        ...


@runtime_checkable
class Recalls(Protocol):
    """Can bring back what is not in the context."""

    def recall(self, query: str, max_tokens: int) -> str: ...


@runtime_checkable
class HasHandles(Protocol):
    """Leaves handles in the context, which are names and not facts."""

    @property
    def handle(self) -> str:
        """A regular expression that finds them."""
        ...


@runtime_checkable
class CallsModels(Protocol):
    """Asks a model of its own."""

    def model_calls(self) -> Sequence[tuple[int, int]]:
        """Input and output tokens of every call since this was last asked."""
        ...


class Writing(Struct, frozen=True):
    """What having summaries written by a model took."""

    asked: int = 0
    """How many were asked for."""
    failed: int = 0
    """How many of them could not be had; a digest of the messages' own words serves instead."""
    input: int = 0
    """Tokens that the model read and wrote for them, whenever that was: a summary from the cache cost what it cost."""
    output: int = 0
    dollars: float | None = 0.0
    """None where the prices of the model are not known."""

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
        """What that took since this was last asked."""
        ...


class Stopped(BaseException):  # no fault of anybody, so whoever gets over faults does not get over it
    """A candidate goes no further: there is no more to be spent. The replay ends with the recordings that are finished."""


class CandidateChange(Struct, frozen=True):
    """Something a candidate did to its context on its own."""

    decision: str
    """What it did, in a word such as `summarise`."""
    reason: str
    """Why, without a word of the conversation."""
    before: int
    """Tokens before and after."""
    after: int


@runtime_checkable
class Explains(Protocol):
    """Says what it did to its context."""

    def changes(self) -> Sequence[CandidateChange]:
        """Every change since this was last asked."""
        ...


Maker: TypeAlias = Callable[[], Candidate]
"""Makes a candidate; a class or a function of a module, so that it can travel to another process."""
