"""Test whether a text contains an entry as a whole word or name, not as a part of a longer one.

`src/a.pyc` does not contain `src/a.py`, nor `ORD-99123` the number `ORD-9912`, nor `tests/config.py` the file
`config.py`: the characters next to a match decide whether the name ends there. Chinese, Japanese and Korean
words have no separators: `contains_word` accepts every position in such text as the end of a word, and `contains_separate_word`
none.
"""

from __future__ import annotations

from collections.abc import Callable
from unicodedata import category

CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
"""Characters of scripts without spaces between words, as ranges for a regular expression."""
_BEFORE = frozenset("/\\.-_@~")
_AFTER = frozenset("/\\.-@")


def contains_word(text: str, entry: str) -> bool:
    """Return True if the text contains the entry, letter for letter and as a whole."""
    return _contains_whole(text, entry, _is_letter)


def contains_separate_word(text: str, entry: str) -> bool:
    """Like `contains_word`, but no letter, digit or mark of any script may be next to the entry.

    This is the safe answer for a text that may be one long word.
    """
    return _contains_whole(text, entry, _is_letter_or_mark)


def _contains_whole(text: str, entry: str, is_letter: Callable[[str], bool]) -> bool:
    at = text.find(entry)
    while at >= 0:
        if not _continues_left(text, at, is_letter) and not _continues_right(
            text, at + len(entry), is_letter
        ):
            return True
        at = text.find(entry, at + 1)
    return not entry


def _continues_left(text: str, start: int, is_letter: Callable[[str], bool]) -> bool:
    """Return True if the match at `start` is the end of a longer name."""
    if start == 0 or not (is_letter(text[start]) or text[start] in _BEFORE):
        return False
    before = text[start - 1]
    if before == "/" and text[start - 2 : start] == "./":
        return start > 2 and (is_letter(text[start - 3]) or text[start - 3] in _BEFORE)
    return is_letter(before) or before in _BEFORE


def _continues_right(text: str, stop: int, is_letter: Callable[[str], bool]) -> bool:
    """Return True if the match before `stop` is the beginning of a longer name."""
    if stop >= len(text) or not (is_letter(text[stop - 1]) or text[stop - 1] in _AFTER):
        return False
    after = text[stop]
    is_joint = after in _AFTER and text[stop - 1] not in _AFTER
    return is_letter(after) or (is_joint and is_letter(text[stop + 1 : stop + 2]))


def _is_letter(character: str) -> bool:
    return (character.isalnum() or character == "_") and not _is_east_asian(character)


def _is_east_asian(character: str) -> bool:
    return character >= "\u2e80" and not "\ufb00" <= character <= "\ufeff"


def _is_letter_or_mark(character: str) -> bool:
    return character.isalnum() or character == "_" or (character > "\u02ff" and category(character)[0] == "M")
