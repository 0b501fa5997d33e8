"""The window: the exact content of one call, and the rules that it can break."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct, structs

from refold.model.dialect import Dialect
from refold.model.message import Message, Text, system


class Tool(Struct, frozen=True, gc=False):
    """A tool definition. `schema` is the JSON text of its parameters; a provider's own tool has none."""

    name: str
    description: str = ""
    schema: str = ""
    raw: Raw | None = None


Ttl: TypeAlias = Literal["5m", "1h"]
"""Lifetime of a cached prefix at the provider, counted from its last use."""


class FixedFields(Struct, frozen=True):
    """The part of every call that the client sends and Refold never changes."""

    dialect: Dialect
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    automatic: Ttl | None = None
    """The client asks the provider for an automatic cache breakpoint at the end of every request."""
    model: str = ""
    upstream: str = ""
    """The model and the upstream that are asked; empty if they are not known, or if the client has the provider
    compact: then no compaction that Refold asked for is sent."""
    server: str = ""
    """The address of the upstream, see `NativeCompaction.goes_to`."""


class Breakpoint(Struct, frozen=True, gc=False):
    """The end of a prefix that the provider is asked to cache: one part of one message."""

    index: int | None
    """Index in `Window.sent`, summaries and messages together; None for the system prompt."""
    part: int
    ttl: Ttl
    reason: str


class Window(Struct, frozen=True):
    fixed: FixedFields
    messages: tuple[Message, ...]
    summaries: tuple[Message, ...] = ()
    """Messages before the history, for messages that are no longer shown."""
    block: str = ""
    """A summary that stands after the client's system prompt instead."""
    breakpoints: tuple[Breakpoint, ...] = ()
    """Cache breakpoints besides the client's own."""
    opening: int = 0
    """Number of messages before the summaries: a provider's own compaction and the results of its calls."""
    before: tuple[Message, ...] = ()
    """Messages before these, if the format requires the user to speak first."""
    after: tuple[Message, ...] = ()
    """Messages after all others, if the format requires the user to speak last."""
    output: int | None = None
    """The lowered output to ask for; None for the requested output."""

    @property
    def sent(self) -> tuple[Message, ...]:
        """All messages after the system prompt, in wire order."""
        first, rest = self.messages[: self.opening], self.messages[self.opening :]
        return (*self.before, *first, *self.summaries, *rest, *self.after)

    def place(self, index: int) -> int:
        """The place in `sent` of the message at an index."""
        return len(self.before) + index + (len(self.summaries) if index >= self.opening else 0)

    def index_at(self, place: int) -> int | None:
        """The index of the message at a place in `sent`; None for a summary or a bridge."""
        index = place - len(self.before)
        if index >= self.opening:
            index -= len(self.summaries)
            return index if self.opening <= index < len(self.messages) else None
        return index if index >= 0 else None

    @property
    def system(self) -> tuple[Message, ...]:
        """The system prompt in the form in which it is sent: the client's own, with the block after it."""
        if not self.block:
            return self.fixed.system
        if not self.fixed.system:
            return (system(self.block),)
        first, *rest = self.fixed.system
        return (_with_block(first, self.block, self.fixed.dialect), *rest)


def _with_block(message: Message, block: str, dialect: Dialect) -> Message:
    """The system message with one more block, in formats with blocks; otherwise with one more paragraph of text."""
    last = message.parts[-1] if message.parts else None
    if dialect.name == "anthropic" or not isinstance(last, Text):
        return message.with_parts((*message.parts, Text(block)))
    return message.with_parts((*message.parts[:-1], structs.replace(last, text=f"{last.text}\n\n{block}")))


WindowRule: TypeAlias = Literal[
    "bad_arguments",
    "bad_call_id",
    "blank_text",
    "dangling_reasoning",
    "duplicate_call_id",
    "duplicate_result",
    "empty_message",
    "ends_with_assistant",
    "illegal_role",
    "missing_call_id",
    "misplaced_part",
    "no_messages",
    "orphan_result",
    "over_bytes",
    "over_tokens",
    "split_results",
    "starts_without_user",
    "system_without_reply",
    "system_without_user",
    "too_many_breakpoints",
    "unanswered_call",
    "unsigned_thinking",
]


class Violation(Struct, frozen=True):
    """One broken rule. `index` counts the messages that were verified; it is None for the whole window."""

    rule: WindowRule
    index: int | None
    message: str
    hint: str = ""
