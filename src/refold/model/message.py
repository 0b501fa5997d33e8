"""Parts and messages: the values that a conversation consists of.

A message decoded from JSON keeps that JSON (`Origin`). So an unchanged message is sent byte for byte as it
came, and a changed one keeps every field that Refold does not know. The typed parts are a reading of the
JSON, not a replacement.

A wire item is one message: a Chat or Anthropic message, a Responses item. `role` is the meaning of the
message, not its spelling in a format: a message with tool results has the role `tool`, even in a format
that calls it `user`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
DialectName: TypeAlias = Literal["chat", "responses", "anthropic"]


class Block(Struct, frozen=True, kw_only=True, gc=False):
    """Base of all parts: `raw` is the JSON block that the part was read from, if it had one of its own."""

    raw: Raw | None = None


class Text(Block, frozen=True, gc=False):
    """Text of a message."""

    text: str


class Reasoning(Block, frozen=True, gc=False):
    """The model's reasoning. `signature` and `sealed` are the provider's; they are sent back unchanged or not at all."""

    text: str
    signature: str = ""
    sealed: str = ""
    """Encrypted or redacted reasoning: it has no readable text and counts none."""


class ToolCall(Block, frozen=True, gc=False):
    """A call of a tool that the model asks for; a `ToolResult` with the same id answers it."""

    id: str
    name: str
    arguments: str = "{}"
    """JSON text as the model wrote it (it may be malformed), or plain text for a custom tool."""
    kind: str = "function"


class Media(Block, frozen=True, kw_only=True, gc=False):
    """Media content or its location: exactly one of `data` (base64), `url` and `file_id` is set."""

    media_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""


class Image(Media, frozen=True, kw_only=True, gc=False):
    """A picture."""


class File(Media, frozen=True, kw_only=True, gc=False):
    """A document, audio or video. A plain-text document has `text` instead of bytes."""

    name: str = ""
    text: str = ""


class Opaque(Block, frozen=True, gc=False):
    """A part of the provider's own, sent back unchanged: server-tool blocks, compaction items, unknown kinds."""

    kind: str


class ToolResult(Block, frozen=True, gc=False):
    """What the tool returned for the call `call_id`."""

    call_id: str
    parts: tuple[Text | Image | File | Opaque, ...] = ()
    is_error: bool = False
    kind: str = "function"

    @property
    def text(self) -> str:
        return _joined_texts(self.parts)


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Image | File | Opaque


def _joined_texts(parts: tuple[Part, ...]) -> str:
    """The texts among the parts. A single one, as most messages have, is returned itself, not copied."""
    if len(parts) == 1:
        return parts[0].text if isinstance(parts[0], Text) else ""
    return "\n".join([part.text for part in parts if isinstance(part, Text)])


class Origin(Struct, frozen=True, gc=False):
    """The JSON that a message came from. `edited` is true if the parts no longer agree with it."""

    dialect: DialectName
    raw: Raw
    edited: bool = False


