"""Literals: the pieces of a text that cannot be guessed, only remembered.

One idea: when a model writes a path, an order number or a function name that stood somewhere before, it must have had it
in front of it. Two extractors of different design say what such a piece is, so that nobody tunes to one of them: the
first knows nine kinds by their shape, the second takes every word that ordinary English would not contain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["url", "email", "path", "date", "dotted", "id", "snake", "camel", "number"]

_NAME = r"[A-Za-z_][\w-]*+"
_SEGMENTS = r"(?:/[\w.@+%-]++)++"
_SHAPES: dict[Kind, str] = {
    "url": r"""(https?://[^\s<>"'`)\]}]++)""",
    "email": r"[\w.+-]++(@[\w-]++\.[\w.]++)?",
    "path": rf"[\w.@+-]++({_SEGMENTS})?|(~(?:/?[\w.@+-]++)?{_SEGMENTS}|(?:/[\w.@+-]++)?{_SEGMENTS})",
    "date": r"(\b\d{4}(?:-\d{2}){2}(?:T\d{2}(?::\d{2}){1,2})?)",
    "dotted": rf"\b{_NAME}((?:\.{_NAME})++)?",
    "id": r"#?\b([A-Za-z0-9][\w-]*+)",
    "snake": r"(\b_*+[A-Za-z][A-Za-z0-9]*+(?:_[A-Za-z0-9]++)++\b)",
    "camel": r"(\b[A-Za-z][a-z0-9]++[A-Z][A-Za-z0-9]++\b)",
    "number": r"(\b\d{3,}+(?:[.,]\d++)*+|\b\d++\.\d++)",
}
"""The order decides: where two shapes begin at the same character, the first is the kind.

A match is one of its kind if it has a group. Without one it only covers characters at none of which one begins, so that each of them
is looked at once.
"""
_PATTERNS = tuple((kind, re.compile(shape)) for kind, shape in _SHAPES.items())
_ID_DIGITS, _ID_LETTERS = re.compile(r"\d"), re.compile("[A-Za-z]")
_SHORTEST_ID = 4

_TRAILING = ".,:;-"
MIN_CHARACTERS = 4
"""Shorter pieces come up by chance; numbers alone may be shorter (`1.5`)."""
MIN_PATH_CHARACTERS = 5
MAX_CHARACTERS = 160
"""Longer ones are encoded data, which nobody writes down from memory."""

_RUN = re.compile(r"(?<![A-Za-z0-9_.@+-])[A-Za-z0-9_.@+-]{4097,}+")
"""A run without a space or a slash is encoded data, of which no more than the ends are looked at."""
_RUN_END = 2_048


def literals(text: str) -> dict[str, Kind]:
    """Every literal of a text with its kind."""
    found: dict[str, Kind] = {}
    for kind, whole in _found(_shortened(text)):
        literal = whole.strip(_TRAILING)
        if _counts(literal, kind):
            found[literal] = kind
    return found


def _found(text: str) -> Iterator[tuple[Kind, str]]:
    """What stands first in a text, then what stands first behind it, and so on."""
    finders = [_Finder(kind, pattern, text) for kind, pattern in _PATTERNS]
    at = 0
    while True:
        first = min(finders, key=lambda finder: finder.seek(at))
        if first.start == len(text):
            return
        yield first.kind, text[first.start : first.stop]
        at = first.stop


class _Finder:
    """The next literal of one kind. It never looks twice at what it has passed."""

    def __init__(self, kind: Kind, pattern: re.Pattern[str], text: str) -> None:
        self.kind, self._pattern, self._text = kind, pattern, text
        self.start = self.stop = -1
        self._barren = 0
        """Nothing of this kind begins before it, unless it is `start`."""

    def seek(self, at: int) -> int:
        """Where the first one begins at a place or behind it; the length of the text where there is none."""
        while self.start < at:
            found = self._pattern.search(self._text, max(at, self._barren))
            if found is None:
                self.start = len(self._text)
            elif found.lastindex and (self.kind != "id" or _is_id(found[1])):
                self.start, self.stop = found.span()
            else:
                self._barren = found.end()
        return self.start


def _is_id(word: str) -> bool:
    """Does it hold both a letter and a digit?"""
    return len(word) >= _SHORTEST_ID and bool(_ID_DIGITS.search(word)) and bool(_ID_LETTERS.search(word))


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
