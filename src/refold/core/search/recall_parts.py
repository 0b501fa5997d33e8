"""Calls of the recall tool and their answers, as parts of stored messages.

An answer repeats messages word for word, and a call repeats the words of a question. Neither is searched: the original would be found
after its copies. The answers are recognised by their first line, which `refold.recall` writes.
"""

from __future__ import annotations

import re

from refold.core.digest.facts import text_of
from refold.model.message import Message, Part, Reasoning, Role, ToolCall, ToolResult

FOUND = "Found, with handles:"
"""The first line of passages that a search found."""
SUMMARY = "a summary of earlier messages"
SOURCES: dict[Role, str] = {
    "user": "from the user",
    "assistant": "from the assistant",
    "tool": "the result of a tool",
    "system": "from the system prompt",
    "developer": "from the developer",
}
"""Where an original came from, after its handle in the first line."""
_ORIGINAL = re.compile(rf"#[ms][0-9]+(?:\.[0-9]+)?, (?:{'|'.join((*SOURCES.values(), SUMMARY))}):\n")
_TOOL = re.compile(r"(?i)recall|(?:mcp[_.:/-]+)?refold[_.:/-]+(?:recall|search)")
"""The recall tool, also with a client's prefix, and the tools of the MCP server with theirs."""
_ARGUMENTS = re.compile(r'\{\s*"(?:what|words|handle|conversation)"')


def is_recall(part: Part) -> bool:
    """Whether a part is a call of the recall tool, or an answer to one."""
    match part:
        case ToolCall():
            return _TOOL.fullmatch(part.name) is not None and _ARGUMENTS.match(part.arguments) is not None
        case ToolResult():
            text = part.text
            return text.startswith(FOUND) or _ORIGINAL.match(text) is not None
        case _:
            return False


def is_recall_alone(message: Message) -> bool:
    """Whether a message has recalls and no other text."""
    parts = [part for part in message.parts if not isinstance(part, Reasoning) and text_of(part).strip()]
    return bool(parts) and all(map(is_recall, parts))
