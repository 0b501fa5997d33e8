"""Anthropic Messages: everything a message says is a block of its `content`.

One idea: a block is a part, so the two lists match one to one, and a message of the user's that carries tool results is a
`tool` message here.

The system prompt is no message on this wire but the value of the request's `system`: a string, or a list of text blocks.
Instructions given later are messages of the role `system`. One that only sets something has no content, or an empty list; it is
opaque.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import Message, Opaque, Origin, Part, Text, ToolResult
from refold.wire.anthropic_content import decode_block, encode_block
from refold.wire.patch import Fields, Json, write_content
from refold.wire.reading import FIELDS, each, read, read_content, read_said

_ROLES = ("user", "assistant", "system")


class _Item(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None


_ITEM = Decoder(_Item)
_ALL_ITEMS = Decoder(list[_Item])


def decode_items(raws: list[Raw], array: Raw | bytes) -> tuple[Message, ...]:
    """All messages of an array, read in one pass; `raws` are its elements."""
    items = read_said(_ALL_ITEMS, array)
    return each(_message, zip(raws, items, strict=True))


def decode_item(raw: Raw) -> Message:
    return _message((raw, read_said(_ITEM, raw)))


def decode_system(raw: Raw) -> Message:
    """The value of `system` as one message."""
    return Message("system", _parts(read_content(raw, "") or "", ""), Origin("anthropic", raw))


def _message(pair: tuple[Raw, _Item]) -> Message:
    raw, item = pair
    role, content, origin = item.role, item.content, Origin("anthropic", raw)
    if role not in _ROLES:
        hint = "use user, assistant or system; tool results are blocks"
        raise WireError("unknown role", place="role", hint=hint)
    if content is None or (role == "system" and not content and _sets_something(raw)):
        if role != "system":
            raise WireError("is missing or null", place="content", hint="an empty list says nothing as well")
        return Message("system", (Opaque("system", raw=raw),), origin)
    parts = _parts(content, "content")
    if role == "user":
        answers = any(isinstance(part, ToolResult) for part in parts)
        return Message("tool" if answers else "user", parts, origin)
    return Message("assistant" if role == "assistant" else "system", parts, origin)


def _sets_something(raw: Raw) -> bool:
    """Does a message without content hold another field?"""
    return bool(read(FIELDS, raw).keys() - {"role", "content"})


def _parts(content: str | list[Raw], place: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return each(decode_block, content, place)


def spell(message: Message) -> Fields:
    role = message.role if message.role in ("assistant", "system") else "user"
    said = [part for part in message.parts if message.origin is None or part.raw != message.origin.raw]
    if role == "system" and not said:
        return {"role": role}
    return {"role": role, "content": write_content(said, encode_block)}


def spell_system(message: Message) -> Json:
    """The value of `system`."""
    return write_content(message.parts, encode_block, "system")
