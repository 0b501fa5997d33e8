"""What a message holds, as far as rules about messages ask for it.

One idea: the rules of the providers are about blocks. Here each question about blocks has one answer, so that the one who
finds a fault (`verify`) and the one who mends it (`pairs`) never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw

from refold.model.dialect import Dialect
from refold.model.message import File, Image, Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from refold.model.window import Fixed, Ttl

_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MARK = b'"cache_control"'
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def is_empty(message: Message) -> bool:
    """Does the message say nothing at all? White space says nothing; reasoning does."""
    return all(map(is_blank, message.parts))


def is_blank(part: Part) -> bool:
    return type(part) is Text and not part.text.strip()


def is_only_reasoning(message: Message) -> bool:
    parts = message.parts
    return bool(parts) and all(type(part) is Reasoning for part in parts)


def is_directive(message: Message) -> bool:
    """Is this a system or developer message without words, which only sets something at its provider?"""
    return message.role in ("system", "developer") and is_opaque(message)


def is_opaque(message: Message) -> bool:
    return bool(message.parts) and all(type(part) is Opaque for part in message.parts)


def takes_system(message: Message) -> bool:
    """May a system message follow this one, where a dialect has a rule for that?"""
    if message.role in ("user", "tool"):
        return True
    last = message.parts[-1] if message.role == "assistant" and message.parts else None
    return type(last) is Opaque and last.kind.endswith("tool_result")


def broken_arguments(call: ToolCall, *, as_object: bool) -> bool:
    """Would a provider choke on these arguments?

    Custom tools take plain text, so anything goes there; no arguments at all are an empty object to everyone.
    """
    if call.kind != "function" or not call.arguments.strip():
        return False
    try:
        (_OBJECT if as_object else _ANYTHING).decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return True
    return False


def is_call_id(call_id: str, dialect: Dialect) -> bool:
    if dialect.max_call_id and len(call_id) > dialect.max_call_id:
        return False
    return not dialect.plain_call_ids or _ID_CHARACTERS.issuperset(call_id)


def plain_call_id(call_id: str, dialect: Dialect) -> str:
    """The id as the dialect can take it."""
    if dialect.plain_call_ids:
        call_id = "".join(sign if sign in _ID_CHARACTERS else "_" for sign in call_id)
    return call_id[: dialect.max_call_id] if dialect.max_call_id else call_id


def misplaced_parts(message: Message, dialect: Dialect) -> Iterator[tuple[str, str]]:
    """What stands where its dialect has no place for it: the thing, and where it belongs."""
    role, seen_other = message.role, False
    for part in message.parts:
        kind = type(part)
        if kind is ToolResult:
            if role != "tool":
                yield "a tool result", "in a tool message"
            elif seen_other:
                yield "a tool result", "before the text of its message"
        else:
            seen_other = True
            if (kind is ToolCall or kind is Reasoning) and role != "assistant":
                yield "a tool call or thinking", "in an assistant message"
    if role == "tool" and message.parts and type(message.parts[0]) is not ToolResult and not message.results:
        yield "text without a tool result", "in a user message"
    if len(message.parts) > 1:
        yield from _crowded(message, dialect)
    if not dialect.media_in_results and role == "tool" and any(map(_has_media, message.parts)):
        yield "media", "in a user message"


def _crowded(message: Message, dialect: Dialect) -> Iterator[tuple[str, str]]:
    if dialect.spreads_calls and len(split_items(message.parts)) > 1:
        yield "each call, result and thought", "in an item of its own"
    elif message.role == "tool" and not dialect.joint_results:
        yield "each result", "in a message of its own"


def split_items(parts: Iterable[Part]) -> list[tuple[Part, ...]]:
    """The parts of a reply as a format with one thing per item wants them: text and media together, the rest alone."""
    items: list[tuple[Part, ...]] = []
    for part in parts:
        joins = isinstance(part, Text | Image | File)
        if joins and items and isinstance(items[-1][-1], Text | Image | File):
            items[-1] = (*items[-1], part)
        else:
            items.append((part,))
    return items


def _has_media(part: Part) -> bool:
    return isinstance(part, ToolResult) and any(isinstance(inner, Image | File) for inner in part.parts)


def breakpoints_of(part: Part) -> list[Ttl]:
    """The cache breakpoints that the client put on a block, those inside of a tool result included."""
    if part.raw is None or _MARK not in bytes(part.raw):
        return []
    inner = (mark for held in part.parts for mark in breakpoints_of(held)) if type(part) is ToolResult else ()
    return [*inner, *breakpoint_in(part.raw)]


def breakpoint_in(raw: Raw) -> tuple[Ttl, ...]:
    """The breakpoint on a block or a tool definition itself, if there is one."""
    if _MARK not in bytes(raw):
        return ()
    value = msgspec.json.decode(raw)
    mark = value.get("cache_control") if isinstance(value, dict) else None
    if mark is None:
        return ()
    return ("1h",) if isinstance(mark, dict) and mark.get("ttl") == "1h" else ("5m",)


def count_breakpoints(parts: Iterable[Part]) -> int:
    """How many cache breakpoints the client put on these blocks and inside of them."""
    return sum(len(breakpoints_of(part)) for part in parts if part.raw is not None)


def count_fixed_breakpoints(fixed: Fixed) -> int:
    """How many cache breakpoints the client put on tools and system prompt, or has the provider put at the end."""
    if not fixed.dialect.max_breakpoints:
        return 0
    tools = sum(len(breakpoint_in(tool.raw)) for tool in fixed.tools if tool.raw is not None)
    prompt = sum(count_breakpoints(message.parts) for message in fixed.system)
    return tools + prompt + (fixed.automatic is not None)
