"""What one message costs: its texts, the frame around them, and a flat cost for what is not text.

One idea: how a message is taken apart does not depend on how text is counted. Both counters inherit it from here, so
their numbers differ in the tokenizer only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    compaction_of,
)
from refold.model.tokens import Source
from refold.tokens.memo import Memo, digest

IMAGE_TOKENS = 1_000
"""A screenshot: OpenAI bills 765 for a square at high detail, Anthropic 1,600 at most. Providers scale every image down,
so its bytes say little about its tokens."""
PAGE_TOKENS = 2_000
"""A page of a document: Anthropic states 1,500 to 3,000."""
PAGE_BYTES = 64 * 1024
MAX_PAGES = 25
"""A scan is large in bytes only: beyond this, size no longer tells pages."""
CHARACTERS_PER_TOKEN = 4
"""What is sealed cannot be counted; this is what Codex takes for it."""
_SEALED = frozenset({"data", "encrypted_content", "encrypted_index", "signature"})
"""Keys whose values a model never reads as text."""
_Count: TypeAlias = Callable[[str], int]


class Framing(Struct, frozen=True):
    """Tokens that a provider's template puts around messages, calls and results."""

    message: int
    call: int
    result: int


CHAT_FRAMING = Framing(message=4, call=9, result=8)
"""OpenAI documents three tokens per message and one for the role. Calls and results are those of its published harmony
format, where each is a message: `<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>…
<|call|>` and `<|start|>functions.NAME to=assistant<|channel|>commentary<|message|>…<|end|>`, with a short name."""
CLAUDE_FRAMING = Framing(message=4, call=30, result=30)
"""Sixty tokens per call and its result, found together with `fitted.CLAUDE_FACTOR` in recorded bills."""


class MessageCounter(ABC):
    """A counter of messages on top of a counter of text. Counts of longer texts are remembered, the texts are not."""

    source: Source
    memo_from: ClassVar[int] = 24
    """Characters from which looking a text up (0.5 µs) is faster than counting it."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._memo = Memo()

    @abstractmethod
    def count(self, text: str, /) -> int:
        """The tokens of a text, counted anew."""

    def text(self, text: str, /) -> int:
        if len(text) < self.memo_from:
            return self.count(text)
        key = digest(text)
        known = self._memo.get(key)
        if known is None:
            known = self.count(text)
            self._memo.put(key, known)
        return known

    def message(self, message: Message, /) -> int:
        frame = self._framing
        return frame.message + sum(_part(part, self.text, frame) for part in message.parts)


def _part(part: Part, count: _Count, frame: Framing) -> int:
    if isinstance(part, Text | Reasoning):
        return count(part.text)
    if isinstance(part, ToolCall):
        return frame.call + count(part.name) + count(part.arguments)
    if isinstance(part, ToolResult):
        return frame.result + sum(_part(inner, count, frame) for inner in part.parts)
    if isinstance(part, Image):
        return IMAGE_TOKENS
    if isinstance(part, File):
        return count(part.text) if part.text else _file(part)
    return _opaque(part, count)


def _file(part: File) -> int:
    size = len(part.data) * 3 // 4
    if part.media_type.startswith("text/"):
        return size // 4
    return PAGE_TOKENS * max(1, min(MAX_PAGES, size // PAGE_BYTES))


def _opaque(part: Opaque, count: _Count) -> int:
    """The JSON text a model may be shown, without what only the provider can open; inline media costs as an image.

    Of a provider's own compaction the text counts, and of one that only the provider can open its size.
    """
    if part.raw is None:
        return count(part.kind)
    if compaction := compaction_of(part):
        return count(compaction.text) if compaction.text else compaction.characters // CHARACTERS_PER_TOKEN
    try:
        value = msgspec.json.decode(part.raw)
        media = sum(1 for _ in _inline_media(value))
        return IMAGE_TOKENS * media + count(msgspec.json.encode(_readable(value)).decode())
    except (msgspec.DecodeError, RecursionError):
        return count(bytes(part.raw).decode(errors="replace"))


def _readable(value: object) -> object:
    if isinstance(value, dict):
        return {key: _readable(inner) for key, inner in value.items() if key not in _SEALED}
    if isinstance(value, list):
        return [_readable(inner) for inner in value]
    return "" if _is_inline_media(value) else value


def _inline_media(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _inline_media(inner)
    elif _is_inline_media(value):
        yield value


def _is_inline_media(value: object) -> bool:
    return isinstance(value, str) and value.startswith("data:") and ";base64," in value[:100]
