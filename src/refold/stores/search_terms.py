"""Search terms: the searchable text of a message, marks of owners for an index, and the score of a match.

Each database has its own rules for words, so `refold.core.search_terms` splits texts and queries into words, and a database sees plain words
with spaces between them. A query is never interpreted as a database's search syntax.

A match is scored from the message alone, and the rarity of a word from the owner's messages alone: with statistics of the whole
database, one owner's messages would change the order of another's results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from math import log as ln

from refold.core.digest.facts import text_of
from refold.core.search_terms import Phrase
from refold.model.errors import Damaged
from refold.model.message import Reasoning
from refold.ports.stored_messages import read_body

CONSIDERED = 2_000
"""Number of matching messages, newest first, that are ranked: if there are more, the words do not discriminate."""
_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 100
"""Usual number of words in a message."""


def weigh(parts: Sequence[Phrase], counts: Sequence[int]) -> dict[Phrase, float]:
    """The weight of each part of a query: rare parts weigh more. Parts that occur everywhere are left out, if there are others."""
    weighed, left = dict[Phrase, float](), CONSIDERED
    for count, part in sorted(zip(counts, parts, strict=True), key=lambda one: one[0]):
        if count and (left > 0 or not weighed):
            weighed[part] = ln(1 + CONSIDERED / count)
            left -= count
    return weighed


def worth(counts: Sequence[int], weights: Sequence[float], length: int) -> float:
    """The score of a message, from its number of words and the occurrences of each part."""
    damping = _SATURATION * (1 - _LENGTH + _LENGTH * length / _AVERAGE)
    return sum(
        weight * count / (count + damping) for count, weight in zip(counts, weights, strict=True) if count
    )


def said(wire: str, body: bytes) -> str:
    """The searchable text of a message: all but reasoning; empty if its content is not stored or damaged."""
    try:
        message = read_body(body, wire) if body else None
    except Damaged:
        message = None
    if message is None:
        return ""
    return "\n".join(text_of(part) for part in message.parts if not isinstance(part, Reasoning))


@lru_cache(maxsize=1_024)
def scope(owner: str, conversation: str = "") -> str:
    """The marks of a message's owner and conversation in an index; a mark is a word that no message can contain."""
    return f"{_mark('o', owner)} {_mark('c', owner, conversation)}"


def within(owner: str, conversation: str = "") -> str:
    """The mark that a search for one conversation, or for one owner, requires."""
    return scope(owner, conversation).split()[1 if conversation else 0]


def _mark(kind: str, *names: str) -> str:
    # In ASCII: a name may contain characters that are no letters, and different lists of names must give different marks.
    return kind + sha256(ascii(names).encode()).hexdigest()[:24]
