"""Read the codes, sentences and numbers of a provider's error body.

Only the fields that errors are written in are read, up to a fixed number of steps. Gateways wrap errors in
errors, as JSON in strings in JSON; the content of a reply must not be mistaken for an error, so no other
field is read.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TypeAlias

from msgspec import MsgspecError, Struct, json

from refold.core.overflow.phrases import LARGEST_NUMBER, Numbers

MOST_TEXT = 4_096
"""Limit of characters of text that are read: every known error states its reason long before."""
MOST_JSON = 1 << 20
"""A larger body is read as text: an error echoes at most a request, and a larger body is no error. Only
the last part of a stream is read."""
MOST_DEPTH = 8
MOST_NODES = 256
"""Limit of visited objects, lists and strings, and of the last lines of a stream; a wrapped error has
about ten."""
MOST_ITEMS = 16
"""Limit of items read from one list (half at either end) and from a stream (the last ones: an error ends
it)."""

_INSIDE = (
    "error", "Error", "errors", "message", "Message", "cause", "response", "responseBody", "body", "data", "value",
    "metadata", "$metadata", "detail", "details", "detailMessage", "base_resp", "choices", "lastError", "raw",
    "msg", "error_message", "errorMessage", "error_msg", "status_msg", "description", "title",
    "validationException", "modelStreamErrorException", "throttlingException", "external_model_error",
)  # fmt: skip
"""Fields that contain objects, lists and sentences of an error, in the order in which they are read."""
_CODED = (
    "code", "Code", "type", "__type", "error_type", "errorType", "error_code", "name", "reason", "status",
    "stop_reason", "finish_reason", "status_code", "statusCode", "http_code", "httpStatusCode",
)  # fmt: skip
_ENDS_URL = " \t\r\n\"'<>()[]{},\\"
_BLANK = "\ufeff \t\r\n"
_STARTS_STREAM = ("data:", "event:", "id:", "retry:", ":")
_NAMES_ERROR = ("event: error", "event:error")
_COUNTED = (("n_prompt_tokens", "prompt"), ("n_ctx", "limit"))
"""llama.cpp states its numbers as fields."""

Node: TypeAlias = tuple[object, int]


class ErrorDetails(Struct, frozen=True):
    """The contents of an error body."""

    codes: frozenset[str]
    text: str
    numbers: Numbers
    status: int | None
    """The HTTP status that the body itself states."""


def read_answer(body: object) -> ErrorDetails:
    """Read a body: bytes, text, or JSON already decoded. Values of other types are treated as empty."""
    codes: list[str] = []
    texts: list[str] = []
    numbers: Numbers = {}
    queue: deque[Node] = deque([(_parsed(body) if isinstance(body, bytes | str) else body, 0)])
    for _ in range(MOST_NODES):
        if not queue:
            break
        value, depth = queue.popleft()
        node = _decode_string(value)
        children = _children(node)
        if isinstance(value, str) and not children:
            texts.append(value[:MOST_TEXT])
        if isinstance(node, dict):
            _collect_fields(node, codes, numbers)
        if depth < MOST_DEPTH:
            queue.extend((child, depth + 1) for child in children)
    return ErrorDetails(frozenset(codes), normalise("\n".join(texts)), numbers, _stated_status(codes))


def normalise(text: str) -> str:
    """Return the first 4 KB in lower case on one line, without backticks and URLs (these lead to pages about
    rate limits).
    """
    text = text[:MOST_TEXT].lower().replace("`", "").replace("’", "'")
    return " ".join(_without_urls(text).split())


def _without_urls(text: str) -> str:
    before, *rest = text.split("://")
    kept = [before]
    for part in rest:
        kept[-1] = kept[-1].removesuffix("https").removesuffix("http")
        kept.append(part[_url_end(part) :])
    return " ".join(kept)


def _url_end(text: str) -> int:
    """Return the end of a URL: the first character that cannot be part of one.

    Chinese text follows without a space.
    """
    return next((at for at, char in enumerate(text) if char in _ENDS_URL or char > "~"), len(text))


def _children(node: object) -> list[object]:
    if isinstance(node, list):
        half = MOST_ITEMS // 2
        return node if len(node) <= MOST_ITEMS else [*node[:half], *node[-half:]]
    if isinstance(node, dict):
        return [node[key] for key in _INSIDE if key in node and not _is_content(node, key)]
    return []


def _is_content(node: dict[object, object], key: str) -> bool:
    """Return True if the field is the text of a reply, or metadata of a client, and not of an error."""
    if key == "metadata":
        return "message" not in node
    return key == "response" and isinstance(node[key], str)


def _decode_string(value: object) -> object:
    """Return the JSON inside a string of an error, if it contains JSON."""
    return _decoded(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def _parsed(source: bytes | str) -> object:
    """Return the JSON of a body, or the events of a stream, or the text itself."""
    if (value := _decoded(source)) is not source:
        return value
    start = _as_text(source[: 4 * MOST_TEXT]).lstrip(_BLANK)
    if start.startswith(_STARTS_STREAM):
        return _stream_events(source)
    # Lines of JSON are a stream as well: the model's text in them is no error either.
    return (start.startswith("{") and _stream_events(source)) or start


def _decoded(source: bytes | str) -> object:
    """Return the decoded JSON, or the source itself if it is no JSON."""
    if len(source) > MOST_JSON:
        return source
    try:
        return json.decode(source)
    except (MsgspecError, ValueError, RecursionError):
        return source


def _stream_events(source: bytes | str) -> list[object]:
    """Return the last events of a raw stream that may contain an error."""
    text = _as_text(source[-MOST_JSON:]).replace("\r\n", "\n")
    lines = ["", *text.rsplit("\n", MOST_NODES)]
    events = [event for before, line in pairwise(lines) if (event := _event(before, line)) is not None]
    return events[-MOST_ITEMS:]


def _event(before: str, line: str) -> object:
    """Return the object on a line of a stream, or the text of an error event.

    Other text may come from the model.
    """
    payload = line.removeprefix("data:").removeprefix("error:").strip()
    value = _decoded(payload) if payload.startswith("{") else payload
    return value if isinstance(value, dict) or before in _NAMES_ERROR else None


def _as_text(source: bytes | str) -> str:
    return source.decode("utf-8", errors="replace") if isinstance(source, bytes) else source


def _collect_fields(node: dict[object, object], codes: list[str], numbers: Numbers) -> None:
    for key in _CODED:
        value = node.get(key)
        if isinstance(value, str):
            codes.append(value[:128].lower())
        elif isinstance(value, int) and 0 <= value <= LARGEST_NUMBER:
            codes.append(str(int(value)))
    for key, name in _COUNTED:
        value = node.get(key)
        if isinstance(value, int) and 0 < value <= LARGEST_NUMBER:
            numbers.setdefault(name, int(value))


def _stated_status(codes: list[str]) -> int | None:
    for code in codes:
        if len(code) == 3 and code.isascii() and code.isdigit() and "400" <= code < "600":
            return int(code)
    return None
