"""The words of a text, and of a query, in the spelling in which they are compared.

One idea: what people type is spelled in their own way, so letters lose their case and their accents, and every mark parts words. A
script that writes no spaces is taken apart into single characters, and a run of these is asked for as a phrase.

A query is what somebody typed. What is written without a space (`max_page_count`, `src/a.py`) must stand together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias
from unicodedata import normalize

Phrase: TypeAlias = tuple[str, ...]
"""Words that follow each other."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u30fa\u30fc-\u318f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_MARKS = "\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
"""Signs that belong to the letter before them and that Python does not count among letters."""
_WORD = re.compile(rf"[{_UNSPACED}]|(?:[^\W_{_UNSPACED}]++|[{_MARKS}]++)++")
_PLAIN = {code: " " for code in range(128) if not chr(code).isalnum()}
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_LONGEST = 100
"""Characters. What is longer is encoded data: it would fill the index, and nobody types it."""
_STEP = 64 * 1024
"""Characters that are taken apart at a time."""
_MOST_PHRASES = 32
"""How much of a query is looked at: a whole page as a query says no more than its beginning."""


def words(text: str) -> list[str]:
    """The words of a text in their order, in the spelling in which they are compared."""
    if len(text) <= _STEP:
        return _words(text)
    return [word for piece in _pieces(text) for word in _words(piece)]


def _words(text: str) -> list[str]:
    # Most texts are plain, and this is on the way of every message: a table is four times as fast as a pattern.
    found = text.lower().translate(_PLAIN).split() if text.isascii() else _WORD.findall(_fold(text))
    return [word for word in found if len(word) <= _LONGEST]


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces, parted before blanks: one call over megabytes would hold the interpreter's lock for half a second."""
    start = 0
    while len(text) - start > _STEP:
        stop = max(text.rfind(" ", start + 1, start + _STEP), text.rfind("\n", start + 1, start + _STEP))
        if stop < 0:
            later = (text.find(blank, start + _STEP) for blank in " \n")
            stop = min((at for at in later if at >= 0), default=len(text))
        yield text[start:stop]
        start = stop
    yield text[start:]


def spaced(text: str) -> str:
    """A text as it goes into an index."""
    return " ".join(words(text))


def phrases(query: str) -> list[Phrase]:
    """What a query asks for: everything in it that was written together, once."""
    found = (tuple(words(chunk)) for chunk in query.split())
    return list(dict.fromkeys(phrase for phrase in found if phrase))[:_MOST_PHRASES]


def fragments(wanted: Sequence[Phrase]) -> list[Phrase]:
    """The smallest parts worth finding of phrases: a word, or two neighbours where words are single characters."""
    parts = (part for phrase in wanted for part in _parts(phrase))
    return list(dict.fromkeys(parts))[:_MOST_PHRASES]


def _fold(text: str) -> str:
    # Taken apart twice: small letters can have accents of their own that the large ones did not have.
    apart = normalize("NFKD", normalize("NFKD", text).casefold())
    return normalize("NFC", _ACCENTS.sub("", apart))


def _parts(phrase: Phrase) -> list[Phrase]:
    """Words of their own, and runs of single characters as pairs of neighbours."""
    unspaced = [_IS_UNSPACED.match(word) is not None for word in phrase]
    parts: list[Phrase] = [(word,) for word, single in zip(phrase, unspaced, strict=True) if not single]
    pairs = [pair for pair, both in zip(pairwise(phrase), pairwise(unspaced), strict=True) if all(both)]
    if not pairs and not parts:
        return [phrase]
    return parts + pairs
