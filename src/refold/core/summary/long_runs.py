"""The beginning and the end of a text, also where it is one run of characters without a place to cut.

`pieces` cuts at lines, at white space and between marks of punctuation. A list of numbers without blanks, base64, hexadecimal,
encoded URLs, paths of pictures and scripts without blanks have no such place. A run that is longer than any name is cut all the
same, at the best place near the end of the room: after the end of an item, else where a word or a number ends, else between two
characters that are seen as such. Nothing that looks like a secret is cut in two: it is left out whole, unless it is so long that
it is data.

The time is linear in the room, and of the text around a cut at most twice `MAX_SECRET` characters are searched for secrets.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

from refold.core.summary.pieces import head, is_safe, tail
from refold.core.summary.redact import find_secrets

LONGEST_NAME = 240
"""Characters without a place to cut that are still kept whole: what is longer is no name and no number. A cut moves no further."""
MAX_SECRET = 4_096
"""Characters: what is longer is no secret, but data."""
_ITEM_ENDS = frozenset(",;|&\0\x1c\x1d\x1e\x1f，、；")
_ESCAPES = frozenset("%\\")
_LEADING_VOWELS = frozenset("\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4")
"""Of Thai and Lao: they are written before the consonant that they belong to."""
_VIRAMA = 9
"""The combining class of signs that join a consonant to the next one."""


def beginning(text: str, limit: int) -> str:
    """The longest beginning of at most `limit` characters that ends at a good place, or within a run that has none."""
    found = head(text, limit)
    is_line = text[len(found) : len(found) + 1] == "\n" and len(found) > limit // 2
    if is_line or limit - len(found) <= LONGEST_NAME:
        return found
    at = _best_place(text, range(limit, limit - LONGEST_NAME, -1))
    return text[: _secret_around(text, at)[0]]


def ending(text: str, limit: int) -> str:
    """The longest ending of at most `limit` characters that starts at a good place, or within a run that has none."""
    found = tail(text, limit)
    is_line = text[-len(found) - 1 : -len(found)] == "\n" and len(found) > limit // 2
    if is_line or limit - len(found) <= LONGEST_NAME:
        return found
    start = len(text) - limit
    at = _best_place(text, range(start, start + LONGEST_NAME))
    return text[_secret_around(text, at)[1] :]


def _best_place(text: str, places: range) -> int:
    """The first of the places, which are not the ends of the text, at which the best cut can be made."""
    ways: Iterable[Callable[[str, int], bool]] = (_ends_item, _ends_word, _ends_character)
    return next((at for is_good in ways for at in places if is_good(text, at)), places[0])


def _ends_item(text: str, at: int) -> bool:
    return text[at - 1] in _ITEM_ENDS and _ends_character(text, at)


def _ends_word(text: str, at: int) -> bool:
    """Does a cut before `at` leave words, numbers and escapes whole?"""
    left, right = text[at - 1], text[at]
    if is_safe(text, at):
        return True
    if left in _ESCAPES or (left.isalnum() and right.isalnum()):
        return False
    is_number = (left in ".+-" and right.isdigit()) or (left.isalnum() and right in ".+-")
    return not is_number and _ends_character(text, at)


def _ends_character(text: str, at: int) -> bool:
    """Is what stands before `at` not a part of the character after it, as people see them?"""
    left, right = text[at - 1], text[at]
    if unicodedata.category(right) in ("Mn", "Mc", "Me", "Cs", "Cf") or unicodedata.category(left) == "Cf":
        return False
    is_modifier = "\U0001f3fb" <= right <= "\U0001f3ff" or "\U0001f1e6" <= right <= "\U0001f1ff"
    return not is_modifier and left not in _LEADING_VOWELS and unicodedata.combining(left) != _VIRAMA


def _secret_around(text: str, at: int) -> tuple[int, int]:
    """Where the secret begins and ends that a cut before `at` would go through; twice `at` where it goes through none."""
    first = max(0, at - MAX_SECRET)
    for secret in find_secrets(text[first : at + MAX_SECRET]):
        start, stop = first + secret.start, first + secret.stop
        if start < at < stop:
            return (start, stop) if stop - start <= MAX_SECRET else (at, at)
    return at, at
