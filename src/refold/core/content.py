"""Small questions about what a message holds, asked by more than one module."""

from __future__ import annotations

import msgspec

from refold.model.message import Message, Reasoning, Text, ToolCall

_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_empty(message: Message) -> bool:
    """Does the message say nothing at all? White space says nothing; reasoning does."""
    return all(type(part) is Text and not part.text.strip() for part in message.parts)


def is_only_reasoning(message: Message) -> bool:
    parts = message.parts
    return bool(parts) and all(type(part) is Reasoning for part in parts)


def broken_arguments(call: ToolCall, *, as_object: bool) -> bool:
    """Would a provider choke on these arguments? Custom tools take plain text, so anything goes there."""
    if call.kind != "function":
        return False
    try:
        (_OBJECT if as_object else _ANYTHING).decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return True
    return False


def count_breakpoints(message: Message) -> int:
    """How many of the message's blocks carry a cache breakpoint."""
    return sum(_is_marked(part.raw) for part in message.parts if part.raw is not None)


def _is_marked(raw: msgspec.Raw) -> bool:
    if b'"cache_control"' not in bytes(raw):
        return False
    value = msgspec.json.decode(raw)
    return isinstance(value, dict) and value.get("cache_control") is not None
