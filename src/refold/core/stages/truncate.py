"""Cuts a text to a number of characters.

The beginning of a text shows its kind and the end its outcome, so the middle is removed and a mark
inserted. A cut moves to a line end if one is near, and never splits a word or number, because half of an
identifier is a false one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

InputForm: TypeAlias = Literal["values", "whole"]


class Mark(Struct, frozen=True):
    """The text inserted at a cut, and the precision of the cut.

    `{handle}`, `{length}`, `{limit}` and `{kept}` in the text are filled in: the handle of the original,
    its characters, the characters allowed, the characters left. `{; handle}` is the handle after a semicolon,
    or nothing if there is none.
    """

    text: str
    whole_words: bool = True
    """Without a line end nearby, cut between words instead of inside one."""
    inputs: InputForm = "values"
    """`values`: arguments of a call stay an object, and its long values are cut. `whole`: they become one
    text in a new object."""

    def spell(self, *, handle: str = "", length: int = 0, limit: int = 0, kept: int = 0) -> str:
        filled = self.text.replace("{; handle}", f"; {handle}" if handle else "")
        filled = filled.replace("{handle}", handle)
        if "{" not in filled:
            return filled
        filled = filled.replace("{kept}", str(kept))
        return filled.replace("{length}", str(length)).replace("{limit}", str(limit))


HANDLE_MARK = Mark("\n[… the rest is in {handle}]\n")
"""Names the original, and adds no number or identifier that was not in the source."""
COUNT_MARK = Mark(
    "\n\n… [truncated: {length} chars exceeded {limit} limit{; handle}] …\n\n",
    whole_words=False,
    inputs="whole",
)
"""States the number of missing characters, and names the original."""
SNAP = 200
"""Characters that a cut may move to find a line end or a word's end: two or three lines of code."""
MIN_BOTH_ENDS = 200
"""With fewer characters, two ends would be too short to read: only the head stays."""
_JOINS_WORDS = frozenset("_-./:@#%+=&?~$\\")


def truncate(text: str, limit: int, mark: Mark, handle: str = "") -> str:
    """Cut to at most `limit` characters: 70 % head, 30 % tail and the mark between. A text from an earlier
    cut is cut further.

    If not even the mark fits, a mark with a handle stands alone, because hidden text must have a handle.
    """
    if len(text) <= limit:
        return text
    inserted = mark.spell(handle=handle, length=len(text), limit=limit)
    available = limit - len(inserted)
    if available > 0:
        head = available if available < MIN_BOTH_ENDS else -(-7 * available // 10)
        cut = excerpt(text, head, available - head, inserted, whole_words=mark.whole_words)
    else:
        # A mark with numbers would change when it is cut again.
        alone = f"[… {handle}]" if "{length}" in mark.text else inserted.strip()
        cut = alone if handle and handle in inserted else text[:limit]
    return cut if len(cut) < len(text) else text


def excerpt(text: str, head: int, tail: int, inserted: str, *, whole_words: bool) -> str:
    """The first `head` and the last `tail` characters, or slightly fewer, around `inserted`."""
    before, known, after = text.partition(inserted)
    if not known:
        before = after = text
    start = _back(before, head, whole_words=whole_words)
    end = _forward(after, len(after) - tail, whole_words=whole_words) if tail > 0 else len(after)
    return before[:start] + inserted + after[end:]


def _back(text: str, at: int, *, whole_words: bool) -> int:
    """End of a head of at most `at` characters."""
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
    """Start of a tail that begins at `at` or later."""
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
    """True if a cut before `place` would split a word. Runs longer than SNAP are no words, and may be cut."""
    return _joins(text[place - 1]) and _joins(text[place]) if 0 < place < len(text) else False


def _joins(character: str) -> bool:
    return character.isalnum() or character in _JOINS_WORDS


# Shares of a budget by age


def weighted(cap: int, position: int, count: int) -> int:
    """Cap of the part at `position` of `count`, oldest first: 20 % of `cap` for the oldest, all for the newest."""
    if count < 2:
        return cap
    return cap * (count - 1 + 4 * position) // (5 * (count - 1))


def share(total: int, position: int, count: int) -> int:
    """Share of `total` for the part at `position`; all shares together are `total`, rounded down.

    The weights of `count` parts add up to 60 % of their number.
    """
    if count < 2:
        return total
    return total * (count - 1 + 4 * position) // (3 * count * (count - 1))
