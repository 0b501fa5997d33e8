"""Phrases and rules: recognise a provider's sentence and read its numbers.

A phrase is written as the provider says it, with named numbers: `prompt is too long: {prompt} tokens >
{limit} maximum`. It is matched by searching for each stretch after the previous one and reading its numbers,
without ever going back, so a hostile text costs no more than an ordinary one; a regular expression could
backtrack. Phrases are in lower case and without backticks, like the normalised text they are compared with.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from refold.model.errors import LimitOf, OverflowKind

Piece: TypeAlias = tuple[str, str]
"""Words, and the name of the number that must follow them ("" for none)."""
Stretch: TypeAlias = tuple[Piece, ...]
"""Pieces that follow each other directly."""
Phrase: TypeAlias = tuple[Stretch, ...]
Named: TypeAlias = tuple[str, int]
Numbers: TypeAlias = dict[str, int]

GAP = "…"
"""Placeholder in a phrase for any number of words."""
UNREAD = "_"
"""The name of a number that must be present but is not used."""
LARGEST_NUMBER = 10**9
"""No window and no body is larger; a greater number is an id, a timestamp or an attack."""

_OPENERS = " ([:=~'\""
_MOST_OPENERS = 4
_DIGITS = "0123456789"
_SEPARATORS = ",_"
_UNITS = "km%"


class Rule(Struct, frozen=True):
    """One kind of error, recognised by any of its codes or any of its phrases."""

    name: str
    kind: OverflowKind
    says: tuple[Phrase, ...] = ()
    codes: tuple[str, ...] = ()
    """Compared only with structured codes, and as a whole: in a sentence they may be ordinary words."""
    limit_of: LimitOf = "window"
    is_vague: bool = False
    """Too uncertain for a 413 or a 5xx. Its numbers may count anything, so they are not reported."""


def rule(
    name: str,
    kind: OverflowKind,
    *says: str,
    codes: tuple[str, ...] = (),
    limit_of: LimitOf = "window",
    is_vague: bool = False,
) -> Rule:
    return Rule(name, kind, tuple(phrase(words) for words in says), codes, limit_of, is_vague)


def phrase(words: str) -> Phrase:
    """Split a phrase in advance, so that matching only has to search."""
    return tuple(_pieces(stretch) for stretch in words.split(GAP))


def _pieces(stretch: str) -> Stretch:
    *heads, tail = stretch.split("}")
    pieces = [(fixed, name) for fixed, _, name in (head.partition("{") for head in heads)]
    return (*pieces, (tail, "")) if tail else tuple(pieces)


def read_phrase(wanted: Phrase, text: str) -> Numbers | None:
    """Return the numbers of the phrase if the text contains all of it in order.

    Numbers with equal names are added up.
    """
    at = 0
    numbers: Numbers = {}
    for stretch in wanted:
        at, found = _find_stretch(stretch, text, at)
        if at < 0:
            return None
        for name, number in found:
            numbers[name] = numbers.get(name, 0) + number
    return numbers


def _find_stretch(stretch: Stretch, text: str, at: int) -> tuple[int, list[Named]]:
    """Return the end of the stretch at its first match, and its numbers; (-1, []) if it does not match."""
    opening = stretch[0][0]
    while (found := text.find(opening, at)) >= 0:
        end, numbers = _read_stretch(stretch, text, found)
        if end >= 0:
            return end, numbers
        at = found + len(opening)
    return -1, []


def _read_stretch(stretch: Stretch, text: str, at: int) -> tuple[int, list[Named]]:
    numbers: list[Named] = []
    for fixed, name in stretch:
        if not text.startswith(fixed, at):
            return -1, []
        at += len(fixed)
        if name:
            end, number = read_number(text, at)
            if end == at:
                return -1, []
            at = end
            if number is not None and name != UNREAD:
                numbers.append((name, number))
    return at, numbers


def read_number(text: str, at: int) -> tuple[int, int | None]:
    """Read `200000`, `200,000` or `200_000` at a position: return its end, and its value if that is
    plausible.

    The end is the position itself if there is no number. `128k`, `5.5` and `80%` are not counts of anything.
    """
    start = at
    while at < len(text) and at - start < _MOST_OPENERS and text[at] in _OPENERS:
        at += 1
    digits: list[str] = []
    while at < len(text) and (text[at] in _DIGITS or _is_separator(text, at, digits)):
        if text[at] in _DIGITS:
            digits.append(text[at])
        at += 1
    if not digits:
        return start, None
    if len(digits) > len(str(LARGEST_NUMBER)) or _has_fraction_or_unit(text, at):
        return at, None
    number = int("".join(digits))
    return at, number if number <= LARGEST_NUMBER else None


def _is_separator(text: str, at: int, digits: list[str]) -> bool:
    return bool(digits) and text[at] in _SEPARATORS and _is_digit(text, at + 1)


def _has_fraction_or_unit(text: str, at: int) -> bool:
    """Return True if the number continues as a fraction or a unit."""
    if text[at : at + 1] == ".":
        return _is_digit(text, at + 1)
    return at < len(text) and text[at] in _UNITS


def _is_digit(text: str, at: int) -> bool:
    return at < len(text) and text[at] in _DIGITS
