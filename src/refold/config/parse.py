"""Parsing of values: a raw value becomes the typed value of a setting.

Files and programs give typed values, which are taken as they are. Variables and flags are text, which is read
as the type of the setting requires: `on`, `4k`, `a,b`, `name=rule`. Both pass the same check of the range.

The unit of a size is part of the text, and a number that could be either is refused. `4000` and `"4k"` are tokens,
`0.8` and `"80%"` are shares. `80` is never a share, and it is refused for a setting that takes both.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from refold.config.tree import ANY_NAME, SettingKey, parts_of
from refold.model.errors import MAX_TOKENS, NOT_TOKENS
from refold.model.tokens import Share, Tokens

# Sizes as people write them: a number of tokens, or a share

AMBIGUOUS = range(1, 101)
"""Whole numbers that may be meant as percent."""
_NUMBER = re.compile(r"(\d{1,12}(?:_\d{1,12})*(?:\.\d{1,12})?) ?([km%]?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


class Unreadable(ValueError):
    """A value that a setting does not take; `hint` says how to write it."""

    def __init__(self, what: str, hint: str) -> None:
        self.what, self.hint = what, hint
        super().__init__(what)


def read_tokens(raw: object, least: int = 0, most: int = MAX_TOKENS) -> int:
    """Read a number of tokens in a range.

    Raises:
        Unreadable: the value is not a number of tokens.
    """
    number, unit = _parts(raw, "give a number of tokens, such as 4000 or 4k")
    if unit == "%" or (unit == "" and isinstance(number, float)):
        raise Unreadable(
            "it is a share, but tokens are needed", "give a number of tokens, such as 4000 or 4k"
        )
    return _whole(number, unit, least, most)


def read_share(raw: object) -> Share:
    """Read a share.

    Raises:
        Unreadable: the value is not a share.
    """
    number, unit = _parts(raw, "give a share, such as 80% or 0.8")
    if unit == "%":
        return _share(round(number / 100, 12))
    if unit or isinstance(number, int):
        shown = f"{number:g}% or {number / 100:g}" if number in AMBIGUOUS and not unit else "80% or 0.8"
        raise Unreadable(
            "it is a number of tokens, but a share is needed",
            f"write a share with its percent sign or its point: {shown}",
        )
    return _share(number)


def read_size(raw: object) -> Tokens | Share:
    """Read a number of tokens or a share.

    Raises:
        Unreadable: the value is neither, or could be both.
    """
    number, unit = _parts(raw, "give tokens, such as 4000 or 4k, or a share, such as 25%")
    if unit == "%" or (not unit and isinstance(number, float)):
        return read_share(raw)
    if not unit and number in AMBIGUOUS:
        raise Unreadable(
            "it may be tokens or percent", f"write {number}% for a share; tokens are more than 100"
        )
    return Tokens(_whole(number, unit))


def shown(size: Tokens | Share) -> int | str:
    """Return the size as it is written into a file."""
    return size.tokens if isinstance(size, Tokens) else f"{round(size.fraction * 100, 10):g}%"


def _parts(raw: object, hint: str) -> tuple[int | float, str]:
    """Return the number and its unit; a number with a point is a float."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise Unreadable("it is no size", hint)
    if not isinstance(raw, str):
        if not math.isfinite(raw) or raw < 0:
            raise Unreadable("it is no size", hint)
        return raw, ""
    found = _NUMBER.fullmatch(raw.strip())
    if found is None:
        raise Unreadable("it is no size", hint)
    digits = found[1].replace("_", "")
    return float(digits) if "." in digits else int(digits), found[2].lower()


def _whole(number: float, unit: str, least: int = 0, most: int = MAX_TOKENS) -> int:
    tokens = round(number * _UNITS[unit], 6)
    if not least <= tokens <= most or tokens != int(tokens):
        raise Unreadable(f"it {NOT_TOKENS.format(least, most)}", "give a whole number, such as 4000 or 4k")
    return int(tokens)


def _share(fraction: float) -> Share:
    if not 0 <= fraction <= 1:
        raise Unreadable("it is more than the whole", "give 0% to 100%, or 0.0 to 1.0")
    return Share(fraction)


# Descriptions of the values that settings take, for hints, the reference and the commented file

SPOKEN = {
    "server.host": "an address or a name",
    "server.names": "a list of host names",
    "store.url": "the URL of a store, or a path",
    "summariser.models": "a list of PROVIDER:MODEL or MODEL@URL, or native before them",
    "compaction.read_tools": "a list of names of tools",
    "compaction.write_tools": "a list of names of tools",
    "compaction.sensitive": "a list of regular expressions",
    "compaction.extra_triggers": 'a table of triggers by turn_start, before_call or after_call: { turn_start = { type = "age", seconds = 3600 } }',
    "upstreams.NAME.url": "an address that begins with https:// or http://",
    "upstreams.NAME.key_env": "the name of a variable",
    "upstreams.NAME.headers": "a table of headers",
    "upstreams.NAME.models": "a list of patterns",
    "upstreams.NAME.fallback": "a list of upstreams",
    "upstreams.NAME.allow": "a list of paths, each with or without a method before it",
}
"""Descriptions of texts whose type says too little."""


def expected(key: SettingKey) -> str:
    """Describe the values that a setting takes."""
    if key.name in SPOKEN:
        return SPOKEN[key.name]
    if key.name == "compaction.preset":
        from refold.plugins.registry import active

        return _either([*active().presets])
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
            return _describe_type(key.type)


