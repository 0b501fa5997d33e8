"""Writing JSON: from fields to bytes, and changes into JSON that stays otherwise as it was.

One idea: a change is the difference between two spellings. What our reading of the original would write is compared, field
by field, with what the changed value writes; only fields that differ are set in the original. Everything else keeps its
bytes, unknown fields and the order of fields among it, and a block that nobody changed is not even parsed further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw

from refold.model.errors import WireError
from refold.model.message import File, Image, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from refold.wire.reading import FIELDS, each, read

Json: TypeAlias = "Raw | str | bool | int | Sequence[Json] | Mapping[str, Json] | None"
Fields: TypeAlias = dict[str, Json]


def write(value: Json) -> Raw:
    """One JSON value as bytes."""
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        raise WireError(_HALF) from None


def verbatim(text: str) -> Raw:
    """Text that is JSON already."""
    try:
        return Raw(text.encode())
    except UnicodeEncodeError:
        raise WireError(_HALF) from None


_HALF = "the text holds half of a surrogate pair, which UTF-8 cannot carry"


def patch(raw: Raw, before: Fields, after: Fields) -> Raw:
    """`raw` with the fields in which the two spellings differ."""
    if before == after:
        return raw
    current = read(FIELDS, raw)
    fields: Fields = {**current}
    for key in {**before, **after}:
        if key not in after:
            fields.pop(key, None)
        elif key not in before or before[key] != after[key]:
            fields[key] = _changed(fields.get(key), before.get(key), after[key])
    return write(fields)


def _changed(raw: Json, before: Json, after: Json) -> Json:
    if isinstance(raw, Raw) and isinstance(before, dict) and isinstance(after, dict):
        return patch(raw, before, after)
    return after


def write_block(part: Part, decode: Callable[[Raw], Part], spell: Callable[[Part], Fields]) -> Raw:
    """A part as a JSON block: the one it came from, changed where it must be, or a new one."""
    if part.raw is None:
        return write(spell(part))
    original = decode(part.raw)
    if original == part:
        return part.raw
    if isinstance(original, Reasoning | Opaque) or type(original) is not type(part):
        raise WireError("this block cannot be changed", hint="send it as it came, or leave it out")
    return patch(part.raw, spell(original), spell(part))


def write_content(
    parts: Sequence[Part], block: Callable[[Part], Raw], place: str = "content", empty: Json = ""
) -> Json:
    """The value of the field at `place`: a string where one says it all, otherwise a list of blocks."""
    if not parts:
        return empty
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].raw is None:
        return parts[0].text
    return each(block, parts, place)


def misplaced(part: Part, where: str) -> WireError:
    return WireError(f"{where} has no place for {_NAMES[type(part)]}", hint="build the message without it")


_NAMES: dict[type[Part], str] = {
    Text: "this text",
    Reasoning: "this reasoning",
    ToolCall: "a tool call",
    ToolResult: "a tool result",
    Image: "this image",
    File: "this file",
    Opaque: "a block of another provider",
}
