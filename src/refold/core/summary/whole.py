"""Is something said as it stands, and not as a part of something longer?

One idea: `src/a.py` is not said by `src/a.pyc`, nor `ORD-9912` by `ORD-99123`, nor `config.py` by `tests/config.py`. What
stands next to a name decides whether the name ends there. Between the words of Chinese, Japanese and Korean nothing stands,
so there a word may end anywhere.
"""

from __future__ import annotations

CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
"""Characters that are not parted by spaces, as ranges for a regular expression."""
_BEFORE = frozenset("/\\.-_@~")
_AFTER = frozenset("/\\.-@")


def says(text: str, entry: str) -> bool:
    """Does the text hold the entry, letter for letter and whole?"""
    at = text.find(entry)
    while at >= 0:
        if not _goes_back(text, at) and not _goes_on(text, at + len(entry)):
            return True
        at = text.find(entry, at + 1)
    return not entry


def _goes_back(text: str, start: int) -> bool:
    """Is what starts here the end of something longer?"""
    if start == 0 or not (_is_letter(text[start]) or text[start] in _BEFORE):
        return False
    before = text[start - 1]
    if before == "/" and text[start - 2 : start] == "./":
        return start > 2 and (_is_letter(text[start - 3]) or text[start - 3] in _BEFORE)
    return _is_letter(before) or before in _BEFORE


def _goes_on(text: str, stop: int) -> bool:
    """Is what stops here the beginning of something longer?"""
    if stop >= len(text) or not (_is_letter(text[stop - 1]) or text[stop - 1] in _AFTER):
        return False
    after = text[stop]
    is_joint = after in _AFTER and text[stop - 1] not in _AFTER
    return _is_letter(after) or (is_joint and _is_letter(text[stop + 1 : stop + 2]))


def _is_letter(character: str) -> bool:
    return (character.isalnum() or character == "_") and not _is_far_eastern(character)


def _is_far_eastern(character: str) -> bool:
    return character >= "\u2e80" and not "\ufb00" <= character <= "\ufeff"
