"""Parts and messages: the values a conversation is made of.

One idea: a message decoded from JSON keeps that JSON (`Origin`), so that what nobody changed leaves byte for byte, and
what somebody changed keeps every field Refold does not know. The typed parts are a reading of it, not a replacement.

A wire item is one message: a Chat or Anthropic message, a Responses item. `role` says what the message is, not how a
format spells it: whatever carries tool results is a `tool` message, also where the format calls it `user`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct, structs

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
DialectName: TypeAlias = Literal["chat", "responses", "anthropic"]


class Block(Struct, frozen=True, kw_only=True, gc=False):
    """What every part has: `raw`, the JSON block it was read from, if it had one of its own."""

    raw: Raw | None = None


class Text(Block, frozen=True, gc=False):
    text: str


class Reasoning(Block, frozen=True, gc=False):
    """What the model thought. `signature` and `sealed` are the provider's; they are returned as they came or not at all."""

    text: str
    signature: str = ""
    sealed: str = ""
    """Encrypted or redacted thinking: no text to read, and none to count."""


class ToolCall(Block, frozen=True, gc=False):
    id: str
    name: str
    arguments: str = "{}"
    """JSON text, as the model wrote it (it may be malformed), or plain text for a custom tool."""
    kind: str = "function"


class Media(Block, frozen=True, kw_only=True, gc=False):
    """Bytes, or where to find them: exactly one of `data` (base64), `url` and `file_id` is set."""

    media_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""


class Image(Media, frozen=True, kw_only=True, gc=False):
    pass


class File(Media, frozen=True, kw_only=True, gc=False):
    """A document, audio or video. A plain-text document has `text` instead of bytes."""

    name: str = ""
    text: str = ""


class Opaque(Block, frozen=True, gc=False):
    """Something of the provider's own, sent back untouched: server-tool blocks, compaction items, the unknown."""

    kind: str


class ToolResult(Block, frozen=True, gc=False):
    call_id: str
    parts: tuple[Text | Image | File | Opaque, ...] = ()
    is_error: bool = False
    kind: str = "function"

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Image | File | Opaque


class Origin(Struct, frozen=True, gc=False):
    """The JSON a message came from. `edited` says that the parts no longer say the same."""

    dialect: DialectName
    raw: Raw
    edited: bool = False


class Message(Struct, frozen=True, gc=False):
    role: Role
    parts: tuple[Part, ...]
    origin: Origin | None = None

    @property
    def text(self) -> str:
        """What was said, without reasoning, calls and results."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @property
    def characters(self) -> int:
        """How much text there is in all parts, media in base64 included: work on a message takes time in proportion to it."""
        return sum(map(characters, self.parts))

    def with_parts(self, parts: tuple[Part, ...]) -> Message:
        """The same message saying something else; the fields Refold does not know stay."""
        origin = self.origin and structs.replace(self.origin, edited=True)
        return structs.replace(self, parts=parts, origin=origin)

    def bare(self) -> Message:
        """Only what the message says: what two messages from different JSON have in common."""
        return Message(self.role, tuple(_bare(part) for part in self.parts))


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def assistant(text: str = "", *calls: ToolCall) -> Message:
    said = (Text(text),) if text else ()
    return Message("assistant", (*said, *calls))


def tool(call_id: str, text: str, *, is_error: bool = False) -> Message:
    return Message("tool", (ToolResult(call_id, (Text(text),), is_error),))


def system(text: str) -> Message:
    return Message("system", (Text(text),))


def characters(part: Part) -> int:
    """How much text there is in a part."""
    match part:
        case Text():
            return len(part.text)
        case ToolResult():
            return sum(map(characters, part.parts))
        case ToolCall():
            return len(part.name) + len(part.arguments)
        case Reasoning():
            return len(part.text) + len(part.sealed)
        case Image():
            return len(part.data) + len(part.url)
        case File():
            return len(part.data) + len(part.url) + len(part.text)
        case Opaque():
            return len(part.raw or b"")


def _bare(part: Part) -> Part:
    if isinstance(part, Opaque):
        return part
    if isinstance(part, ToolResult):
        return structs.replace(part, raw=None, parts=tuple(_bare(inner) for inner in part.parts))
    return structs.replace(part, raw=None)
