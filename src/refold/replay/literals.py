"""Literals: the pieces of a text that cannot be guessed, only remembered.

One idea: when a model writes a path, an order number or a function name that stood somewhere before, it must have had it
in front of it. Two extractors of different design say what such a piece is, so that nobody tunes to one of them: the
first knows nine kinds by their shape, the second takes every word that ordinary English would not contain.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, cast

Kind: TypeAlias = Literal["url", "email", "path", "date", "dotted", "id", "snake", "camel", "number"]

_NAME = r"[A-Za-z_][\w-]*"
_SEGMENT = r"[\w.@+-]+"
_SHAPES: dict[Kind, str] = {
    "url": r"""https?://[^\s<>"'`)\]}]+""",
    "email": r"[\w.+-]+@[\w-]+\.[\w.]+",
    "path": rf"~?(?:/?{_SEGMENT})?(?:/[\w.@+%-]+)+",
    "date": r"\b\d{4}(?:-\d{2}){2}(?:T\d{2}(?::\d{2}){1,2})?",
    "dotted": rf"\b{_NAME}(?:\.{_NAME})+",
    "id": r"#?\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[A-Za-z0-9][\w-]{3,}",
    "snake": r"\b_*[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+\b",
    "camel": r"\b[A-Za-z][a-z0-9]+(?:[A-Z][A-Za-z0-9]+)+\b",
    "number": r"\b\d{3,}(?:[.,]\d+)*|\b\d+\.\d+",
}
"""The order decides: where two shapes begin at the same character, the first is the kind."""
_LITERAL = re.compile("|".join(f"(?P<{kind}>{shape})" for kind, shape in _SHAPES.items()))

_TRAILING = ".,:;-"
MIN_CHARACTERS = 4
"""Shorter pieces come up by chance; numbers alone may be shorter (`1.5`)."""
MIN_PATH_CHARACTERS = 5
MAX_CHARACTERS = 160
"""Longer ones are encoded data, which nobody writes down from memory."""

_RUN = re.compile(r"[A-Za-z0-9_.@+-]{4097,}")
"""A run without a space or a slash is tried from each of its characters; uncut, a megabyte of hex would take hours."""
_RUN_END = 2_048


def literals(text: str) -> dict[str, Kind]:
    """Every literal of a text with its kind."""
    found: dict[str, Kind] = {}
    for match in _LITERAL.finditer(_shortened(text)):
        kind, literal = cast("Kind", match.lastgroup), match.group().strip(_TRAILING)
        if _counts(literal, kind):
            found[literal] = kind
    return found


def _shortened(text: str) -> str:
    """The text with the middle of endless runs left out; what is left of them is still too long to be a literal."""
    return _RUN.sub(lambda run: run[0][:_RUN_END] + run[0][-_RUN_END:], text)


def _counts(literal: str, kind: Kind) -> bool:
    if len(literal) > MAX_CHARACTERS:
        return False
    if kind == "path":
        return len(literal) >= MIN_PATH_CHARACTERS and _LETTER.search(literal) is not None
    return kind == "number" or len(literal) >= MIN_CHARACTERS


_LETTER = re.compile("[A-Za-z]")

_CHUNK = re.compile(r"""[^\s"'`<>(){}\[\],;|=\\→]{3,}""")
_EDGES = ".:!?*#$~+-"
_UNCOMMON = re.compile(r"\d|(?<=.)[A-Z]|\w[._/:@+&]\w")
"""A digit, a capital that is not the first letter, or a sign between two letters. A hyphen alone makes no name."""


def rare_words(text: str) -> frozenset[str]:
    """The second extractor: words between spaces, quotes and brackets that are not plain English."""
    words = {chunk.strip(_EDGES) for chunk in _CHUNK.findall(text) if _UNCOMMON.search(chunk)}
    return frozenset(
        word for word in words if 3 <= len(word) <= MAX_CHARACTERS and _UNCOMMON.search(word) is not None
    )


def holds(text: str, literal: str) -> bool:
    """Does the literal stand in the text as a whole, not as a piece of a longer name or number?"""
    at = text.find(literal)
    while at >= 0:
        end = at + len(literal)
        if not _continues(text[at - 1 : at]) and not _continues(text[end : end + 1]):
            return True
        at = text.find(literal, at + 1)
    return False


def _continues(neighbour: str) -> bool:
    return neighbour == "_" or neighbour.isalnum()


_WORD = re.compile(r"[A-Za-z]{4,}")


def surroundings(text: str, literal: str, *, reach: int, most: int) -> list[frozenset[str]]:
    """The words within `reach` characters of each mention, for the first `most` mentions.

    Words of fewer than four letters say nothing about what a literal means.
    """
    found: list[frozenset[str]] = []
    at = text.find(literal)
    while at >= 0 and len(found) < most:
        end = at + len(literal)
        around = f"{text[max(0, at - reach) : at]} {text[end : end + reach]}"
        found.append(frozenset(word.lower() for word in _WORD.findall(around)))
        at = text.find(literal, at + 1)
    return found
