"""Recognises the format of a transcript by its shape.

The first message with a feature that only one format has decides. A list that all three formats could have
sent (plain texts by a user and an assistant) is read as Chat, the format that most tools export.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import WireError
from refold.wire.json_codec import FIELDS, NULL, check_body, is_null, read, read_list
from refold.wire.responses import ITEM_TYPES

_ANTHROPIC_BLOCKS = frozenset(
    {
        "compaction",
        "container_upload",
        "document",
        "mcp_tool_use",
        "redacted_thinking",
        "search_result",
        "server_tool_use",
        "thinking",
        "tool_addition",
        "tool_removal",
        "tool_result",
        "tool_use",
    }
)
_RESPONSES_BLOCKS = frozenset(
    {"computer_screenshot", "input_file", "input_image", "input_text", "output_text"}
)


class _Shape(Struct, gc=False):
    """The fields of a message that distinguish the formats."""

    type: str | None = None
    role: str | None = None
    content: Raw = NULL
    tool_calls: Raw = NULL


class _Block(Struct, gc=False):
    type: str | None = None
    source: Raw = NULL


class _Tool(Struct, gc=False):
    input_schema: Raw = NULL


_SHAPE = Decoder(_Shape)
_BLOCKS = Decoder(list[_Block])
_TOOL = Decoder(_Tool)


def detect_dialect(body: bytes) -> Dialect:
    """The format of a request body.

    Raises:
        WireError: the body is not a JSON object.
    """
    check_body(body)
    fields = read(FIELDS, body)
    return dialect_of(fields, list_of(fields.get("messages", NULL)))


def dialect_of(fields: Mapping[str, Raw], items: Iterable[Raw]) -> Dialect:
    """The format of a list of messages with the fields around it, if any."""
    if "input" in fields and "messages" not in fields:
        return RESPONSES
    if "system" in fields or any(map(_has_schema, list_of(fields.get("tools", NULL)))):
        return ANTHROPIC
    return next(filter(None, map(_dialect_of_item, items)), CHAT)


def list_of(raw: Raw) -> list[Raw]:
    """The elements of a list; empty for other values, which decoding will reject."""
    try:
        return read_list(raw)
    except WireError:
        return []


def _has_schema(tool: Raw) -> bool:
    try:
        return not is_null(_TOOL.decode(tool).input_schema)
    except (DecodeError, RecursionError):
        return False


def _dialect_of_item(item: Raw) -> Dialect | None:
    """The only format that can have sent this message; None if several can."""
    try:
        shape = _SHAPE.decode(item)
    except (DecodeError, RecursionError):
        return None
    if shape.type in ITEM_TYPES or (shape.type is not None and shape.role is None):
        return RESPONSES
    if shape.role == "tool" or not is_null(shape.tool_calls):
        return CHAT
    return _dialect_of_blocks(shape.content)


def _dialect_of_blocks(content: Raw) -> Dialect | None:
    try:
        blocks = _BLOCKS.decode(content)
    except (DecodeError, RecursionError):
        return None
    return next(filter(None, map(_dialect_of_block, blocks)), None)


def _dialect_of_block(block: _Block) -> Dialect | None:
    kind = block.type or ""
    if kind in _RESPONSES_BLOCKS:
        return RESPONSES
    if kind in _ANTHROPIC_BLOCKS or kind.endswith("_tool_result"):
        return ANTHROPIC
    return ANTHROPIC if kind == "image" and not is_null(block.source) else None
