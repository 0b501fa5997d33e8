"""The boundaries of words and names: where a text may be cut, and whether it contains an entry as a whole.

A cut must not create false content: half a path or half a number is a wrong one. So a piece, the unit that a digest can
quote, ends at the end of a line, at white space, or between two punctuation marks; a run of characters without any such
position stays whole. For the same reason `src/a.pyc` does not contain `src/a.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unicodedata import category

PIECE_CHARACTERS = 60
"""Long lines are split into pieces of about this length: shorter ones break up sentences, longer ones
include too much useless text."""
_WHOLE_LINE = PIECE_CHARACTERS * 4 // 3
"""A line up to this length is one piece."""
_MOST_INDENT = 24
"""Characters of an indentation that are kept: it is part of code, and beyond this it is layout."""
_STUB_LINE = 12
"""A line shorter than this is chosen together with the next one: a bracket alone has no meaning."""
_SEPARATORS = frozenset(",;(){}[]<>\"'|`")
_AFTER = {
    ",": 4,
    ";": 4,
    "}": 4,
    "]": 4,
    ")": 4,
    ".": 3,
    "!": 3,
    "?": 3,
    "。": 4,
    "，": 4,
    "、": 4,
    ":": 1,
    "=": 1,
}
_CLAUSE = 4
"""The end of a clause: no better position is searched for."""
_CONNECTORS = frozenset("_-./@+%~#:=&?$\\")
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f\u20e3")


def pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text in order, with white space squeezed and without empty lines."""
    for line in lines(text):
        yield from map(str.strip, line)


def lines(text: str) -> Iterator[list[str]]:
    """Yield the pieces of a text, line by line; the pieces of one line joined together are that line, with its
    indentation. A short line and the next one are one piece with a line end.
    """
    held = ""
    for line in text.splitlines():
        words = " ".join(line.split())
        indent = line[: min(len(line) - len(line.lstrip()), _MOST_INDENT)] if words else ""
        if held and len(held) + len(words) < PIECE_CHARACTERS:
            words, indent, held = f"{held}\n{indent}{words}".rstrip(), "", ""
        elif held:
            yield [held]
            held = ""
        if len(words) < _STUB_LINE:
            held = f"{indent}{words}" if words else ""
        elif len(words) <= _WHOLE_LINE:
            yield [f"{indent}{words}"]
        else:
            first, *rest = _split(words)
            yield [f"{indent}{first}", *rest]
    if held:
        yield [held]


def bare(piece: str, *, is_first: bool) -> str:
    """Return a piece without the white space around it; the first of a line keeps its indentation."""
    return piece.rstrip() if is_first else piece.strip()


def is_safe(text: str, at: int) -> bool:
    """Return True if a cut before position `at` does not split a name, a number or a character."""
    left, right = text[at - 1], text[at]
    if left.isspace() or right.isspace():
        return True
    if left in _SEPARATORS and right in _SEPARATORS:
        return True
    if left in _CONNECTORS or right in _CONNECTORS:
        return False
    return (_is_spaceless(left) or _is_spaceless(right)) and not _is_glued(left, right)


def head(text: str, limit: int) -> str:
    """Return the longest beginning of at most `limit` characters that ends at a line, or otherwise at a safe
    position.
    """
    if len(text) <= limit:
        return text
    line = text.rfind("\n", 0, limit + 1)
    if line > limit // 2:
        return text[:line]
    at = max(0, limit)
    while at > 0 and not is_safe(text, at):
        at -= 1
    return text[:at]


