"""Sizes as people write them: a number of tokens, or a share.

The unit is part of the text, and a number that could be either is refused. `4000` and `"4k"` are tokens,
`0.8` and `"80%"` are shares. `80` is never a share, and it is refused for a setting that takes both.
"""

from __future__ import annotations

import math
import re

from msgspec import Struct

from refold.model.budget import Share, Tokens

MAX_TOKENS = 100_000_000
"""More than any window has; a larger number is a typing error."""
MIN_WINDOW = 256
"""No model ever had a smaller window; a smaller number is a percent."""
AMBIGUOUS = range(1, 101)
"""Whole numbers that may be meant as percent."""
_NUMBER = re.compile(r"(\d{1,12}(?:_\d{1,12})*(?:\.\d{1,12})?) ?([km%]?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


class Counted(Struct, frozen=True):
    """Marks a number in the tree that counts tokens, so that `4k` is understood; `words` stand for numbers."""

    words: tuple[tuple[str, int], ...] = ()


class Unreadable(ValueError):
    """A value that a setting does not take; `hint` says how to write it."""

    def __init__(self, what: str, hint: str) -> None:
        self.what, self.hint = what, hint
        super().__init__(what)


def read_tokens(raw: object) -> int:
    """Read a number of tokens.

    Raises:
        Unreadable: the value is not a number of tokens.
    """
    number, unit = _parts(raw, "give a number of tokens, such as 4000 or 4k")
    if unit == "%" or (unit == "" and isinstance(number, float)):
        raise Unreadable(
            "it is a share, but tokens are needed", "give a number of tokens, such as 4000 or 4k"
        )
    return _whole(number, unit)


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


def _whole(number: float, unit: str) -> int:
    tokens = round(number * _UNITS[unit], 6)
    if tokens > MAX_TOKENS or tokens != int(tokens):
        raise Unreadable("it is not a number of tokens", f"give a whole number up to {MAX_TOKENS:,}")
    return int(tokens)


def _share(fraction: float) -> Share:
    if not 0 <= fraction <= 1:
        raise Unreadable("it is more than the whole", "give 0% to 100%, or 0.0 to 1.0")
    return Share(fraction)
