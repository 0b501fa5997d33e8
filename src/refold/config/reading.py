"""A value as it was written becomes the value of a setting.

One idea: files and programs write typed values, and those are taken as they are. Variables and flags are text, and text is
read as the setting's type wants it: `on`, `4k`, `a,b`, `name=rule`. Both ways lead through the same check of the range.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from refold.config.keys import ANY_NAME, Key
from refold.config.sizes import Unreadable, read_share, read_size, read_tokens
from refold.config.spans import expected

ELSEWHERE = "default"
"""Says of a setting that may be left to somebody else that it is: to take back what a file further away says."""
SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
UNSPLIT = ("compaction.sensitive", f"{ANY_NAME}.headers")
"""Texts in which a comma may be meant: one to a variable, unless the variable holds a TOML list or table."""


def read(key: Key, raw: object, *, is_text: bool = False) -> Any:
    """
    Raises:
        Unreadable: the setting does not take this value.
    """
    if is_text:
        raw = _from_text(key, raw)
    if key.is_optional and raw in (ELSEWHERE, None):
        return None
    try:
        return _converted(key, raw, strict=not is_text)
    except msgspec.ValidationError as error:
        what = str(error).partition(" - at ")[0]
        raise Unreadable(_plain(what), f"it takes {expected(key)}") from None


def _converted(key: Key, raw: object, *, strict: bool) -> Any:
    match key.kind:
        case "share":
            return read_share(raw)
        case "size":
            return read_size(raw)
        case "tokens":
            is_word = isinstance(raw, str) and raw in key.words
            raw, strict = key.words[str(raw)] if is_word else read_tokens(raw), True
    return msgspec.convert(raw, key.type, strict=strict)


def _plain(what: str) -> str:
    """In our words, and without the value: it may be a secret that stands in the wrong place."""
    if what.startswith("Invalid enum value"):
        return "there is no such word here"
    is_range = any(sign in what for sign in ("<", ">", "length"))
    return "it is out of range" if is_range else "it is of another kind"


def _from_text(key: Key, raw: object) -> object:
    match key.kind:
        case "switch" if isinstance(raw, str):
            return SWITCHES.get(raw.strip().lower(), raw)
        case "list":
            return [item for text in _texts(raw) for item in _items(key, text)]
        case "table":
            return dict(pair for text in _texts(raw) for pair in _pairs(key, text))
        case _:
            return raw


def _texts(raw: object) -> list[str]:
    return [str(text) for text in raw] if isinstance(raw, list) else [str(raw)]


def _items(key: Key, text: str) -> Iterator[object]:
    found = _toml(text, list)
    if found is not None:
        yield from found
    elif key.name in UNSPLIT:
        yield text
    else:
        yield from (item.strip() for item in text.split(",") if item.strip())


def _pairs(key: Key, text: str) -> Iterator[tuple[str, object]]:
    found = _toml(text, dict)
    if found is not None:
        yield from found.items()
        return
    for pair in [text] if key.name in UNSPLIT else text.split(","):
        name, equals, value = pair.partition("=")
        if not equals:
            raise Unreadable("it is no pair", f"write NAME=VALUE; it takes {expected(key)}")
        yield name.strip(), value.strip()


def _toml(text: str, kind: Callable[..., Any]) -> Any:
    """The list or table that a text is in TOML; None where it is none."""
    try:
        value = tomllib.loads(f"it = {text}").get("it")
    except tomllib.TOMLDecodeError:
        return None
    return value if isinstance(value, list | dict) and type(value) is kind else None