def _tokens(annotated: Any) -> str:
    return _between([part for part in parts_of(annotated) if isinstance(part, Meta)], "tokens")


def _range(annotated: Any) -> tuple[int, int]:
    """Return the least and the most tokens that a setting takes."""
    marks = [part for part in parts_of(annotated) if isinstance(part, Meta)]
    least = next((mark.ge for mark in marks if mark.ge is not None), 0)
    most = next((mark.le for mark in marks if mark.le is not None), MAX_TOKENS)
    return int(least), int(most)


def _describe_type(annotated: Any) -> str:
    origin, inner = get_origin(annotated), get_args(annotated)
    if origin is Annotated:
        ranges = [mark for mark in inner[1:] if isinstance(mark, Meta) and mark.ge is not None]
        return _between(ranges) if ranges else _describe_type(inner[0])
    if origin is Literal:
        return _either([str(word) for word in inner])
    if origin is tuple:
        return f"a list of {_describe_type(inner[0])}"
    if origin is dict:
        return f"a table with {_describe_type(inner[1])}"
    return _either([_describe_type(part) for part in inner if part is not NoneType]) if inner else "text"


def _between(marks: list[Meta], unit: str = "") -> str:
    least = next(mark.ge for mark in marks if mark.ge is not None)
    most = next((mark.le for mark in marks if mark.le is not None), MAX_TOKENS)
    upper = "or more" if most == MAX_TOKENS else f"to {most:,}"
    return " ".join(part for part in (f"{least:,}", unit, upper) if part)


def _either(words: list[str]) -> str:
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


# Reading of values

ELSEWHERE = "default"
"""The word that resets an optional setting to "not set", also if a weaker source sets it."""
SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
UNSPLIT = ("compaction.sensitive", f"{ANY_NAME}.headers")
"""Texts that may contain a comma: one to a variable, unless the variable holds a TOML list or table."""
NESTED = ("compaction.extra_triggers",)
"""Tables whose values are tables, which need TOML in a variable or a flag too."""

SPELLINGS = {"compaction.tools": {"summarize": "summarise"}}
"""Other spellings of a setting's words that are accepted, with the spelling that is used."""


def read(key: SettingKey, raw: object, *, is_text: bool = False) -> Any:
    """Read a value of a setting.

    Raises:
        Unreadable: the setting does not take this value.
    """
    if is_text:
        raw = _from_text(key, raw)
    raw = _respelt(key, raw)
    if key.is_optional and raw in (ELSEWHERE, None):
        return None
    try:
        return _converted(key, raw, strict=not is_text)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        what = _NOT_NUMBERS.get(reason) if is_text else None
        raise Unreadable(what or _plain(reason, raw), f"it takes {expected(key)}") from None


def _respelt(key: SettingKey, raw: object) -> object:
    words = SPELLINGS.get(key.name)
    if not words or not isinstance(raw, dict):
        return raw
    return {name: words.get(one, one) if isinstance(one, str) else one for name, one in raw.items()}


def _converted(key: SettingKey, raw: object, *, strict: bool) -> Any:
    match key.kind:
        case "share":
            return read_share(raw)
        case "size":
            return read_size(raw)
        case "tokens":
            is_word = isinstance(raw, str) and raw in key.words
            raw, strict = key.words[str(raw)] if is_word else read_tokens(raw, *_range(key.type)), True
    return msgspec.convert(raw, key.type, strict=strict)


_NOT_NUMBERS = {
    f"Expected `{kind}{rest}`, got `str`": f"it is not a {name}"
    for kind, name in (("int", "whole number"), ("float", "number"))
    for rest in ("", " | null")
}
"""What msgspec says of a flag or a variable, all of which are text, in our words."""
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}
"""The kinds of values in a file of settings, in words."""


def _plain(what: str, raw: object) -> str:
    """Describe an error in our words and without the value, which may be a secret in the wrong place."""
    if what.startswith("Invalid enum value"):
        return "it is none of the words that can be given here"
    is_range = any(sign in what for sign in ("<", ">", "length"))
    if is_range:
        return "it is out of range"
    if "matching regex" in what:
        return "it has not the form that is needed"
    kind = _KINDS.get(type(raw), "a date or a time")
    return f"it is {kind} with other values in it" if isinstance(raw, list | dict) else f"it is {kind}"


def _from_text(key: SettingKey, raw: object) -> object:
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


def _items(key: SettingKey, text: str) -> Iterator[object]:
    found = _toml(text, list)
    if found is not None:
        yield from found
    elif key.name in UNSPLIT:
        yield text
    else:
        yield from (item.strip() for item in text.split(",") if item.strip())


def _pairs(key: SettingKey, text: str) -> Iterator[tuple[str, object]]:
    found = _toml(text, dict)
    if found is None and key.name in NESTED:
        found = _toml(f"{{{text}}}", dict)
        if found is None:
            raise Unreadable("it is not TOML", f"it takes {expected(key)}")
    if found is not None:
        yield from found.items()
        return
    for pair in [text] if key.name in UNSPLIT else text.split(","):
        name, equals, value = pair.partition("=")
        if not equals:
            raise Unreadable("it is not a pair", f"write NAME=VALUE; it takes {expected(key)}")
        yield name.strip(), value.strip()


def _toml(text: str, kind: Callable[..., Any]) -> Any:
    """Return the list or table that a text is in TOML; None if it is neither."""
    try:
        value = tomllib.loads(f"it = {text}").get("it")
    except tomllib.TOMLDecodeError:
        return None
    return value if isinstance(value, list | dict) and type(value) is kind else None
