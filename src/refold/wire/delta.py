"""What is new in a streamed reply, and what puts it together.

One idea: whoever shows a reply while it is written needs three things only: what is said, what is thought, and which tools
are called. Everything else waits for the whole reply.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from msgspec import Struct

from refold.wire.sse import Event


class TextDelta(Struct, frozen=True, gc=False):
    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    text: str


class CallDelta(Struct, frozen=True, gc=False):
    """A piece of a tool call. The first piece of each has its id and name; `index` counts the calls of the reply."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Delta: TypeAlias = TextDelta | ReasoningDelta | CallDelta


class Fold(Protocol):
    """What a format knows about its streams."""

    is_whole: bool
    """The stream has said that the reply is complete."""
    is_over: bool
    """The stream has said its last word; Chat reports usage after the reply is complete."""
    is_failed: bool
    """The event that was taken in last says that something went wrong."""

    def take(self, event: Event) -> list[Delta]: ...

    def body(self) -> bytes: ...


class Pieces:
    """A text that is still being written: joining once at the end keeps long replies cheap."""

    __slots__ = ("_all",)

    def __init__(self, *pieces: str) -> None:
        self._all = [*pieces]

    def add(self, piece: str) -> None:
        self._all.append(piece)

    def __str__(self) -> str:
        return "".join(self._all)
