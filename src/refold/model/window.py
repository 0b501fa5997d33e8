"""The window: exactly what one call sends, and what can be wrong with it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct

from refold.model.dialect import Dialect
from refold.model.message import Message


class Tool(Struct, frozen=True, gc=False):
    """A tool definition. `schema` is the JSON text of its parameters; a provider's own tool has none."""

    name: str
    description: str = ""
    schema: str = ""
    raw: Raw | None = None


class Fixed(Struct, frozen=True):
    """What the client sends with every call and Refold never touches."""

    dialect: Dialect
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()


class Window(Struct, frozen=True):
    fixed: Fixed
    messages: tuple[Message, ...]
    summaries: tuple[Message, ...] = ()


Rule: TypeAlias = Literal[
    "altered_system",
    "altered_thinking",
    "altered_tools",
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
    "too_many_breakpoints",
    "unanswered_call",
    "unsigned_thinking",
]


class Violation(Struct, frozen=True):
    """One broken rule. `index` counts the messages that were verified; it is None where the whole window is meant."""

    rule: Rule
    index: int | None
    message: str
    hint: str = ""
