"""What a provider's answer says: its codes, its words and its numbers, wherever they are.

One idea: look only where errors are written, and never further than a fixed number of steps. Gateways wrap errors in
errors, as JSON in strings in JSON; a reply's own content must not be mistaken for one, so nothing else is read.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from msgspec import MsgspecError, Struct, json

from refold.core.overflow.phrases import LARGEST_NUMBER, Numbers

MOST_TEXT = 4_096
"""Characters of text that are considered: every known error says what it has to say long before."""
MOST_JSON = 1 << 20
"""A larger body is read as text: an error echoes at most a request, a reply is no error."""
MOST_DEPTH = 8
MOST_NODES = 256
"""Objects, lists and strings visited; a wrapped error has about ten."""
MOST_ITEMS = 16
"""Items looked at in one list: retries and validation errors come in lists."""

_INSIDE = (
    "error", "Error", "errors", "message", "Message", "cause", "response", "responseBody", "body", "data", "value",
    "metadata", "$metadata", "detail", "details", "detailMessage", "base_resp", "choices", "lastError", "raw",
    "msg", "error_message", "errorMessage", "error_msg", "status_msg", "description", "title",
    "validationException", "modelStreamErrorException", "throttlingException",
)  # fmt: skip
"""Where objects, lists and sentences of an error are found, outermost meaning first."""
_CODED = (
    "code", "Code", "type", "__type", "error_type", "errorType", "error_code", "name", "reason", "status",
    "stop_reason", "finish_reason", "status_code", "statusCode", "http_code", "httpStatusCode",
)  # fmt: skip
_ENDS_URL = " \t\r\n\"'<>()[]{},\\"
_COUNTED = (("n_prompt_tokens", "prompt"), ("n_ctx", "limit"))
"""llama.cpp states its numbers as fields."""

Node: TypeAlias = tuple[object, int]


class Answer(Struct, frozen=True):
    """What was found."""

    codes: frozenset[str]
    text: str
    numbers: Numbers
    status: int | None
    """The HTTP status the body itself states."""


def read_answer(body: object) -> Answer:
    """Read a body: bytes, text, or JSON already decoded. Anything else says nothing."""
    codes: list[str] = []
    texts: list[str] = []
    numbers: Numbers = {}
    queue: deque[Node] = deque([(_parsed(body) if isinstance(body, bytes | str) else body, 0)])
    for _ in range(MOST_NODES):
        if not queue:
            break
        value, depth = queue.popleft()
        node = _opened(value)
        if isinstance(node, str):
            texts.append(node[:MOST_TEXT])
        elif isinstance(node, dict):
            _note_fields(node, codes, numbers)
        if depth < MOST_DEPTH:
            queue.extend((child, depth + 1) for child in _children(node))
    return Answer(frozenset(codes), normalise("\n".join(texts)), numbers, _stated_status(codes))


def normalise(text: str) -> str:
    """The first 4 KB in lower case on one line, without backticks and URLs (they lead to pages about rate limits)."""
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
    """URLs end before what cannot be part of one; Chinese text follows without a space."""
    return next((at for at, char in enumerate(text) if char in _ENDS_URL or char > "~"), len(text))


def _children(node: object) -> list[object]:
    if isinstance(node, list):
        return node[:MOST_ITEMS]
    if isinstance(node, dict):
        return [node[key] for key in _INSIDE if key in node and not _is_content(node, key)]
    return []


def _is_content(node: dict[object, object], key: str) -> bool:
    """Is this a reply's text, or the metadata a client gave it, rather than an error's?"""
    if key == "metadata":
        return "message" not in node
    return key == "response" and isinstance(node[key], str)


def _opened(value: object) -> object:
    """The JSON inside a string of an error, if it holds JSON."""
    return _parsed(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def _parsed(source: bytes | str) -> object:
    """The JSON of a body, else the events of a stream, else the text itself."""
    if len(source) <= MOST_JSON:
        try:
            return json.decode(source)
        except (MsgspecError, ValueError, RecursionError):
            pass
    text = source[: 4 * MOST_TEXT]
    text = text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text
    return _stream_events(text) if text.startswith(("data:", "event:")) else text


def _stream_events(text: str) -> list[dict[object, object]]:
    """The objects of a raw event stream. What is not one is cut off, or something the model says."""
    events = [_parsed(line[5:].strip()) for line in text.splitlines() if line.startswith("data:")]
    return [event for event in events if isinstance(event, dict)][-MOST_ITEMS:]


def _note_fields(node: dict[object, object], codes: list[str], numbers: Numbers) -> None:
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
