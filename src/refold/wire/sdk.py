"""Converts plain Python values, as SDKs take and return them.

A dictionary is JSON that was parsed already. It goes through the same codecs as a request body, so that a
message from a dictionary, from an SDK's reply object and from the wire is the same value. An unchanged
message is returned as the dictionary of its own JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import Message, user
from refold.model.tokens import Usage
from refold.model.window import Tool, Window
from refold.wire.message import decode_message, encode_item, encode_prompt
from refold.wire.reply import decode_usage
from refold.wire.request import decode_tools, leading_prompt

Plain: TypeAlias = Mapping[str, object]
_KINDS = "a dictionary, a message of an SDK, a refold Message or a string"
_REPLY_FIELDS = {"id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage", "container"}
"""Fields of an Anthropic reply that do not belong into the message that is sent back."""

_DEEPEST = 8
"""Levels of a message in which text is counted: blocks of results are four deep."""


def read_message(value: object, dialect: Dialect) -> Message:
    """A message from any value that a program may have; a string is a user message.

    Raises:
        WireError: the value is no message of this format.
    """
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return user(value)
    fields = as_mapping(value)
    if fields is None:
        raise WireError(f"{type(value).__name__} is no message", hint=f"give {_KINDS}")
    if dialect.name == "anthropic" and fields.get("type") == "message":
        fields = {key: inner for key, inner in fields.items() if key not in _REPLY_FIELDS}
    return decode_message(as_json(fields), dialect)


def text_in(value: object, depth: int = 0) -> int:
    """Approximate number of characters in messages that `read_message` takes; nothing is decoded."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Message):
        return value.characters
    if depth > _DEEPEST:
        return 0
    if isinstance(value, list | tuple):
        return sum(text_in(inner, depth + 1) for inner in value)
    fields = value if isinstance(value, Mapping) else vars(value) if hasattr(value, "model_dump") else {}
    return sum(text_in(inner, depth + 1) for inner in fields.values())


def read_tools(tools: Sequence[object]) -> tuple[Tool, ...]:
    """Tool definitions in the form of an SDK."""
    return decode_tools(as_json([*tools]))


def read_usage(value: object, dialect: Dialect) -> Usage | None:
    """A usage report from a dictionary, an SDK's object or a whole reply; None if nothing is reported."""
    if value is None or isinstance(value, Usage):
        return value
    fields = as_mapping(value)
    if fields is None:
        raise WireError(f"{type(value).__name__} is no usage report", hint="give the `usage` of a reply")
    inner = as_mapping(fields.get("usage"))
    return decode_usage(inner if inner is not None else fields, dialect)


def plain_message(message: Message, dialect: Dialect) -> dict[str, object]:
    """A message in the form of an SDK."""
    return msgspec.json.decode(encode_item(message, dialect), type=dict[str, object])


def plain_prompt(window: Window) -> dict[str, object]:
    """The field with the system prompt, if that is no message: `system` or `instructions`."""
    dialect = window.fixed.dialect
    prompt, key, _ = leading_prompt(window.system, dialect)
    return {key: msgspec.json.decode(encode_prompt(prompt, dialect))} if prompt else {}


def prompt_messages(window: Window) -> Sequence[Message]:
    """The system messages that are sent as messages."""
    return leading_prompt(window.system, window.fixed.dialect)[2]


def as_mapping(value: object) -> Plain | None:
    """A dictionary, or the dictionary of an SDK's object."""
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is None:
        return None
    found: object = dump(mode="json", exclude_none=True)
    return found if isinstance(found, Mapping) else None


def as_json(value: object) -> Raw:
    """The JSON of plain values and of SDK objects among them.

    Raises:
        WireError: a value cannot be represented in JSON.
    """
    try:
        return Raw(msgspec.json.encode(value, enc_hook=_as_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(
            "the value cannot be written as JSON", hint="use strings, numbers, lists and dictionaries"
        ) from error


def _as_plain(value: object) -> Plain:
    """The dictionary of an SDK's object inside of another value, such as a block of a reply."""
    found = as_mapping(value)
    if found is None:
        raise TypeError
    return found