class Message(Struct, frozen=True, gc=False):
    """One message of a conversation: its role and its parts, read from the JSON in `origin` if there is one."""

    role: Role
    parts: tuple[Part, ...]
    origin: Origin | None = None

    @property
    def text(self) -> str:
        """The message's text, without reasoning, calls and results."""
        return _joined_texts(self.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @property
    def characters(self) -> int:
        """Characters in all parts, including base64 media. The time to process a message is proportional to it."""
        return sum(map(characters, self.parts))

    def with_parts(self, parts: tuple[Part, ...]) -> Message:
        """The same message with other parts. Fields that Refold does not know stay."""
        origin = self.origin and Origin(self.origin.dialect, self.origin.raw, edited=True)
        return Message(self.role, parts, origin)

    def bare(self) -> Message:
        """The content alone, without the original JSON: equal for equal messages from different formats."""
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


def replace_lone_surrogates(text: str) -> str:
    """Make valid Unicode of a text: half of a surrogate pair cannot be stored or sent."""
    return text.encode("utf-8", "replace").decode()


_UNSEEN = re.compile(
    "(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f)"
    "|[\x00-\x08\x0e-\x1a\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]"
    "|(?<=[\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Characters that a reader does not see and a model may read: control characters other than line ends, tabs
and the escape of colour codes, direction marks, zero-width joints, fillers, tag characters, and a variation selector after another. Flags spelt with tags stay (the group), and so do
joiners (U+200C, U+200D) and single selectors, which belong to words and pictures."""

_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x7f]")
"""Those of them that are ASCII."""
_JOINED = re.compile("[\ufe00-\ufe0f\U0001f3f4\U000e0020-\U000e007f\U000e0100-\U000e01ef]++")
"""Characters that belong to the next one or to the one before: selectors, and those of flags."""
_SLICE = 64 * 1024
"""Characters that are searched in one call, between two of which other threads can run."""


def is_within(text: str, part: str) -> bool:
    """Return what `part in text` does. Between two slices of a long text other threads can run."""
    if len(text) <= _SLICE:
        return part in text
    return any(
        text.find(part, start, start + _SLICE + len(part) - 1) >= 0 for start in range(0, len(text), _SLICE)
    )


def visible(text: str) -> str:
    """Return the text without invisible characters; the same object if it has none."""
    if len(text) > _SLICE:
        return _visible_in_slices(text)
    if text.isascii() and (text.isprintable() or _CONTROL.search(text) is None):
        return text
    return _UNSEEN.sub(r"\1", text)


def _visible_in_slices(text: str) -> str:
    """Return what `visible` does for a long text."""
    pattern = _CONTROL if text.isascii() else _UNSEEN
    if not any(pattern.search(text, start, stop) for start, stop in _slices(text)):
        return text
    return "".join([_UNSEEN.sub(r"\1", text[start:stop]) for start, stop in _slices(text)])


def _slices(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the slices of a text: none ends between two characters that `_UNSEEN` examines together."""
    start = 0
    while start < len(text):
        stop = min(start + _SLICE, len(text))
        if joined := _JOINED.match(text, stop - 1):
            stop = joined.end()
        yield start, stop
        start = stop


def visible_message(message: Message) -> Message:
    """Return the message with visible texts only; the same object if it has no invisible characters."""
    parts = tuple(map(_visible_part, message.parts))
    is_same = all(new is old for new, old in zip(parts, message.parts, strict=True))
    return message if is_same else Message(message.role, parts)


def _visible_part(part: Part) -> Part:
    match part:
        case Text():
            text = visible(part.text)
            return part if text is part.text or text == part.text else Text(text)
        case ToolCall():
            arguments, name = visible(part.arguments), visible(part.name)
            is_same = (arguments, name) == (part.arguments, part.name)
            return part if is_same else ToolCall(part.id, name, arguments, part.kind)
        case ToolResult():
            parts = tuple(_visible_inner(inner) for inner in part.parts)
            is_same = all(new is old for new, old in zip(parts, part.parts, strict=True))
            return part if is_same else ToolResult(part.call_id, parts, part.is_error, part.kind)
        case File():
            return _visible_inner(part)
        case Image() | Opaque() | Reasoning():
            return part


def _visible_inner(part: Text | Image | File | Opaque) -> Text | Image | File | Opaque:
    match part:
        case Text():
            text = visible(part.text)
            return part if text == part.text else Text(text)
        case File():
            name, text = visible(part.name), visible(part.text)
            return (
                part
                if (name, text) == (part.name, part.text)
                else structs.replace(part, raw=None, name=name, text=text)
            )
        case _:
            return part


def characters(part: Part) -> int:
    """Characters of text in a part."""
    if isinstance(part, Text):  # the usual kinds first: this runs for every message of every view
        return len(part.text)
    if isinstance(part, ToolResult):
        return sum(map(characters, part.parts))
    if isinstance(part, ToolCall):
        return len(part.name) + len(part.arguments)
    match part:
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


# Compactions by the provider
#
# A provider's own compaction is an item or block that stands for all messages before it. Responses
# has items with `encrypted_content`, which only OpenAI can read. Anthropic has blocks in assistant
# messages with a readable summary as `content`. Both are sent back unchanged, and the provider
# ignores everything before the newest one. An Anthropic block without content is a compaction that
# failed; it stands for nothing.

KINDS = frozenset({"compaction", "compaction_summary", "context_compaction"})
"""`compaction_summary` is an older name of the item; `context_compaction` is the form that Codex stores."""


SUMMARY, END = "[What was said before, in short]", "[End of what was said before]"
UNREADABLE = (
    "[Here stood a summary of the messages before this one, which only the provider that wrote it can read.]"
)


class ProviderCompaction(Struct, frozen=True):
    """The content of a provider's own compaction: readable text, or data that only the provider can read."""

    text: str = ""
    sealed: str = ""
    is_signed: bool = False
    """Whether the provider made it on request. It then has to be the first of all messages."""

    @property
    def characters(self) -> int:
        """Its length as text; four characters of base64 are three bytes."""
        return len(self.text) or len(self.sealed) * 3 // 4


class _Fields(Struct):
    content: str | None = None
    encrypted_content: str | None = None
    signature: str | None = None


_FIELDS = msgspec.json.Decoder(_Fields)


def compaction_of(part: Part) -> ProviderCompaction | None:
    """The provider's compaction in a part; None if the part is no compaction or one that failed."""
    if type(part) is not Opaque or part.kind not in KINDS or part.raw is None:
        return None
    try:
        fields = _FIELDS.decode(part.raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ProviderCompaction(sealed=bytes(part.raw).decode("utf-8", "replace"))
    found = ProviderCompaction(
        fields.content or "", fields.encrypted_content or "", is_signed=bool(fields.signature)
    )
    return found if found.characters else None


def readable_text(part: Part) -> str:
    """The text of a provider's own compaction; empty if only the provider can read it, or if it is none."""
    found = compaction_of(part)
    return found.text if found else ""


def in_words(message: Message, told: str = "") -> Message:
    """The message with text instead of compactions that another provider cannot read: their own text, or
    `told`, a text about the messages before them.
    """
    parts = tuple(
        _in_words(part, told) if compaction_of(part) is not None else part for part in message.parts
    )
    return Message(message.role, parts)


def _in_words(part: Part, told: str) -> Text:
    text = (readable_text(part) or told).replace(END, f"{END[0]} {END[1:]}")
    return Text(f"{SUMMARY}\n{text}\n{END}" if text else UNREADABLE)


def holds_compaction(message: Message) -> bool:
    if message.role != "assistant" or Opaque not in map(type, message.parts):  # as in most messages
        return False
    return any(compaction_of(part) is not None for part in message.parts)


def must_come_first(message: Message) -> bool:
    """True if the message has a compaction before which the provider takes no other message."""
    found = map(compaction_of, message.parts) if holds_compaction(message) else ()
    return any(one is not None and one.is_signed for one in found)


def holds_sealed(message: Message) -> bool:
    """True if the message has a compaction that only its provider can read, so that its tokens cannot be counted."""
    return holds_compaction(message) and any(
        compaction_of(part) is not None and not readable_text(part) for part in message.parts
    )


def compaction_span(messages: Sequence[Message]) -> range:
    """The range of the newest message with a compaction and the message with its calls' results; empty if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if holds_compaction(messages[index]):
            return range(index, index + 1 + _is_answered(messages, index))
    return range(0)


def opening_span(messages: Sequence[Message]) -> int:
    """Number of messages at the beginning that are a provider's compaction and the results of its calls."""
    if not messages or not holds_compaction(messages[0]):
        return 0
    return 1 + _is_answered(messages, 0)


def after_compaction(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages that a provider reads: all from its own newest compaction on."""
    span = compaction_span(messages)
    if not span:
        return tuple(messages)
    first = messages[span.start]
    at = max(at for at, part in enumerate(first.parts) if compaction_of(part) is not None)
    opened = first.with_parts(first.parts[at:]) if at else first
    return (opened, *messages[span.start + 1 :])


def _is_answered(messages: Sequence[Message], index: int) -> bool:
    """True if the next message answers a call of this one."""
    if index + 1 >= len(messages):
        return False
    calls = {call.id for call in messages[index].calls}
    return any(result.call_id in calls for result in messages[index + 1].results)
