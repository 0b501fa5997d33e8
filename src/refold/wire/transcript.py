"""Reads and writes recorded conversations.

A recording is a request body, a list of messages, an object around one, one message per line, or an
agent's log. Every file is brought into the shape of a request, so that later steps know only one shape. It
is written in the shape it came in; an agent's log is written as the request that it became. A file holds
one conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import msgspec
from msgspec import DecodeError, Raw, Struct, structs
from msgspec.json import Decoder

from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES, Dialect
from refold.model.errors import WireError
from refold.model.window import Window
from refold.wire.json_codec import (
    FIELDS,
    MAX_BODY_BYTES,
    MAX_MESSAGES,
    NULL,
    check_body,
    is_null,
    read,
    read_list,
    too_many,
    within,
    write,
)
from refold.wire.logs import AgentLog, claude_code, codex, fields_of, numbered_lines, opencode, pi
from refold.wire.request import Request, encode_request, request_of
from refold.wire.responses import ITEM_TYPES

# Recognises the format of a transcript by its shape. The first message with a feature that only one
# format has decides. A list that all three formats could have sent (plain texts by a user and an
# assistant) is read as Chat, the format that most tools export.

_ANTHROPIC_BLOCKS = frozenset(
    {
        "compaction",
        "container_upload",
        "document",
        "mcp_tool_use",
        "redacted_thinking",
        "search_result",
        "server_tool_use",
        "thinking",
        "tool_addition",
        "tool_removal",
        "tool_result",
        "tool_use",
    }
)
_RESPONSES_BLOCKS = frozenset(
    {"computer_screenshot", "input_file", "input_image", "input_text", "output_text"}
)


class _Shape(Struct, gc=False):
    """The fields of a message that distinguish the formats."""

    type: str | None = None
    role: str | None = None
    content: Raw = NULL
    tool_calls: Raw = NULL


class _Block(Struct, gc=False):
    type: str | None = None
    source: Raw = NULL


class _Tool(Struct, gc=False):
    input_schema: Raw = NULL


_SHAPE = Decoder(_Shape)
_BLOCKS = Decoder(list[_Block])
_TOOL = Decoder(_Tool)


def detect_dialect(body: bytes) -> Dialect:
    """The format of a request body.

    Raises:
        WireError: the body is not a JSON object.
    """
    check_body(body)
    fields = read(FIELDS, body)
    return dialect_of(fields, list_of(fields.get("messages", NULL)))


def dialect_of(fields: Mapping[str, Raw], items: Iterable[Raw]) -> Dialect:
    """The format of a list of messages with the fields around it, if any."""
    if "input" in fields and "messages" not in fields:
        return RESPONSES
    if "system" in fields or any(map(_has_schema, list_of(fields.get("tools", NULL)))):
        return ANTHROPIC
    return next(filter(None, map(_dialect_of_item, items)), CHAT)


def list_of(raw: Raw) -> list[Raw]:
    """The elements of a list; empty for other values, which decoding will reject."""
    try:
        return read_list(raw)
    except WireError:
        return []


def _has_schema(tool: Raw) -> bool:
    try:
        return not is_null(_TOOL.decode(tool).input_schema)
    except (DecodeError, RecursionError):
        return False


def _dialect_of_item(item: Raw) -> Dialect | None:
    """The only format that can have sent this message; None if several can."""
    try:
        shape = _SHAPE.decode(item)
    except (DecodeError, RecursionError):
        return None
    if shape.type in ITEM_TYPES or (shape.type is not None and shape.role is None):
        return RESPONSES
    if shape.role == "tool" or not is_null(shape.tool_calls):
        return CHAT
    return _dialect_of_blocks(shape.content)


def _dialect_of_blocks(content: Raw) -> Dialect | None:
    try:
        blocks = _BLOCKS.decode(content)
    except (DecodeError, RecursionError):
        return None
    return next(filter(None, map(_dialect_of_block, blocks)), None)


def _dialect_of_block(block: _Block) -> Dialect | None:
    kind = block.type or ""
    if kind in _RESPONSES_BLOCKS:
        return RESPONSES
    if kind in _ANTHROPIC_BLOCKS or kind.endswith("_tool_result"):
        return ANTHROPIC
    return ANTHROPIC if kind == "image" and not is_null(block.source) else None


# Logs of coding agents: a line, or the exported object, says which agent wrote it.

_LINEWISE: tuple[tuple[Callable[[Mapping[str, Raw]], bool], Callable[[bytes], AgentLog]], ...] = (
    (claude_code.recognises, claude_code.read_log),
    (codex.recognises, codex.read_log),
    (pi.recognises, pi.read_log),
)
_LOOKED_AT = 10
"""Lines that may precede the first line by which the kind of log is recognised."""


def _read_lines(text: bytes) -> AgentLog | None:
    """The log in these lines; None if they are no log.

    Raises:
        WireError: a line of a log cannot be read; `place` names it.
    """
    for _, line in islice(numbered_lines(text), _LOOKED_AT):
        try:
            fields = FIELDS.decode(line)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return None
        for recognises, read_log in _LINEWISE:
            if recognises(fields):
                return read_log(text)
    return None


def _read_export(fields: Mapping[str, Raw]) -> AgentLog | None:
    """The log in one object; None if it is no log."""
    return opencode.read_log(fields) if opencode.recognises(fields) else None


_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"\S[^\n]*")
_RECORDED = ("times", "usage")
"""Fields recorded per message, which do not fit other messages."""


def decode_transcript(
    data: bytes, dialect: Dialect | None = None, *, max_body_bytes: int = MAX_BODY_BYTES
) -> Request:
    """Read a transcript; without a dialect its format is recognised by its shape.

    Raises:
        WireError: the data is no conversation, or several; `place` says where (`line 7` in JSONL).
    """
    check_body(data, max_body_bytes)
    text = data.removeprefix(_BOM)
    first = _LINE.search(text)
    if first is None:
        raise WireError("the transcript is empty")
    if first[0].startswith(b"["):
        return _from_array(text, dialect, data)
    log = _read_lines(text)
    if log is not None:
        return _from_log(log, dialect)
    try:
        fields = read(FIELDS, text)
    except WireError:
        if _is_jsonl(first[0], text[first.end() :]):
            return _from_lines(dict(_lines(text)), dialect, data)
        raise
    return _from_object(fields, text, dialect, data)


def holds_conversation(data: bytes) -> bool:
    """True if the data is a conversation or an attempt at one. Logs without messages and other JSON are none.

    Raises:
        WireError: it is a log that cannot be read.
    """
    text = data.removeprefix(_BOM)
    log = _read_lines(text)
    if log is not None:
        return bool(log.entries)
    try:
        fields = FIELDS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    log = _read_export(fields)
    return (
        bool(log.entries) if log else _list_key(fields) is not None or bool(fields.keys() & {"role", "type"})
    )


def encode_transcript(request: Request, window: Window) -> bytes:
    """The transcript with a window in place of its own messages, in the shape that it came in.

    A list has no room for a separate field, such as the system prompt of the Anthropic format: then it
    becomes an object.

    Raises:
        WireError: a message cannot be written in this format; `place` names it.
    """
    kept = {key: raw for key, raw in request.fields.items() if key not in _RECORDED}
    messages = window.sent
    body = encode_request(structs.replace(request, fields=kept), messages, system=window.system)
    if body == request.body:
        return body
    text = request.body.removeprefix(_BOM)
    fields, end = read(FIELDS, body), b"\n" if text.endswith(b"\n") else b""
    if len(fields) > 1 or _is_object(text):
        return body + end
    array = fields[request.dialect.messages_key]
    if text.lstrip().startswith(b"["):
        return bytes(array) + end
    return b"".join(_line(raw) for raw in read_list(array))


def _is_object(text: bytes) -> bool:
    """True if the transcript is an object around a list, not a list or messages line by line."""
    try:
        return _list_key(read(FIELDS, text)) is not None
    except WireError:
        return False


def _line(raw: Raw) -> bytes:
    """A message on a line of its own."""
    data = bytes(raw)
    return (msgspec.json.format(data, indent=-1) if b"\n" in data else data.rstrip()) + b"\n"


def _is_jsonl(first: bytes, rest: bytes) -> bool:
    """True if the first line is an object by itself and more lines follow."""
    return first.startswith(b"{") and first.rstrip().endswith(b"}") and bool(rest.strip())


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of JSONL with their numbers, up to the first that is no message."""
    for found, (number, line) in enumerate(numbered_lines(text), 1):
        if found > MAX_MESSAGES:
            raise too_many("messages", MAX_MESSAGES, "messages")
        _check_message(read(FIELDS, line, f"line {number}"), f"line {number}")
        yield number, line


