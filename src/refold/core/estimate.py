"""An estimate of tokens without a tokenizer: fixed arithmetic over characters and bytes.

A policy that decides on a rough count must always decide on the same one. So the estimate is exact arithmetic with golden values,
and not an approximation of a better count.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from refold.model.compaction import compaction_of
from refold.model.message import File, Image, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from refold.model.tokens import Source
from refold.model.window import Tool, Window

MEDIA_TOKENS = 256
"""Flat cost of an image or file: its true cost depends on resolution and provider."""
_MESSAGE_CHARACTERS = 12
_SYSTEM_BLOCK_CHARACTERS = 20
_TOOL_CHARACTERS = 20


class CharacterEstimate:
    """Two and a half characters to a token: text in characters, ids and arguments in bytes, media flat."""

    source: Source = "estimated"

    def text(self, text: str, /) -> int:
        return len(text) * 2 // 5

    def message(self, message: Message, /) -> int:
        parts = list(_flat(message.parts))
        characters = sum(map(_characters, parts)) + _MESSAGE_CHARACTERS
        if message.role == "system":
            characters += _SYSTEM_BLOCK_CHARACTERS * _blocks(message)
        media = sum(isinstance(part, Image | File) for part in parts)
        return characters * 2 // 5 + MEDIA_TOKENS * media

    def tools(self, tools: Iterable[Tool], /) -> int:
        """What tool definitions cost: name, description, parameters and framing."""
        return sum(map(_tool_characters, tools)) * 2 // 5


def estimate_window(window: Window) -> int:
    """All of a window by its characters: instructions with their summary, messages and tools."""
    counter = CharacterEstimate()
    messages = (*window.system, *window.sent)
    return sum(map(counter.message, messages)) + counter.tools(window.fixed.tools)


def _flat(parts: Iterable[Part]) -> Iterable[Part]:
    """The parts of a message and those inside its results."""
    for part in parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.parts


def _characters(part: Part) -> int:
    match part:
        case Text() | Reasoning():
            return len(part.text)
        case ToolCall():
            return _bytes(part.id) + _bytes(part.kind) + _bytes(part.name) + _bytes(part.arguments)
        case ToolResult():
            return _bytes(part.call_id)
        case Opaque():
            return _compacted(part)
        case _:
            return 0


def _compacted(part: Opaque) -> int:
    """Characters of a provider's own compaction; nothing else that is opaque counts."""
    compaction = compaction_of(part)
    return compaction.characters if compaction else 0


def _blocks(message: Message) -> int:
    """A system prompt in blocks pays for each of them; one string does not."""
    texts = [part for part in message.parts if isinstance(part, Text)]
    return len(texts) if len(texts) > 1 or any(part.raw for part in texts) else 0


def _tool_characters(tool: Tool) -> int:
    schema = msgspec.json.format(tool.schema, indent=-1) if tool.schema else ""
    return _bytes(tool.name) + _bytes(tool.description) + _bytes(schema) + _TOOL_CHARACTERS


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
