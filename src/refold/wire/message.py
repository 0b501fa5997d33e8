"""Converts one message between JSON and value, in any of the three formats.

An unchanged message is sent as the bytes it came as. Otherwise the codec of its format spells it, and the
spelling is patched into those bytes, or stands alone for a message that Refold made.

A message can only be encoded in the format it came from: signatures and blocks of one provider have no
meaning in another format, so `translate` must convert the message first.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw, structs

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import DialectName, Message, Origin, Text
from refold.wire import anthropic, chat, responses
from refold.wire.json_codec import (
    MAX_MESSAGES,
    Data,
    Fields,
    Json,
    each,
    is_object,
    misplaced,
    patch,
    read_list,
    strip,
    too_many,
    write,
)


class Codec(Protocol):
    """The codec of one format's items."""

    def decode_items(self, raws: list[Raw], array: Data) -> tuple[Message, ...]: ...

    def decode_item(self, raw: Raw) -> Message: ...

    def spell(self, message: Message) -> Fields: ...


MAX_AT_ONCE = 1024 * 1024
"""Bytes that are decoded in one call, in which no other thread runs. The items of a larger list are decoded one by one."""
_CODECS: dict[DialectName, Codec] = {"chat": chat, "responses": responses, "anthropic": anthropic}


def decode_message(raw: Raw | bytes, dialect: Dialect) -> Message:
    """One element of a request's list of messages.

    Raises:
        WireError: with a place relative to the message, such as `content[0]`.
    """
    return _CODECS[dialect.name].decode_item(strip(raw))


def decode_messages(array: Data, dialect: Dialect) -> tuple[Message, ...]:
    """A whole list of messages; places are relative to the list, such as `[3].content[0]`."""
    raws = read_list(array)
    if len(array) > MAX_AT_ONCE:
        return decode_each(raws, dialect)
    _check_number(raws)
    return _CODECS[dialect.name].decode_items(raws, array)


def decode_each(raws: list[Raw], dialect: Dialect) -> tuple[Message, ...]:
    """The elements of a large list of messages."""
    _check_number(raws)
    return each(_CODECS[dialect.name].decode_item, raws)


def _check_number(raws: list[Raw]) -> None:
    if len(raws) > MAX_MESSAGES:
        raise too_many("messages", MAX_MESSAGES)


def encode_message(message: Message, dialect: Dialect) -> Raw:
    """The JSON of one message: an element of the list of messages, or the value of the field that it came from.

    Raises:
        WireError: the format cannot carry the message, or the message came from another format.
    """
    origin = _own_origin(message, dialect)
    if origin is None:
        return write(_CODECS[dialect.name].spell(message))
    return _rebuild(message, origin, dialect) if origin.edited else origin.raw


def encode_item(message: Message, dialect: Dialect, original: Message | None = None) -> Raw:
    """The JSON of one message as an element of the list of messages, even if it came as a plain string. `original` is the message
    before it was changed, if that is known: otherwise its JSON is decoded again.
    """
    origin = _own_origin(message, dialect)
    if origin is None:
        return write(_CODECS[dialect.name].spell(message))
    if not is_object(origin.raw):
        return write(_CODECS[dialect.name].spell(structs.replace(message, origin=None)))
    return _rebuild(message, origin, dialect, original) if origin.edited else origin.raw


def with_own_json(message: Message, dialect: Dialect, original: Message | None = None) -> Message:
    """A changed message with the JSON that it is sent as for its origin, so that it is written only once. Others, and
    those that cannot be written, are returned as they are. `original` is as for `encode_item`.
    """
    origin = message.origin
    if origin is None or not origin.edited or not is_object(origin.raw):
        return message
    try:
        return structs.replace(message, origin=Origin(dialect.name, encode_item(message, dialect, original)))
    except WireError:
        return message


def encode_prompt(message: Message, dialect: Dialect) -> Raw:
    """The JSON of a system message as the value of `system` or `instructions`."""
    origin = _own_origin(message, dialect)
    return origin.raw if origin is not None and not origin.edited else write(_value(message, dialect))


def _own_origin(message: Message, dialect: Dialect) -> Origin | None:
    origin = message.origin
    if origin is not None and origin.dialect != dialect.name:
        raise WireError(
            f"a message of the {origin.dialect} format cannot leave as {dialect.name}",
            hint="rebuild it from its text with refold.model.message",
        )
    return origin


def _rebuild(message: Message, origin: Origin, dialect: Dialect, original: Message | None = None) -> Raw:
    if not is_object(origin.raw):
        return write(_value(message, dialect))
    codec = _CODECS[dialect.name]
    if original is None or not _is_as_decoded(original, origin.raw):
        original = codec.decode_item(origin.raw)
    before, after = codec.spell(original), codec.spell(message)
    if before.get("type") != after.get("type"):
        raise WireError("the type of an item cannot change", hint="leave it out and build a new message")
    return patch(origin.raw, before, after)


def _is_as_decoded(message: Message, raw: Raw) -> bool:
    """True if the message is what this JSON was decoded to."""
    return message.origin is not None and message.origin.raw is raw and not message.origin.edited


def _value(message: Message, dialect: Dialect) -> Json:
    """The value of a field that holds a message outside of the list."""
    if dialect.name == "anthropic":
        return anthropic.spell_system(message)
    strange = next((part for part in message.parts if not isinstance(part, Text)), None)
    if strange is not None:
        raise misplaced(strange, "a plain string")
    return message.text
