"""Which of the three formats is this? Told by shape, for transcripts that do not say.

One idea: look for what only one format has. What all three could have sent (plain texts by a user and an assistant) is
read as Chat, the format most tools export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.wire.reading import FIELDS, ITEMS, check_body, read
from refold.wire.responses import ITEM_TYPES

_ANTHROPIC_BLOCKS = frozenset(
    {
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "document",
        "server_tool_use",
        "mcp_tool_use",
    }
)


class _Shape(Struct, gc=False):
    """The little that tells formats apart; `None` stands for whatever else is there."""

    type: object = None
    content: object = None
    input_schema: object = None


_SHAPE = Decoder(_Shape)


def detect_dialect(body: bytes) -> Dialect:
    """The format of a request body.

    Raises:
        WireError: the body is not a JSON object.
    """
    check_body(body)
    fields = read(FIELDS, body)
    items = list_of(fields.get("messages", Raw(b"[]")))
    return dialect_of(fields, items)


def dialect_of(fields: Mapping[str, Raw], items: Sequence[Raw]) -> Dialect:
    """The format of a list of messages with the fields that stood around it, if any."""
    if "input" in fields and "messages" not in fields:
        return RESPONSES
    if "system" in fields or any(
        _shape(tool).input_schema is not None for tool in list_of(fields.get("tools"))
    ):
        return ANTHROPIC
    shapes = [_shape(item) for item in items]
    if any(isinstance(shape.type, str) and shape.type in ITEM_TYPES for shape in shapes):
        return RESPONSES
    return ANTHROPIC if any(map(_has_anthropic_block, shapes)) else CHAT


def _has_anthropic_block(shape: _Shape) -> bool:
    blocks = shape.content if isinstance(shape.content, list) else []
    return any(isinstance(block, dict) and _is_anthropic(block) for block in blocks)


def _is_anthropic(block: dict[str, object]) -> bool:
    kind = block.get("type")
    return (isinstance(kind, str) and kind in _ANTHROPIC_BLOCKS) or (kind == "image" and "source" in block)


def list_of(raw: Raw | None) -> list[Raw]:
    """The elements of a list; what is none has none, and decoding will say what is wrong with it."""
    try:
        return ITEMS.decode(raw) if raw is not None else []
    except (DecodeError, RecursionError):
        return []


def _shape(raw: Raw) -> _Shape:
    try:
        return _SHAPE.decode(raw)
    except (DecodeError, RecursionError):
        return _Shape()
