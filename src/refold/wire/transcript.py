"""Recorded conversations: a request body, a bare list of messages, an object around one, or one message per line.

One idea: whatever the file looks like, it is brought into the shape of a request, so that everything after reading knows
one shape only. A file holds one conversation.
"""

from __future__ import annotations

from msgspec import Raw

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.wire.detect import dialect_of, list_of
from refold.wire.reading import FIELDS, ITEMS, MAX_BODY_BYTES, check_body, read, within
from refold.wire.request import Request, request_of

_BOM = b"\xef\xbb\xbf"


def decode_transcript(
    data: bytes, dialect: Dialect | None = None, *, max_body_bytes: int = MAX_BODY_BYTES
) -> Request:
    """Read a transcript; without a dialect its format is told by its shape.

    Raises:
        WireError: the data is no conversation, or several; its `place` says where (`line 7` in JSONL).
    """
    check_body(data, max_body_bytes)
    text = data.removeprefix(_BOM)
    if not text.strip():
        raise WireError("the transcript is empty")
    if text.lstrip().startswith(b"["):
        return _from_array(text, dialect, data)
    lines = _lines(text)
    return _from_lines(lines, dialect, data) if lines else _from_object(text, dialect, data)


def _lines(text: bytes) -> dict[int, bytes]:
    """The lines of JSONL by their numbers; none for a single JSON object, on however many lines."""
    lines = {number: line for number, line in enumerate(text.split(b"\n"), 1) if line.strip()}
    first = next(iter(lines.values())).strip()
    is_jsonl = len(lines) > 1 and first.startswith(b"{") and first.endswith(b"}") and not _is_object(text)
    return lines if is_jsonl else {}


def _is_object(text: bytes) -> bool:
    try:
        read(FIELDS, text)
    except WireError:
        return False
    return True


def _list_key(fields: dict[str, Raw]) -> str | None:
    """The field that holds the messages. (An item of the Responses format may have an `input` of its own.)"""
    if "messages" in fields:
        return "messages"
    return "input" if "input" in fields and "type" not in fields else None


def _from_array(array: bytes, dialect: Dialect | None, data: bytes) -> Request:
    items = read(ITEMS, array)
    found = dialect or dialect_of({}, items)
    return request_of({found.messages_key: Raw(array.strip())}, found, data)


def _from_object(text: bytes, dialect: Dialect | None, data: bytes) -> Request:
    fields = read(FIELDS, text)
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
    for number, line in lines.items():
        if _list_key(read(FIELDS, line, f"line {number}")) is not None:
            hint = "split the file: each line holds a conversation of its own"
            raise WireError("there are several conversations in one file", place=f"line {number}", hint=hint)
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
