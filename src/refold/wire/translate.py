"""Translates messages and tool definitions from one format to another, for a conversation that continues at another provider.

A message of another format is rebuilt from its content. Its reasoning, its opaque blocks and its files
stored at the provider are dropped, the provider's own tools become ordinary functions, media without a
place in the format become a word in brackets, and a provider's own compaction becomes its text, or a line
that says that there is none. Nothing else changes, and messages that come from the target format stay the
same values.

The result may have calls without results; `repair` completes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw, Struct, structs
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.message import (
    DialectName,
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    holds_compaction,
    in_words,
)
from refold.model.window import Tool
from refold.wire.json_codec import FIELDS, NULL, Fields, Json, is_null, is_object, read, verbatim, write

_NO_SCHEMA = '{"type":"object","properties":{}}'


class _Shape(Struct, gc=False):
    """The fields that distinguish the formats of a tool definition."""

    type: str | None = None
    function: Raw = NULL
    custom: Raw = NULL
    input_schema: Raw = NULL
    name: Raw = NULL


_SHAPE = Decoder(_Shape)


def translate_messages(messages: Sequence[Message], dialect: Dialect) -> tuple[Message, ...]:
    """The messages in a form that the dialect can write. The same values if none comes from another format."""
    if not any(is_foreign(message, dialect) for message in messages):
        return tuple(messages)
    out: list[Message] = []
    for message in messages:
        said = _translated(message, dialect) if is_foreign(message, dialect) else message
        if said is not None:
            _join(out, said, dialect)
    return tuple(out)


def is_foreign(message: Message, dialect: Dialect) -> bool:
    return message.origin is not None and message.origin.dialect != dialect.name


def _translated(message: Message, dialect: Dialect) -> Message | None:
    message = in_words(message) if holds_compaction(message) else message
    parts = [said for part in message.bare().parts if (said := _part(part, dialect)) is not None]
    role = message.role if message.role in dialect.roles else "system"
    return Message(role, tuple(parts)) if parts else None


def _part(part: Part, dialect: Dialect) -> Part | None:
    if isinstance(part, Opaque | Reasoning):
        return None
    if isinstance(part, ToolCall):
        return _call(part)
    if isinstance(part, ToolResult):
        held = (
            _media(inner, dialect, in_result=True) for inner in part.parts if not isinstance(inner, Opaque)
        )
        return structs.replace(part, parts=tuple(held), kind="function")
    return _media(part, dialect, in_result=False)


def _call(call: ToolCall) -> ToolCall:
    """The call as a function call with an object as arguments, for a tool of any kind."""
    if call.kind == "function":
        return call
    arguments = call.arguments if is_json_object(call.arguments) else _wrapped(call.arguments)
    return structs.replace(call, kind="function", arguments=arguments)


def _wrapped(text: str) -> str:
    return msgspec.json.encode({"input": text.encode("utf-8", "replace").decode()}).decode()


def is_json_object(text: str) -> bool:
    try:
        FIELDS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _media(part: Text | Image | File, dialect: Dialect, *, in_result: bool) -> Text | Image | File:
    if isinstance(part, Text):
        return part
    if isinstance(part, File) and part.text:
        return Text(part.text)
    if part.file_id or (in_result and not dialect.media_in_results) or not _can_hold(part, dialect.name):
        return Text(f"[{_name_of(part)}]")
    return part


def _can_hold(part: Image | File, dialect: DialectName) -> bool:
    if isinstance(part, Image):
        return True
    if dialect == "anthropic":
        return bool(part.url) or part.media_type == "application/pdf"
    return dialect == "responses" or not part.url


def _name_of(part: Image | File) -> str:
    if isinstance(part, Image):
        return "image"
    return f"file {part.name}" if part.name else "file"


def _join(out: list[Message], message: Message, dialect: Dialect) -> None:
    """Append a message. A reply that one format spreads over items is joined into one message for another."""
    last = out[-1] if out else None
    joins = last is not None and last.origin is None and last.role == message.role == "assistant"
    if last is None or not joins or message.origin is not None or dialect.spreads_calls:
        out.append(message)
    else:
        out[-1] = Message("assistant", (*last.parts, *message.parts))


def translate_tools(tools: Iterable[Tool], dialect: Dialect) -> list[Json]:
    """Tool definitions in the dialect's form. A tool that only its own provider can run is left out."""
    found: list[Json] = []
    for tool in tools:
        shape = read(_SHAPE, tool.raw) if tool.raw is not None else None
        if tool.raw is not None and shape is not None and _home_of(shape) == dialect.name:
            found.append(tool.raw)
        elif shape is None or _is_function(shape):
            found.append(_spell_tool(tool, dialect))
    return found


def _home_of(shape: _Shape) -> DialectName:
    """The format of a definition: Chat wraps it, Anthropic calls the schema `input_schema` and dates its own tools."""
    if is_object(shape.function) or is_object(shape.custom):
        return "chat"
    kind = shape.type or ""
    is_dated = kind.rpartition("_")[2].isdecimal() and not is_null(shape.name)
    return "anthropic" if is_dated or not kind or is_object(shape.input_schema) else "responses"


def _is_function(shape: _Shape) -> bool:
    return shape.type in (None, "function") or is_object(shape.function) or is_object(shape.input_schema)


def _spell_tool(tool: Tool, dialect: Dialect) -> Raw:
    schema = verbatim(tool.schema or _NO_SCHEMA)
    fields: Fields = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    if dialect.name == "anthropic":
        return write({**fields, "input_schema": schema})
    fields["parameters"] = schema
    if dialect.name == "chat":
        return write({"type": "function", "function": fields})
    return write({"type": "function", **fields, "strict": False})
