"""What is read of a text that is longer than a bound.

Looking for rules and secrets, and checking a summary against what it was made from, take a quarter of a second to a second and a half
for a megabyte. So each of these reads a counted number of characters and no more: of a longer text its beginning and its end. The bound
is a number and never a time, so the same text gives the same result on every machine.

A text that is too long for a summariser is represented by its plain digest: a line that says how long it is, its first and its last
lines, and the handle that opens all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import is_

import msgspec
from msgspec import structs

from refold.core.stages.truncate import HANDLE_MARK, excerpt
from refold.core.summary.pieces import ends
from refold.core.summary.shorten import fair_share
from refold.model.message import (
    File,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    characters,
)

MAX_LEDGER = 128 * 1024
"""Characters of one text in which rules, decisions and tasks are looked for, about 30 ms: twenty times what anybody types at once."""
MAX_SEARCHED = 1024 * 1024
"""Characters of one text in which secrets are looked for, about a quarter of a second: all that is given to a summariser."""
MAX_TEXT = 1024 * 1024
"""Characters of one text that a summariser is given, about 250,000 tokens: more than most models read at once."""
MAX_SOURCE = 4 * 1024 * 1024
"""Characters of all that one summary is made from, about a million tokens: as much as the largest windows hold. Beyond it the longest
texts are given as plain digests, as long as the room allows."""
DIGEST = 16_000
"""Characters of the plain digest of a text that is too long by itself: what a log or a file is, how it begins and how it ended."""
_MARGIN = 64 * 1024
"""Characters around the ends of a text that are looked at for secrets before the digest is cut out of them: longer than the longest
key, so that no half of one is left."""

Clean = Callable[[str], str]
"""Takes secrets out of a text."""


def with_ends(message: Message, most: int) -> Message:
    """The message with so many characters of what it says, and of its long texts their ends. Calls, results and media stay."""
    said = [len(part.text) for part in message.parts if isinstance(part, Text)]
    if sum(said) <= most:
        return message
    cap = fair_share(said, most)
    parts = (Text(ends(part.text, cap)) if isinstance(part, Text) else part for part in message.parts)
    return Message(message.role, tuple(parts))


def searchable(message: Message) -> Message:
    """The message as it is searched for secrets: of long texts their ends, and no data that is longer than any of them."""

    def cut(part: Part) -> Part:
        match part:
            case Text():
                return Text(ends(part.text, MAX_SEARCHED))
            case Reasoning():
                return Reasoning(ends(part.text, MAX_SEARCHED))
            case ToolCall():
                return structs.replace(part, raw=None, arguments=ends(part.arguments, MAX_SEARCHED))
            case File():
                return File(name=part.name, text=ends(part.text, MAX_SEARCHED))
            case _:
                return Text("")

    return _changed(message, MAX_SEARCHED, cut)


def source_bound(messages: Iterable[Message]) -> int:
    """How long a text may be to be given to a summariser together with all the others of these messages."""
    lengths = (characters(part) for message in messages for part in _told(message))
    given = [length if length <= MAX_TEXT else DIGEST for length in lengths]
    return MAX_TEXT if sum(given) <= MAX_SOURCE else fair_share(given, MAX_SOURCE)


def count_long(message: Message, most: int) -> int:
    """How many texts of a message are longer."""
    return sum(characters(part) > most for part in _told(message))


def is_short(message: Message) -> bool:
    """Is a message, with the JSON that it came from, no longer than one text may be?"""
    return max(message.characters, len(message.origin.raw) if message.origin else 0) <= MAX_TEXT


def digested(message: Message, most: int, handle: str, clean: Clean) -> Message:
    """The message with a plain digest for each text that is longer. What is longer and no text, such as media, is only named."""

    def digest(text: str) -> str:
        return plain_digest(text, min(most, DIGEST) if len(text) > MAX_TEXT else most, handle, clean)

    def cut(part: Part) -> Part:
        match part:
            case Text():
                return Text(digest(part.text))
            case ToolCall() if part.kind == "function":
                told = digest(part.arguments).encode("utf-8", "replace").decode()
                arguments = msgspec.json.encode({"text": told}).decode()
                return ToolCall(part.id, part.name, arguments)
            case ToolCall():
                return ToolCall(part.id, part.name, digest(part.arguments), part.kind)
            case File():
                return (
                    File(name=part.name, text=digest(part.text)) if part.text else Text(f"(file {part.name})")
                )
            case Reasoning():
                return Text("")  # nobody is shown what a model thought
            case Opaque():
                return Text(f"({part.kind})")
            case _:
                return Text("(image)")

    return _changed(message, most, cut)


def plain_digest(text: str, most: int, handle: str, clean: Clean) -> str:
    """The first and the last lines of a text, in about `most` characters, marked as such and without secrets."""
    last, mark = most // 4, HANDLE_MARK.spell(handle=handle)
    head, tail = clean(text[: most - last + _MARGIN]), clean(text[-last - _MARGIN :])
    shown = excerpt(f"{head}{mark}{tail}", most - last, last, mark, whole_words=True)
    return f"[plain digest of {len(text):,} characters: the first and the last lines]\n{shown}"


def _told(message: Message) -> Iterator[Part]:
    """The parts that a transcript shows the text of."""
    for part in message.parts:
        if isinstance(part, ToolResult):
            yield from (inner for inner in part.parts if isinstance(inner, Text))
        elif isinstance(part, Text | ToolCall):
            yield part


def _changed(message: Message, most: int, change: Callable[[Part], Part]) -> Message:
    """The message with other parts in place of the long ones, without the JSON it came from; itself where all of it is short."""
    if message.characters <= most:
        return message
    parts = [_part_changed(part, most, change) for part in message.parts]
    if all(map(is_, parts, message.parts)):
        return message
    return Message(message.role, tuple(parts))


def _part_changed(part: Part, most: int, change: Callable[[Part], Part]) -> Part:
    if characters(part) <= most:
        return part
    if not isinstance(part, ToolResult):
        return change(part)
    parts = [inner if characters(inner) <= most else change(inner) for inner in part.parts]
    return ToolResult(part.call_id, tuple(parts), part.is_error, part.kind)  # type: ignore[arg-type]
