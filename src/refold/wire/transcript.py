"""Recorded conversations: a request body, a bare list of messages, an object around one, or one message per line.

One idea: whatever the file looks like, it is brought into the shape of a request, so that everything after reading knows
one shape only. A file holds one conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Raw

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.wire.detect import dialect_of, list_of
from refold.wire.reading import FIELDS, MAX_BODY_BYTES, MAX_MESSAGES, check_body, read, too_many, within
from refold.wire.request import Request, request_of

_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"\S[^\n]*")


def decode_transcript(
    data: bytes, dialect: Dialect | None = None, *, max_body_bytes: int = MAX_BODY_BYTES
) -> Request:
    """Read a transcript; without a dialect its format is told by its shape.

    Raises:
        WireError: the data is no conversation, or several; its `place` says where (`line 7` in JSONL).
    """
    check_body(data, max_body_bytes)
    text = data.removeprefix(_BOM)
    first = _LINE.search(text)
    if first is None:
        raise WireError("the transcript is empty")
    if first[0].startswith(b"["):
        return _from_array(text, dialect, data)
    try:
        fields = read(FIELDS, text)
    except WireError:
        if _is_jsonl(first[0], text[first.end() :]):
            return _from_lines(dict(_lines(text)), dialect, data)
        raise
    return _from_object(fields, text, dialect, data)


def _is_jsonl(first: bytes, rest: bytes) -> bool:
    """Is the first line an object by itself, with more to come?"""
    return first.startswith(b"{") and first.rstrip().endswith(b"}") and bool(rest.strip())


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of JSONL with their numbers, up to the first that is no message."""
    number, counted, found = 1, 0, 0
    for line in _LINE.finditer(text):
        number += text.count(b"\n", counted, line.start())
        counted, found = line.start(), found + 1
        if found > MAX_MESSAGES:
            raise too_many("messages", MAX_MESSAGES, "messages")
        _check_message(read(FIELDS, line[0], f"line {number}"), f"line {number}")
        yield number, line[0]


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


def _from_object(fields: dict[str, Raw], text: bytes, dialect: Dialect | None, data: bytes) -> Request:
    key = _list_key(fields)
    if key is not None:
        found = dialect or dialect_of(fields, list_of(fields[key]))
        return request_of(_renamed(fields, key, found.messages_key), found, data)
    if "role" in fields or "type" in fields:
        return _from_lines({1: text}, dialect, data)
    hint = "give a request body, a list of messages, or one message per line"
    raise WireError("is missing", place="messages", hint=hint)


def _renamed(fields: dict[str, Raw], old: str, new: str) -> dict[str, Raw]:
    """The fields with the messages where a request of the format has them."""
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
