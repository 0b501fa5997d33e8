"""Plain Python values, as SDKs take and return them: messages, the fields of a request, and the errors that SDKs raise.

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
from refold.model.errors import UpstreamError, WireError
from refold.model.message import Message, user
from refold.model.tokens import Usage
from refold.model.window import Tool, Window
from refold.wire.reply import decode_usage
from refold.wire.request import (
    BETA,
    beta_for,
    decode_message,
    decode_tools,
    encode_item,
    encode_prompt,
    leading_prompt,
    write_breakpoints,
)

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
        return user(str.__str__(value))  # of a subclass, its plain text: the JSON writer takes no other
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
        _refuse_bytes(value)
        return Raw(msgspec.json.encode(value, enc_hook=_as_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(
            "the value cannot be written as JSON", hint="use strings, numbers, lists and dictionaries"
        ) from error


def _refuse_bytes(value: object) -> None:
    """Raise TypeError for bytes inside of plain values: the encoder would write them as base64, a text that nobody said."""
    if isinstance(value, dict):
        for inner in value.values():
            _refuse_bytes(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _refuse_bytes(inner)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError


def _as_plain(value: object) -> Plain:
    """The dictionary of an SDK's object inside of another value, such as a block of a reply."""
    found = as_mapping(value)
    if found is None:
        raise TypeError
    return found


# Plain values for SDKs: the fields of a request, and the refusals that SDKs raise. Between two
# calls most messages stay the same. Each message is encoded once, and its dictionary is reused in
# later requests, so a call costs as much as its new messages.


class RequestFields:
    """Encodes windows as the fields of requests. Caches the dictionaries of the last window's messages."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Message, dict[str, object]]] = {}

    def fields(self, window: Window) -> dict[str, object]:
        """Return the fields of a request: messages, the system prompt if it has a field of its own, and the header that a
        compaction by Anthropic needs, in the form in which the official SDKs take it.
        """
        window, dialect = write_breakpoints(window), window.fixed.dialect
        sent = (*prompt_messages(window), *window.sent)
        known = {id(message): self._spelled(message, window) for message in sent}
        self._known = known
        messages = [known[id(message)][1] for message in sent]
        beta = beta_for(window.summaries, dialect)
        headers = {"extra_headers": {BETA: beta}} if beta else {}
        return {**plain_prompt(window), dialect.messages_key: messages, **headers}

    def _spelled(self, message: Message, window: Window) -> tuple[Message, dict[str, object]]:
        found = self._known.get(id(message))
        return found or (message, plain_message(message, window.fixed.dialect))


# Refusals of providers, as SDKs raise them

_BODIES = ("body", "response_body", "details")
_STATUSES = ("status_code", "status", "http_status", "code")


def read_refusal(error: object) -> tuple[int | None, object]:
    """Return the status, if there is one, and the body of a refusal: from an SDK's exception, a response, a
    dictionary, or a string.
    """
    if isinstance(error, str | bytes | Mapping):
        return None, error
    if isinstance(error, UpstreamError) and error.overflow is not None:
        return None, error.overflow
    response = _field(error, "response")
    status = _number(error) or _number(response)
    bodies = [_field(error, name) for name in _BODIES]
    body = next((found for found in bodies if _is_body(found)), None)
    if body is None:
        bodies = [_field(response, "text"), _field(response, "content")]
        body = next((found for found in bodies if _is_body(found)), None)
    return status, body if body is not None else str(error)


def _field(value: object, name: str) -> object:
    """Return an attribute, or None if it raises: a response whose body was not read yet may raise anything."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001  # a property of an SDK
        return None


def _is_body(value: object) -> bool:
    """Whether a value can be a body: some clients have a method of this name, or a list of details."""
    return isinstance(value, str | bytes | Mapping) and bool(value)


def _number(value: object) -> int | None:
    found = (_field(value, name) for name in _STATUSES)
    return next(
        (number for number in found if isinstance(number, int) and not isinstance(number, bool)), None
    )
