"""Phrases and rules: how a provider's sentence is recognised and its numbers are read.

One idea: a phrase is written as the provider says it, with the numbers named: `prompt is too long: {prompt} tokens >
{limit} maximum`. It is matched by looking for each fixed piece after the one before and reading the number that follows,
never going back, so that a hostile text costs no more than a friendly one. Regular expressions backtrack; these cannot.
A phrase is written in lower case and without backticks, as the text it is compared with has been made.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from refold.model.overflow import LimitOf, OverflowKind

Piece: TypeAlias = tuple[str, str]
"""Words to find, and the name of the number that must follow them ("" where none does)."""
Phrase: TypeAlias = tuple[Piece, ...]
Numbers: TypeAlias = dict[str, int]

GAP = "…"
"""Stands in a phrase for any words at all."""
UNREAD = "_"
"""The name of a number that must be there and is of no use."""
LARGEST_NUMBER = 10**9
"""No window and no body is larger; a greater number is an id, a timestamp or an attack."""

_OPENERS = " ([:=~'\""
_MOST_OPENERS = 4
_DIGITS = "0123456789"
_SEPARATORS = ",_"
_CUTS_SHORT = "km%"


class Rule(Struct, frozen=True):
    """One way of saying it: any of the codes, or any of the phrases."""

    name: str
    kind: OverflowKind
    says: tuple[Phrase, ...] = ()
    codes: tuple[str, ...] = ()
    """Compared whole with structured codes. Those that are words also count where the text mentions them."""
    limit_of: LimitOf = "window"
    is_vague: bool = False
    """Not sure enough for a 413 or a 5xx; its numbers may count anything, so they are not reported."""


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
    """Take a phrase apart once, so that matching it is only searching."""
    pieces: list[Piece] = []
    for stretch in words.split(GAP):
        *heads, tail = stretch.split("}")
        for head in heads:
            fixed, _, name = head.partition("{")
            pieces.append((fixed, name))
        if tail:
            pieces.append((tail, ""))
    return tuple(pieces)


def read_phrase(wanted: Phrase, text: str) -> Numbers | None:
    """The numbers of the phrase, if the text holds all of it in order. Equal names add up."""
    at = 0
    numbers: Numbers = {}
    for fixed, name in wanted:
        at, number = _advance(text, at, fixed, name)
        if at < 0:
            return None
        if number is not None and name != UNREAD:
            numbers[name] = numbers.get(name, 0) + number
    return numbers


def _advance(text: str, at: int, fixed: str, name: str) -> tuple[int, int | None]:
    """Where the piece ends at its first good place, and its number; (-1, None) if there is no such place."""
    while (found := text.find(fixed, at)) >= 0:
        end = found + len(fixed)
        if not name:
            return end, None
        after, number = read_number(text, end)
        if after > end:
            return after, number
        at = end
    return -1, None


def read_number(text: str, at: int) -> tuple[int, int | None]:
    """Read `200000`, `200,000` or `200_000` at a place: where it ends, and its value if that is believable.

    The end is the place itself where no number stands. `128k`, `5.5` and `80%` are not counts of anything.
    """
    start = at
    while at < len(text) and at - start < _MOST_OPENERS and text[at] in _OPENERS:
        at += 1
    digits: list[str] = []
    while at < len(text) and (text[at] in _DIGITS or _separates(text, at, digits)):
        if text[at] in _DIGITS:
            digits.append(text[at])
        at += 1
    if not digits:
        return start, None
    if len(digits) > len(str(LARGEST_NUMBER)) or _is_cut_short(text, at):
        return at, None
    number = int("".join(digits))
    return at, number if number <= LARGEST_NUMBER else None


def _separates(text: str, at: int, digits: list[str]) -> bool:
    return bool(digits) and text[at] in _SEPARATORS and _is_digit(text, at + 1)


def _is_cut_short(text: str, at: int) -> bool:
    """Does the number go on as a fraction or a unit?"""
    if text[at : at + 1] == ".":
        return _is_digit(text, at + 1)
    return at < len(text) and text[at] in _CUTS_SHORT


def _is_digit(text: str, at: int) -> bool:
    return at < len(text) and text[at] in _DIGITS
