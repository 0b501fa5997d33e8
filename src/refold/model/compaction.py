"""A provider's own compaction: an item or block that stands for everything said before it.

Responses has items with `encrypted_content`, which only OpenAI can read; Anthropic has blocks in the assistant's messages, whose
`content` is a readable summary. Both are sent back untouched, and the provider ignores everything before the newest one. A block of
Anthropic's without content is a compaction that failed; it stands for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from refold.model.message import Message, Opaque, Part, Text

KINDS = frozenset({"compaction", "compaction_summary", "context_compaction"})
"""`compaction_summary` is an older name of the item; `context_compaction` is what Codex keeps of it."""


SUMMARY, END = "[What was said before, in short]", "[End of what was said before]"
UNREADABLE = (
    "[Here stood a summary of the messages before this one, which only the provider that wrote it can read.]"
)


class Compaction(Struct, frozen=True):
    """What a provider's own compaction holds: a text, or something that only the provider can read."""

    text: str = ""
    sealed: str = ""

    @property
    def characters(self) -> int:
        """How long it is as text; four characters of base64 are three bytes."""
        return len(self.text) or len(self.sealed) * 3 // 4


class _Fields(Struct):
    content: str | None = None
    encrypted_content: str | None = None


_FIELDS = msgspec.json.Decoder(_Fields)


def compaction_of(part: Part) -> Compaction | None:
    """What the part holds, if it is a compaction of its provider's; None where it is not, or has failed."""
    if type(part) is not Opaque or part.kind not in KINDS or part.raw is None:
        return None
    try:
        fields = _FIELDS.decode(part.raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Compaction(sealed=bytes(part.raw).decode("utf-8", "replace"))
    found = Compaction(fields.content or "", fields.encrypted_content or "")
    return found if found.characters else None


def readable_text(part: Part) -> str:
    """The text of a provider's own compaction; empty where only the provider can read it, or it is none."""
    found = compaction_of(part)
    return found.text if found else ""


def in_words(message: Message, told: str = "") -> Message:
    """The message with words in the place of compactions that only another provider understands: their own text, or `told`, which
    tells what was said before them.
    """
    parts = tuple(
        _in_words(part, told) if compaction_of(part) is not None else part for part in message.parts
    )
    return Message(message.role, parts)


def _in_words(part: Part, told: str) -> Text:
    text = (readable_text(part) or told).replace(END, f"{END[0]} {END[1:]}")
    return Text(f"{SUMMARY}\n{text}\n{END}" if text else UNREADABLE)


def holds_compaction(message: Message) -> bool:
    return message.role == "assistant" and any(compaction_of(part) is not None for part in message.parts)


def holds_sealed(message: Message) -> bool:
    """Does the message hold a compaction that only its provider can read? Nobody else knows how many tokens that takes."""
    return holds_compaction(message) and any(
        compaction_of(part) is not None and not readable_text(part) for part in message.parts
    )


def compaction_span(messages: Sequence[Message]) -> range:
    """The newest message that holds a compaction, and the one with the results of its calls; empty where there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if holds_compaction(messages[index]):
            return range(index, index + 1 + _is_answered(messages, index))
    return range(0)


def opening_span(messages: Sequence[Message]) -> int:
    """How many messages at the beginning are a provider's compaction and the results of its calls."""
    if not messages or not holds_compaction(messages[0]):
        return 0
    return 1 + _is_answered(messages, 0)


def after_compaction(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What a provider reads of the messages: all from its own newest compaction on."""
    span = compaction_span(messages)
    if not span:
        return tuple(messages)
    first = messages[span.start]
    at = max(at for at, part in enumerate(first.parts) if compaction_of(part) is not None)
    opened = first.with_parts(first.parts[at:]) if at else first
    return (opened, *messages[span.start + 1 :])


def _is_answered(messages: Sequence[Message], index: int) -> bool:
    """Does the next message answer a call of this one?"""
    if index + 1 >= len(messages):
        return False
    calls = {call.id for call in messages[index].calls}
    return any(result.call_id in calls for result in messages[index + 1].results)
