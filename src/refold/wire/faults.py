"""What is wrong with bytes that are no JSON, and where.

One idea: the parser stops at the first fault and says little about it. Only then, and only once, the bytes are walked again
for a reason and a place that help. The walk names the fields a conversation has and stops at any other, so that no place
quotes content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from refold.model.errors import WireError

NOT_UTF8 = "is not valid UTF-8"
_TOO_DEEP = "is nested too deeply"
_KNOWN = frozenset(
    {"messages", "input", "system", "tools", "content", "output", "tool_calls", "choices", "message"}
)
_MAX_STEPS = 6
"""`messages[0].content[0].content[0]`: deeper there is nothing that a conversation has by name."""
_MAX_DEPTH = 1_000
"""The deepest nesting any parser of Python's follows."""
_MAX_TOKENS = 300_000
"""What a place may cost: a third of a second, or some 20,000 messages. Beyond them there is none."""

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?P<end>")?(?P<key>\s*+:)?|[\[\]{},]', re.DOTALL)
"""Strings, also one that has no end, and what stands between them. A key is a string before a colon."""
_HALF_PAIR = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\(?:[^u]|u(?![dD])|u[dD](?![89a-fA-F])))*+\\u[dD][89a-fA-F]",
)
_STOPPED_AT = re.compile(r"\(byte (\d+)\)$")

Path = list[str | int]


def explain(error: Exception, data: bytes) -> WireError:
    """From the parser's error to one that says what happened, and where."""
    if isinstance(error, RecursionError):
        return WireError(_TOO_DEEP, place=_deepest(data), hint="100 levels are always fine")
    if isinstance(error, UnicodeDecodeError):
        return WireError(NOT_UTF8)
    stopped = _STOPPED_AT.search(str(error))
    end = int(stopped[1]) if stopped else len(data)
    half = _HALF_PAIR.match(data, 0, end + len(rb"\ud83d\ude00"))
    at = half.end() - len(rb"\ud8") if half else end + 1
    if at > end or (not stopped and b'"' not in data[at:]):  # behind the fault, or itself cut off
        return WireError(str(error) if stopped else f"{error} (byte {end})")
    hint = "a text was cut inside of a character: send both halves, or neither"
    return WireError(f"holds half of a surrogate pair (byte {at})", place=_place_at(data, at), hint=hint)


def _deepest(data: bytes) -> str:
    deepest: Path = []
    depth = 0
    for _, path in _walk(data):
        if len(path) > depth:
            depth, deepest = len(path), path[:_MAX_STEPS]
        if depth > _MAX_DEPTH:
            break
    return _spell(deepest)


def _place_at(data: bytes, offset: int) -> str:
    place: Path = []
    for end, path in _walk(data):
        if end > offset:
            return _spell(place)
        place = path[:_MAX_STEPS]
    return _spell(place)


def _walk(data: bytes) -> Iterator[tuple[int, Path]]:
    """Every token that opens, closes or names something: where it ends, and the path after it."""
    path: Path = []
    for token in islice(_TOKEN.finditer(data), _MAX_TOKENS):
        sign = data[token.start() : token.start() + 1]
        if sign == b'"':
            if not token["end"]:
                return  # what follows the beginning of a string is not structure
            if token["key"] and path:
                path[-1] = token[0][1:40].partition(b'"')[0].decode("ascii", "replace")
        elif sign in b"[{":
            path.append(0 if sign == b"[" else "")
        elif sign in b"]}":
            del path[-1:]
        elif path and isinstance(path[-1], int):
            path[-1] += 1
        yield token.end(), path


def _spell(path: Path) -> str:
    place = ""
    for step in path:
        if isinstance(step, int):
            place += f"[{step}]"
        elif step in _KNOWN:
            place += f".{step}" if place else step
        else:
            break
    return place
