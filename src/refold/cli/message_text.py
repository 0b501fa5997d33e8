"""The text of a message as a terminal shows it: line by line, without control characters."""

from __future__ import annotations

from collections.abc import Iterator

from refold.cli.output import INDENT, plain
from refold.model.message import Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult, readable_text


def indented_text(message: Message) -> str:
    """Everything that a message says, indented, one line per line of its parts."""
    lines = [line for part in message.parts for line in _lines(part)]
    return "".join(f"{INDENT}{plain(line.expandtabs(4), len(line) * 4)}".rstrip() + "\n" for line in lines)


def _lines(part: Part) -> Iterator[str]:
    match part:
        case Text():
            yield from part.text.splitlines()
        case Reasoning():
            yield from (f"(thinking) {line}" for line in part.text.splitlines() or [""])
        case ToolCall():
            yield f"-> {part.name} {part.arguments}"
        case ToolResult():
            for inner in part.parts:
                yield from _lines(inner)
        case Opaque():
            yield f"[{part.kind}]"
            yield from readable_text(part).splitlines()
        case _:
            yield f"[{type(part).__name__.lower()}]"


def one_line(message: Message) -> str:
    """Everything that a message says, on one line."""
    return " ".join(" ".join(_words(part) for part in message.parts).split())


def _words(part: Part) -> str:
    match part:
        case Text() | Reasoning():
            return part.text
        case ToolCall():
            return f"{part.name} {part.arguments}"
        case ToolResult():
            return " ".join(_words(inner) for inner in part.parts)
        case Opaque():
            return f"[{part.kind}] {readable_text(part)}".rstrip()
    return f"[{type(part).__name__.lower()}]"


def harmless(line: str) -> str:
    """A line at its full length, without control characters."""
    return plain(line, len(line))