def tail(text: str, limit: int) -> str:
    """Return the longest ending of at most `limit` characters that starts at a line, or otherwise at a safe
    position.
    """
    if len(text) <= limit:
        return text
    start = len(text) - max(0, limit)
    line = text.find("\n", max(0, start - 1), start + limit // 2)
    if line >= 0:
        return text[line + 1 :]
    while 0 < start < len(text) and not is_safe(text, start):
        start += 1
    return text[start:]


def ends(text: str, most: int) -> str:
    """Return a text reduced to about `most` characters, for readers with a bound.

    A longer text becomes three quarters of that from its beginning and one quarter from its end, on lines of
    their own.
    """
    if len(text) <= most:
        return text
    last = most // 4
    return f"{text[: most - last]}\n{text[len(text) - last :]}"


def _split(line: str) -> Iterator[str]:
    start, end = 0, len(line)
    while end - start > _WHOLE_LINE:
        stop = _best_break(line, start) or _next_break(line, start + PIECE_CHARACTERS)
        yield line[start:stop]
        start = stop
    if line[start:].strip():
        yield line[start:]


def _best_break(line: str, start: int) -> int:
    """Return the best position to break in the second half of a piece: after a clause, or between words; 0 if
    there is none.

    Most lines have white space there, so it is tried first; only runs without white space are searched
    character by character.
    """
    first, last = start + PIECE_CHARACTERS // 2, start + PIECE_CHARACTERS
    best, value = 0, 1
    space = line.rfind(" ", first, last)
    while space > first and value < _CLAUSE:
        found = _AFTER.get(line[space - 1], 2)
        if found > value:
            best, value = space, found
        space = line.rfind(" ", first, space)
    return best or _best_mark(line, first, last)


def _best_mark(line: str, first: int, last: int) -> int:
    best, value = 0, 0
    for at in range(last, first, -1):
        if is_safe(line, at):
            found = _AFTER.get(line[at - 1], 2)
            if found > value:
                best, value = at, found
            if value == _CLAUSE:
                break
    return best


def _next_break(line: str, at: int) -> int:
    while at < len(line) and not is_safe(line, at):
        at += 1
    return at


def _is_spaceless(character: str) -> bool:
    """Return True for Chinese, Japanese and pictures, which may be separated between any two characters."""
    return character >= "\u2e80" and (  # spelled out: it runs for every character of a long text
        character <= "\u9fff"
        or "\uf900" <= character <= "\ufaff"
        or "\uff66" <= character <= "\uff9f"
        or "\U0001f000" <= character <= "\U0001faff"
        or "\U00020000" <= character <= "\U0003ffff"
    )


def _is_glued(left: str, right: str) -> bool:
    """Return True for parts of one picture: joined, coloured, or one of the two letters of a flag."""
    return left in _JOINERS or right in _JOINERS or (right >= "\U0001f1e6" and _completes(left, right))


def _completes(left: str, right: str) -> bool:
    is_flag = "\U0001f1e6" <= right <= "\U0001f1ff" and "\U0001f1e6" <= left <= "\U0001f1ff"
    return is_flag or "\U0001f3fb" <= right <= "\U0001f3ff"


# Test whether a text contains an entry as a whole word or name, not as a part of a longer one.
# `src/a.pyc` does not contain `src/a.py`, nor `ORD-99123` the number `ORD-9912`, nor
# `tests/config.py` the file `config.py`: the characters next to a match decide whether the name
# ends there. Chinese, Japanese and Korean words have no separators: `contains_word` accepts every
# position in such text as the end of a word, and `contains_separate_word` none.

CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
"""Characters of scripts without spaces between words, as ranges for a regular expression."""
_NAME_BEGINS = frozenset("/\\.-_@~")
_NAME_GOES_ON = frozenset("/\\.-@")


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
    if start == 0 or not (is_letter(text[start]) or text[start] in _NAME_BEGINS):
        return False
    before = text[start - 1]
    if before == "/" and text[start - 2 : start] == "./":
        return start > 2 and (is_letter(text[start - 3]) or text[start - 3] in _NAME_BEGINS)
    return is_letter(before) or before in _NAME_BEGINS


def _continues_right(text: str, stop: int, is_letter: Callable[[str], bool]) -> bool:
    """Return True if the match before `stop` is the beginning of a longer name."""
    if stop >= len(text) or not (is_letter(text[stop - 1]) or text[stop - 1] in _NAME_GOES_ON):
        return False
    after = text[stop]
    is_joint = after in _NAME_GOES_ON and text[stop - 1] not in _NAME_GOES_ON
    return is_letter(after) or (is_joint and is_letter(text[stop + 1 : stop + 2]))


def _is_letter(character: str) -> bool:
    return (character.isalnum() or character == "_") and not _is_east_asian(character)


def _is_east_asian(character: str) -> bool:
    return character >= "\u2e80" and not "\ufb00" <= character <= "\ufeff"


def _is_letter_or_mark(character: str) -> bool:
    return character.isalnum() or character == "_" or (character > "\u02ff" and category(character)[0] == "M")
