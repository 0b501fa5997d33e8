"""What a setting takes, in words: for hints, for the reference and for the commented file.

One idea: the range that is checked is the range that is told.
"""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta

from refold.config.keys import Key, parts_of
from refold.config.sizes import MAX_TOKENS

SPOKEN = {
    "server.host": "an address or a name",
    "server.names": "a list of host names",
    "store.url": "the URL of a store, or a path",
    "summariser.models": "a list of PROVIDER:MODEL or MODEL@URL",
    "compaction.sensitive": "a list of regular expressions",
    "upstreams.NAME.url": "an address that begins with https:// or http://",
    "upstreams.NAME.key_env": "the name of a variable",
    "upstreams.NAME.headers": "a table of headers",
    "upstreams.NAME.models": "a list of patterns",
    "upstreams.NAME.fallback": "a list of upstreams",
    "upstreams.NAME.allow": "a list of paths, each with or without a method before it",
}
"""Texts of a certain kind: their types say too little."""


def expected(key: Key) -> str:
    """What may stand there."""
    if key.name in SPOKEN:
        return SPOKEN[key.name]
    if key.name == "compaction.preset":
        from refold.core.presets import PRESETS

        return _either([*PRESETS])
    match key.kind:
        case "switch":
            return "true or false"
        case "share":
            return "a share: 80% or 0.8"
        case "size":
            return "tokens (4000, 4k) or a share (25%)"
        case "tokens":
            return _either([*key.words, _tokens(key.type)])
        case _:
            return _told(key.type)


def _tokens(annotated: Any) -> str:
    return _between([part for part in parts_of(annotated) if isinstance(part, Meta)], "tokens")


def _told(annotated: Any) -> str:
    origin, inner = get_origin(annotated), get_args(annotated)
    if origin is Annotated:
        ranges = [mark for mark in inner[1:] if isinstance(mark, Meta) and mark.ge is not None]
        return _between(ranges) if ranges else _told(inner[0])
    if origin is Literal:
        return _either([str(word) for word in inner])
    if origin is tuple:
        return f"a list of {_told(inner[0])}"
    if origin is dict:
        return f"a table with {_told(inner[1])}"
    return _either([_told(part) for part in inner if part is not NoneType]) if inner else "text"


def _between(marks: list[Meta], unit: str = "") -> str:
    least = next(mark.ge for mark in marks if mark.ge is not None)
    most = next((mark.le for mark in marks if mark.le is not None), MAX_TOKENS)
    upper = "or more" if most == MAX_TOKENS else f"to {most:,}"
    return " ".join(part for part in (f"{least:,}", unit, upper) if part)


def _either(words: list[str]) -> str:
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
