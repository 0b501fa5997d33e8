"""The terms of a text: names, numbers, words and phrases that a later turn could refer to.

Every token has a kind. A name, a path or a number has a value of its own; a single word has little, so two
neighbouring words also count as a phrase: text in which phrases survive stays readable. Tokens are found by
one regular expression whose parts cannot overlap, so the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias
from unicodedata import category

from msgspec import Struct

_CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_WORD = rf"[^\W{_CJK}]"
_TOKEN = re.compile(rf"([~./]{{0,12}}{_WORD}+(?:[-./@+%]{{1,4}}{_WORD}+)*|[{_CJK}]+)")
_ATOM = re.compile(r"[^\W_]+(?:_+[^\W_]+)*")
_FAR_EAST = re.compile(f"[{_CJK}]")
_LONGEST = 160
"""A longer token is a blob, not a name that a person would type again."""
_SHORTEST = 3
_REMEMBERED = 50_000
"""The terms of texts up to this many characters are cached."""
PHRASE_GAP = 6
"""Characters: tokens further apart than this are no phrase, because an indentation or a ruler is between
them."""
_STOP_WORDS = """
    the and for that this with from have has are was were you your not but can will would could should into its then than
    there here what which who when where how all any more most some such only own same too very just also about after
    before over under again once our their his her they them she does did been being
