"""Stage: the protocol of a reduction, with its input (the messages shown and the room for them) and its output (the edits).

Each message shown carries the number of the message in the branch that it stands for. Replacing one keeps
its position and its number, so the original can always be found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from msgspec import Struct, structs

from refold.core.tool_use import COMMON_TOOLS, ToolKinds
from refold.model.dialect import Dialect
from refold.model.message import Message, Part, Reasoning
from refold.model.tokens import TokenCounter


class Item(Struct, frozen=True, gc=False):
    """A message in the form in which it would be sent. `seq` is the number of its original in the branch."""

    message: Message
    seq: int
    tokens: int


class ShownMessages(Struct, frozen=True):
    """The messages that would be sent, oldest first, without system prompt and summaries."""

    items: tuple[Item, ...]
    protected: int
    """Index of the first item that stages must not change: the start of the active turn."""

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(item.message for item in self.items)

    def since(self, index: int) -> ShownMessages:
        """The list from an index on."""
        return ShownMessages(self.items[index:], max(0, self.protected - index))

    def replace(
        self, changed: Mapping[int, Message], counter: TokenCounter, counts: Mapping[int, int] | None = None
    ) -> ShownMessages:
        """The same list with other messages at some indices, counted again unless `counts` has their tokens."""
        items, known = list(self.items), counts or {}
        for index, message in changed.items():
            tokens = known[index] if index in known else counter.message(message)
            items[index] = Item(message, items[index].seq, tokens)
        return structs.replace(self, items=tuple(items))

    def without(self, indices: Collection[int]) -> ShownMessages:
        """The list without the items at some indices."""
        items = tuple(item for index, item in enumerate(self.items) if index not in indices)
        gone = sum(index < self.protected for index in indices)
        return ShownMessages(items, self.protected - gone)


class Room(Struct, frozen=True):
    """The size and rules of the window that a stage works for."""

    tokens: int
    """Tokens for messages: the window without reserve, output, system prompt, tools and summaries."""
    instructions: int
    """Tokens of system prompt, tools and summaries."""
    counter: TokenCounter
    dialect: Dialect
    pinned: frozenset[int] = frozenset()
    """Numbers of messages that no stage may change."""
    is_due: bool = False
    """Messages are about to be summarised, so a stage no longer spares those that it would keep otherwise."""
    newest: int | None = None
    """Number of the newest system or developer message: it holds the rules for everything after it."""
    tools: ToolKinds = COMMON_TOOLS
    """The tools that read files and the tools that change them."""
    pruned: int = 0
    """The prune boundary: tool results in messages below this number are not pruned again."""
    target: int = 0
    """Tokens for messages if the policy's target is reached; 0 if it leaves none or is not known."""
    before: int = 0
    """Tokens of the messages before those that a stage gets, if it gets only the newest: all share the room."""

    def pressure(self, shown: ShownMessages) -> Fraction:
        """Used share of the window, instructions included."""
        whole = self.tokens + self.instructions
        return Fraction(shown.tokens + self.instructions, whole) if whole > 0 else Fraction(10)

    def is_pinned(self, item: Item) -> bool:
        """True if the item must stay unchanged: a person pinned it, or it is the newest instruction."""
        return item.seq in self.pinned or item.seq == self.newest

    def may_touch(self, shown: ShownMessages, index: int) -> bool:
        return index < shown.protected and not self.is_pinned(shown.items[index])


class Edit(Struct, frozen=True, gc=False):
    """One recorded change between the client's messages and the messages sent."""

    stage: str
    seq: int
    before: int
    """Tokens before the change; `after` is the number after it."""
    after: int
    reason: str
    handle: str = ""


class StageResult(Struct, frozen=True):
    shown: ShownMessages
    edits: tuple[Edit, ...] = ()
    reason: str = ""
    """The reason that nothing was changed, or that the change is not enough; empty otherwise."""
    removed: tuple[Item, ...] = ()
    """Items that are no longer shown and wait to be summarised, oldest first."""

    @classmethod
    def skipped(cls, shown: ShownMessages, reason: str) -> StageResult:
        return cls(shown, reason=reason)


class Stage(Protocol):
    """A reduction. Its fields are its settings, so that a policy is data."""

    def apply(self, shown: ShownMessages, room: Room) -> StageResult: ...


def reduce(
    shown: ShownMessages, stages: Iterable[Stage], room: Room
) -> tuple[ShownMessages, tuple[Edit, ...]]:
    """Apply the stages in order; return the messages left and all edits."""
    edits: list[Edit] = []
    for stage in stages:
        result = stage.apply(shown, room)
        shown = result.shown
        edits += result.edits
    return shown, tuple(edits)


def handle_of(seq: int, part: int | None = None) -> str:
    """The handle by which `recall` returns an original: `#m12`, or `#m12.2` for its second part."""
    return f"#m{seq}" if part is None else f"#m{seq}.{part}"


HANDLE_PATTERN = r"#[ms]\d+(?:\.\d+)?"


def numbered_parts(message: Message) -> Sequence[tuple[int, Part, int | None]]:
    """The parts of a message, each with its index and the number in its handle; None if the message has only one part.

    Reasoning is skipped and not counted: a stage may have dropped it, and a handle must mean the same part
    before and after.
    """
    if len(message.parts) == 1 and type(message.parts[0]) is not Reasoning:
        return ((0, message.parts[0], None),)
    parts = [(place, part) for place, part in enumerate(message.parts) if type(part) is not Reasoning]
    if len(parts) == 1:
        return ((*parts[0], None),)
    return [(place, part, number) for number, (place, part) in enumerate(parts, 1)]


def part_of(original: Message, number: int) -> Part | None:
    """The part of an original for the number in a handle: the inverse of `numbered_parts`."""
    parts = [part for part in original.parts if type(part) is not Reasoning]
    return parts[number - 1] if 0 < number <= len(parts) else None


def is_stub(text: str, handle: str) -> bool:
    """True if the text is already a stub for this handle: one bracket that ends in the handle."""
    return text.startswith("[") and text.endswith(f"{handle}]")


def changed(
    stage: str,
    shown: ShownMessages,
    messages: Mapping[int, Message],
    room: Room,
    reason: Callable[[Item], str],
    counts: Mapping[int, int] | None = None,
) -> StageResult:
    """Build the result of replacing messages. Counts, edits and handles are computed here for all stages;
    `counts` are the tokens of messages that a stage has counted already.
    """
    after = shown.replace(messages, room.counter, counts)
    edits = tuple(
        Edit(stage, item.seq, item.tokens, after.items[index].tokens, reason(item), handle_of(item.seq))
        for index, item in ((index, shown.items[index]) for index in sorted(messages))
    )
    return StageResult(after, edits)


def removed(stage: str, shown: ShownMessages, indices: Collection[int], reason: str) -> StageResult:
    """Build the result of removing items."""
    gone = tuple(shown.items[index] for index in sorted(indices))
    edits = tuple(Edit(stage, item.seq, item.tokens, 0, reason, handle_of(item.seq)) for item in gone)
    return StageResult(shown.without(frozenset(indices)), edits, removed=gone)