def _check_message(fields: dict[str, Raw], place: str) -> None:
    if _list_key(fields) is not None:
        hint = "split the file: each line holds a conversation of its own"
        raise WireError("there are several conversations in one file", place=place, hint=hint)
    if not fields.keys() & {"role", "type", "id"}:
        raise WireError("is no message", place=place, hint="give one message per line")


def _list_key(fields: dict[str, Raw]) -> str | None:
    """The field that holds the messages. (An item of the Responses format may have an `input` of its own.)"""
    if "messages" in fields:
        return "messages"
    return "input" if "input" in fields and "type" not in fields else None


def _from_array(array: bytes, dialect: Dialect | None, data: bytes) -> Request:
    found = dialect or dialect_of({}, list_of(Raw(array)))
    return request_of({found.messages_key: Raw(array.strip())}, found, data)


def _from_log(log: AgentLog, dialect: Dialect | None) -> Request:
    if dialect not in (None, log.dialect):
        hint = f"leave the format out, or say {log.dialect.name}"
        raise WireError(f"a log of {log.agent} holds messages of the {log.dialect.name} format", hint=hint)
    if not log.entries:
        raise WireError(f"this log of {log.agent} has no messages", hint="give the log of another session")
    fields = fields_of(log)
    return request_of(fields, log.dialect, bytes(write({**fields})))