"""
_STOP = frozenset(_STOP_WORDS.split())


class TermKind(IntEnum):
    """The kind of a term, which decides its value."""

    LITERAL = 0
    """A path, a dotted, snake or camel name, an id: a string that has to be exact in every letter."""
    NUMBER = 1
    NAME = 2
    """An abbreviation or a hyphenated word: often a name, often not."""
    PART = 3
    """A name inside a longer one, such as the method of a dotted call."""
    WORD = 4
    SMALL = 5
    """A number of one or two digits."""
    PHRASE = 6


VALUES = (1.0, 0.4, 0.3, 0.3, 0.05, 0.05, 0.03)
"""The value of a term of each kind, found by replaying transcripts. Unused numbers come back a third as
often as names. Words and phrases have a small value each, but a line of prose holds a dozen of them."""


_LITERAL, _NUMBER, _NAME, _PART, _WORD_KIND, _SMALL, _PHRASE = TermKind


split_tokens = _TOKEN.split
"""Split a text into its tokens, which are every second element, and the text around them. This takes half the time of
iterating over the matches."""


TokenTerms: TypeAlias = tuple[tuple[str, TermKind], ...]
"""The terms in one token, with their kinds."""


def read_token(token: str) -> tuple[str, bool, TokenTerms]:
    """Return a token in its normal form, whether it is a term, and the terms in it.

    An empty token ends a phrase.
    """
    if token.isalpha() and token.islower() and len(token) <= _LONGEST:  # most tokens, and the same as below
        is_term = len(token) >= _SHORTEST and token not in _STOP
        return token, is_term, ((token, _WORD_KIND),) if is_term else ()
    token = token if "/" in token[:12] else token.lstrip(".~")
    if len(token) > _LONGEST:
        return "", False, ()
    if not token.isascii() and _FAR_EAST.match(token):
        return "", False, tuple(_far_eastern(token))
    kind = kind_of(token)
    if kind is _WORD_KIND:
        token = token.lower()
        is_term = len(token) >= _SHORTEST and token not in _STOP
        return token, is_term, ((token, kind),) if is_term else ()
    is_long = kind is _LITERAL and not token.isalnum()
    return token, True, ((token, kind), *_inside(token)) if is_long else ((token, kind),)


cached_token = lru_cache(maxsize=20_000)(read_token)
"""`read_token` with a cache for as many tokens as a window may hold: conversations repeat themselves."""


class TextTerms(Struct, frozen=True, gc=False):
    """The terms of a text, each once: those of single tokens, and phrases as pairs of tokens."""

    single: frozenset[str]
    phrases: frozenset[tuple[str, str]]

    def __bool__(self) -> bool:
        return bool(self.single)


def terms(text: str) -> TextTerms:
    """Return every term of a text once, cached for texts that are read repeatedly, such as a system prompt or
    a task.
    """
    return _cached_terms(text) if len(text) <= _REMEMBERED else read_terms(text)


def single_terms(text: str) -> Iterator[tuple[str, TermKind]]:
    """Yield every term of a text that is no phrase, in order, with its kind."""
    return (found for token in split_tokens(text)[1::2] for found in cached_token(token)[2])


def read_terms(text: str) -> TextTerms:
    """Return every term of a text once."""
    parts, single, phrases = split_tokens(text), list[TokenTerms](), list[tuple[str, str]]()
    previous, gap = "", 0
    for raw, before in zip(parts[1::2], parts[::2], strict=False):
        token, is_term, own = cached_token(raw)
        single.append(own)
        gap += len(before)
        if not is_term:
            previous, gap = previous if token else "", gap + len(raw)
            continue
        if previous and gap <= PHRASE_GAP:
            phrases.append((previous, token))
        previous, gap = token, 0
    return TextTerms(frozenset([term for own in single for term, _ in own]), frozenset(phrases))


_cached_terms = lru_cache(maxsize=64)(read_terms)


def kind_of(token: str) -> TermKind:
    if token.isdigit():
        return _NUMBER if len(token) > 2 else _SMALL
    if token.isalpha():
        return _kind_of_letters(token)
    if len(token) <= _SHORTEST and "/" not in token:
        return _NUMBER if "." in token else _SMALL
    if token.replace(".", "").isdigit():
        return _NUMBER
    is_compound = "-" in token and token.islower() and token.replace("-", "").isalpha()
    return _NAME if is_compound else _LITERAL


def _kind_of_letters(token: str) -> TermKind:
    if token.islower() or token[1:].islower() or len(token) < _SHORTEST:
        return _WORD_KIND
    if token.isupper():
        return _NAME if len(token) <= 12 else _WORD_KIND
    is_cased = token.lower() != token.upper()
    return _LITERAL if is_cased and len(token) > _SHORTEST else _WORD_KIND


def _inside(token: str) -> list[tuple[str, TermKind]]:
    found = list[tuple[str, TermKind]]()
    for atom in _ATOM.findall(token):
        if len(atom) > _SHORTEST and atom != token:
            if atom.isalpha() and atom.islower():  # most of them: what `kind_of` says, without the call
                found.append((atom, _WORD_KIND))
            else:
                is_word = kind_of(atom) is _WORD_KIND
                found.append((atom.lower(), _WORD_KIND) if is_word else (atom, _PART))
    return found


def _far_eastern(run: str) -> Iterator[tuple[str, TermKind]]:
    """Yield every pair of characters of a run without spaces as a word."""
    if len(run) == 1:
        yield run, TermKind.WORD
    for at in range(min(len(run) - 1, _LONGEST)):
        yield run[at : at + 2], TermKind.WORD


# Weights: factors that make a term more or less likely to be needed again.


class Weights(Struct, frozen=True):
    age: float = 0.55
    """The odds of being used again fall with the age, in windows, to this power."""
    youngest: float = 0.25
    """Below this age, in windows, the odds do not rise further: all such terms belong to the current work."""
    used: float = 4.0
    """A term that the assistant has used n times is (1 + this × n) to the power of `habit` as likely to be
    used again."""
    habit: float = 0.65
    asked: float = 1.5
    """Factor of a term that the user has said."""
    repeated: float = 1.4
    """Factor of a term that the assistant has not used, but more than one message holds."""
    overhead: float = 10.0
    """Characters added to the length of every piece, so that the shortest ones do not win only by being
    short."""
    crowd: float = 0.2
    """When a message has taken this share of the room, its pieces are worth half: a list of a hundred ids
    would fill it."""
    own: float = 6.0
    """Factor for pieces of the assistant's words and calls: rows of data have more names, and say less about what was
    done and why. From 1 to 6, a real model gets more out of the digest, and it holds fewer single names of results."""
    cut_off: float = 0.5
    """Factor for pieces of a message that is shown in part: some of its content is visible already."""

    def standing(self, used: int, *, is_repeated: bool, is_asked: bool) -> float:
        """Return the odds that a term comes back, without its age, if the assistant has used it in `used`
        messages.
        """
        odds = float((1 + self.used * used) ** self.habit)
        if is_asked:
            odds *= self.asked
        if is_repeated and not used:
            odds *= self.repeated
        return odds


DEFAULT = Weights()


# Test whether a text contains an entry as a whole word or name, not as a part of a longer one.
# `src/a.pyc` does not contain `src/a.py`, nor `ORD-99123` the number `ORD-9912`, nor
# `tests/config.py` the file `config.py`: the characters next to a match decide whether the name
# ends there. Chinese, Japanese and Korean words have no separators: `contains_word` accepts every
# position in such text as the end of a word, and `contains_separate_word` none.

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
