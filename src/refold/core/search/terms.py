"""Normalise the words of texts and queries for comparison.

People spell in their own ways, so letters lose their case and accents, and every punctuation mark separates
words. A script without spaces is split into single characters, and a run of these in a query is searched as a
phrase. Text of a query without a space (`max_page_count`, `src/a.py`) must match as consecutive words. Words of
long runs of base64 are left out: each of them is unique, so they would fill the index, and nobody searches for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias
from unicodedata import category, normalize

Phrase: TypeAlias = tuple[str, ...]
"""Consecutive words."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u30fa\u30fc-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_MARKS = "\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
"""Signs that belong to the letter before them and that Python does not count as letters."""
_WORD = re.compile(rf"[{_UNSPACED}]|(?:[^\W_{_UNSPACED}]++|[{_MARKS}]++)++")
_PLAIN = {code: " " for code in range(128) if not chr(code).isalnum()}
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_LONGEST = 100
"""Characters. A longer word is encoded data: it would fill the index, and people do not type it."""
_STEP = 64 * 1024
"""Characters that are split at a time."""
_RUN = re.compile(r"[A-Za-z0-9+/=_-]++")
"""Characters of base64, in both of its alphabets."""
_LONGEST_RUN = 4_096
"""Characters of base64 in a row that are still words: longer than paths, keys and signatures are."""
_SIGNS, _MOST_SIGNS = "+/=_-", 1 / 16
"""The characters of base64 that are in no word. Their share is 1/32 in base64, and larger where they stand between words."""
_BLOCK = _LONGEST_RUN // 2
"""A longer run contains a whole block of this size, wherever it begins."""
MAX_QUERY = 1_000
"""Characters of a query that are read: a longer one is a text, and its beginning says what it is about. Every
message that matches is compared with all words of the query."""
MOST_PHRASES = 32
"""Limit of phrases of a query: a whole page as a query says no more than its beginning."""


def limit_query(query: str) -> str:
    """Return the part of a query that is searched for: its first `MAX_QUERY` characters, up to the end of a
    word if there is one.
    """
    if len(query) <= MAX_QUERY:
        return query
    kept = query.lstrip()[: MAX_QUERY + 1]
    if len(kept) <= MAX_QUERY or kept[-1].isspace() or len(kept.split(maxsplit=1)) == 1:
        return kept[:MAX_QUERY]
    return kept.rsplit(maxsplit=1)[0]


def words(text: str) -> list[str]:
    """Return the normalised words of a text, in order."""
    if len(text) <= _STEP:
        return _words(text)
    return [word for piece in _pieces(text) for word in _words(piece)]


def _words(text: str) -> list[str]:
    if len(text) > _LONGEST_RUN and any(
        _is_unbroken(text, at) for at in range(0, len(text) - _BLOCK, _BLOCK)
    ):
        text = _RUN.sub(_word_or_blank, text)
    # Most texts are ASCII, and this runs for every message: a table is four times as fast as a
    # pattern.
    found = text.lower().translate(_PLAIN).split() if text.isascii() else _WORD.findall(_fold(text))
    return [word for word in found if len(word) <= _LONGEST]


def _is_of_word(character: str) -> bool:
    return character.isalnum() or category(character).startswith("M")


def _is_unbroken(text: str, start: int) -> bool:
    """True if a block of a text has no blank, so that it may be in a long run. In prose the first blank is near."""
    return text.find(" ", start, start + _BLOCK) < 0 and text.find("\n", start, start + _BLOCK) < 0


def _word_or_blank(run: re.Match[str]) -> str:
    """Return a blank in place of a long run of base64, and words with signs between them, or a line of signs, as they are."""
    found = run[0]
    if len(found) <= _LONGEST_RUN:
        return found
    return found if sum(map(found.count, _SIGNS)) > len(found) * _MOST_SIGNS else " "


def _pieces(text: str) -> Iterator[str]:
    """Split a long text: one call over megabytes would hold the interpreter's lock for half a second. It is split
    before a blank, or before another character that is in no word, or, inside of data without any, anywhere.
    """
    start = 0
    while len(text) - start > _STEP:
        end = start + _STEP
        stop = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
        if stop < 0:
            nearest = range(end, end - _LONGEST, -1)
            stop = next((at for at in nearest if not _is_of_word(text[at])), end)
        yield text[start:stop]
        start = stop
    yield text[start:]


def words_by_piece(text: str) -> Iterator[list[str]]:
    """Yield the words of a text piece by piece: a list of all words would take ten times the memory of a long text."""
    return map(_words, _pieces(text))


def spaced(text: str) -> str:
    """Return a text in the form in which it is indexed."""
    if len(text) <= _STEP:
        return " ".join(_words(text))
    pieces = [words for some in words_by_piece(text) if (words := " ".join(some))]
    del text
    return " ".join(pieces)


def phrases(query: str) -> list[Phrase]:
    """Return the phrases of a query, each once: words that were written without a space form one phrase."""
    found = (tuple(words(chunk)) for chunk in limit_query(query).split())
    return list(dict.fromkeys(phrase for phrase in found if phrase))[:MOST_PHRASES]


def fragments(wanted: Sequence[Phrase]) -> list[Phrase]:
    """Return the smallest useful parts of phrases: a word, or two neighbours if words are single
    characters.
    """
    parts = (part for phrase in wanted for part in _parts(phrase))
    return list(dict.fromkeys(parts))[:MOST_PHRASES]


def _fold(text: str) -> str:
    # Decomposed twice: lower-case letters can have accents that their capitals did not have.
    apart = normalize("NFKD", normalize("NFKD", text).casefold())
    return normalize("NFC", _ACCENTS.sub("", apart))


def _parts(phrase: Phrase) -> list[Phrase]:
    """Return the words of a phrase, and its runs of single characters as pairs of neighbours."""
    unspaced = [_IS_UNSPACED.match(word) is not None for word in phrase]
    parts: list[Phrase] = [(word,) for word, single in zip(phrase, unspaced, strict=True) if not single]
    pairs = [pair for pair, both in zip(pairwise(phrase), pairwise(unspaced), strict=True) if all(both)]
    if not pairs and not parts:
        return [phrase]
    return parts + pairs
