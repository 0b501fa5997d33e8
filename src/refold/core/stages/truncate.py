"""Cutting a text down to a number of characters.

One idea: the beginning of a text says what it is and the end how it came out, so the middle goes, and a mark stands where
it was. Cuts fall at line ends where one is near, and never inside a word or number, since half of an identifier is a false
one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

InputForm: TypeAlias = Literal["values", "whole"]


class Mark(Struct, frozen=True):
    """What stands where something was cut out, and how finely the cut is made.

    `{handle}`, `{length}`, `{limit}` and `{kept}` in the text are filled in: the name of the original, the characters it
    had, the characters allowed, the characters left.
    """

    text: str
    whole_words: bool = True
    """Without a line end nearby, cut between words rather than through one."""
    inputs: InputForm = "values"
    """Arguments of a call keep their object and have their long values cut, or become one text in an object of its own."""

    def spell(self, *, handle: str = "", length: int = 0, limit: int = 0, kept: int = 0) -> str:
        filled = self.text.replace("{handle}", handle).replace("{kept}", str(kept))
        return filled.replace("{length}", str(length)).replace("{limit}", str(limit))


HANDLE_MARK = Mark("\n[… the rest is in {handle}]\n")
"""Names the original, and no number or identifier that was not in the source."""
COUNT_MARK = Mark(
    "\n\n… [truncated: {length} chars exceeded {limit} limit] …\n\n", whole_words=False, inputs="whole"
)
"""Says how much is missing."""
SNAP = 200
"""How far a cut moves to find a line end or a word's end: two or three lines of code."""
MIN_BOTH_ENDS = 200
"""With fewer characters than these, two ends would be two scraps: only the head stays."""
_JOINS_WORDS = frozenset("_-./:@#%+=&?~$\\")


def truncate(text: str, limit: int, mark: Mark, handle: str = "") -> str:
    """At most `limit` characters: 70 % head, 30 % tail and the mark between; a text that was cut before is cut further.

    Where not even the mark fits, a mark with a handle stands alone, since what is hidden must have a name.
    """
    if len(text) <= limit:
        return text
    inserted = mark.spell(handle=handle, length=len(text), limit=limit)
    available = limit - len(inserted)
    if available > 0:
        head = available if available < MIN_BOTH_ENDS else -(-7 * available // 10)
        cut = excerpt(text, head, available - head, inserted, whole_words=mark.whole_words)
    else:
        cut = inserted.strip() if handle and handle in inserted else text[:limit]
    return cut if len(cut) < len(text) else text


def excerpt(text: str, head: int, tail: int, inserted: str, *, whole_words: bool) -> str:
    """The first `head` and the last `tail` characters, or somewhat fewer, around what is inserted."""
    before, known, after = text.partition(inserted)
    if not known:
        before = after = text
    start = _back(before, head, whole_words=whole_words)
    end = _forward(after, len(after) - tail, whole_words=whole_words) if tail > 0 else len(after)
    return before[:start] + inserted + after[end:]


def _back(text: str, at: int, *, whole_words: bool) -> int:
    """Where a head of at most `at` characters ends."""
    if at >= len(text):
        return len(text)
    floor = max(0, at - SNAP)
    line = text.rfind("\n", floor, at + 1)
    if line >= 0 or not whole_words:
        return line if line >= 0 else at
    place = at
    while place > floor and _is_inside_word(text, place):
        place -= 1
    return place if place == 0 or not _is_inside_word(text, place) else at


def _forward(text: str, at: int, *, whole_words: bool) -> int:
    """Where a tail that begins at `at` or later begins."""
    if at <= 0:
        return 0
    ceiling = min(len(text), at + SNAP)
    line = text.find("\n", at - 1, ceiling)
    if line >= 0 or not whole_words:
        return line + 1 if line >= 0 else at
    place = at
    while place < ceiling and _is_inside_word(text, place):
        place += 1
    return place if place == len(text) or not _is_inside_word(text, place) else at


def _is_inside_word(text: str, place: int) -> bool:
    """Would a cut before `place` go through a word? What is longer than SNAP is no word, and may be cut."""
    return _joins(text[place - 1]) and _joins(text[place]) if 0 < place < len(text) else False


def _joins(character: str) -> bool:
    return character.isalnum() or character in _JOINS_WORDS


# How much of a budget an older thing gets.


def weighted(cap: int, position: int, count: int) -> int:
    """A cap for the thing at `position` of `count`, oldest first: 20 % of `cap` for the oldest, all for the newest."""
    if count < 2:
        return cap
    return cap * (count - 1 + 4 * position) // (5 * (count - 1))


def share(total: int, position: int, count: int) -> int:
    """The part of `total` that falls to the thing at `position`; all parts together are `total`, rounded down.

    The weights of `count` things add up to 60 % of their number.
    """
    if count < 2:
        return total
    return total * (count - 1 + 4 * position) // (3 * count * (count - 1))
