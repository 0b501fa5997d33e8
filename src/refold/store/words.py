"""The words of a text, as both databases index them and as a query asks for them.

One idea: a database's own rules for words differ from the next one's, so text is taken apart here, on both sides, and a database
sees plain words with spaces between them. Letters lose their case and their accents. A script that writes no spaces is taken
apart into single characters, and a run of these is asked for as a phrase.

A query is what somebody typed, never the syntax of a database. What is written without a space (`max_page_count`, `src/a.py`)
must stand together; all of it must be in a message, and where no message has all, any part will do.

How well a message matches is worked out from the message alone, and how rare a word is from the owner's messages alone: with
the statistics of a whole database, one owner's messages would change the order of another's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from math import log as ln
from typing import TypeAlias
from unicodedata import normalize

from refold.store.transactions import Dialect

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
_MOST_PHRASES = 32
"""How much of a query is looked at: a whole page as a query says no more than its beginning."""
CONSIDERED = 2_000
"""Messages that are ranked, the newest of those that match: more of them say that the words tell nothing apart."""
_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 100
"""Words in a message, as they mostly are."""


def words(text: str) -> list[str]:
    """The words of a text in their order, in the spelling in which they are compared."""
    # Most texts are plain, and this is on the way of every message: a table is four times as fast as a pattern.
    found = text.lower().translate(_PLAIN).split() if text.isascii() else _WORD.findall(_fold(text))
    return [word for word in found if len(word) <= _LONGEST]


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


def weigh(parts: Sequence[Phrase], counts: Sequence[int]) -> dict[Phrase, float]:
    """What finding each part is worth: the rarer, the more. Parts that are everywhere are left out, if there are others."""
    weighed, left = dict[Phrase, float](), CONSIDERED
    for count, part in sorted(zip(counts, parts, strict=True), key=lambda one: one[0]):
        if count and (left > 0 or not weighed):
            weighed[part] = ln(1 + CONSIDERED / count)
            left -= count
    return weighed


def worth(counts: Sequence[int], weights: Sequence[float], length: int) -> float:
    """How well a message of so many words matches that holds each part so many times."""
    damping = _SATURATION * (1 - _LENGTH + _LENGTH * length / _AVERAGE)
    return sum(
        weight * count / (count + damping) for count, weight in zip(counts, weights, strict=True) if count
    )


def spell_query(dialect: Dialect, wanted: Sequence[Phrase], *, every: bool) -> str:
    """Phrases in a database's own syntax; words hold letters and digits only, so nothing in them can be taken for it."""
    if dialect == "sqlite":
        return (" AND " if every else " OR ").join(f'"{" ".join(phrase)}"' for phrase in wanted)
    return (" & " if every else " | ").join(f"({' <-> '.join(phrase)})" for phrase in wanted)


@lru_cache(maxsize=1_024)
def scope(owner: str, conversation: str = "") -> str:
    """Marks by which an index knows whose a message is; a mark is a word that no message can hold."""
    return f"{_mark('o', owner)} {_mark('c', owner, conversation)}"


def within(owner: str, conversation: str = "") -> str:
    """The mark to look for when a search is for one conversation, or for one owner."""
    return scope(owner, conversation).split()[1 if conversation else 0]


def _mark(kind: str, *names: str) -> str:
    # In ASCII: a name may hold what is no text at all, and no two lists of names look the same.
    return kind + sha256(ascii(names).encode()).hexdigest()[:24]


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