def _from_object(fields: dict[str, Raw], text: bytes, dialect: Dialect | None, data: bytes) -> Request:
    log = _read_export(fields)
    if log is not None:
        return _from_log(log, dialect)
    key = _list_key(fields)
    if key is not None:
        found = dialect or dialect_of(fields, list_of(fields[key]))
        return request_of(_renamed(fields, key, found.messages_key), found, data)
    if "role" in fields or "type" in fields:
        return _from_lines({1: text}, dialect, data)
    hint = "give a request body, a list of messages, or one message per line"
    raise WireError("is missing", place="messages", hint=hint)


def _renamed(fields: dict[str, Raw], old: str, new: str) -> dict[str, Raw]:
    """The fields with the messages under the name of the format."""
    return fields if new in fields else {new if key == old else key: raw for key, raw in fields.items()}


def _from_lines(lines: dict[int, bytes], dialect: Dialect | None, data: bytes) -> Request:
    try:
        return _from_array(b"[" + b",".join(lines.values()) + b"]", dialect, data)
    except WireError as error:
        raise _on_line(error, [*lines]) from None


def _on_line(error: WireError, numbers: list[int]) -> WireError:
    """The same error, with the number of a line instead of the index of a message."""
    head, bracket, rest = error.place.partition("[")
    index, _, inner = rest.partition("]")
    if not bracket or head not in ("messages", "input"):
        return error
    message = error.message.removeprefix(f"{error.place}: ")
    return within(
        WireError(message, place=inner.removeprefix("."), hint=error.hint), f"line {numbers[int(index)]}"
    )
