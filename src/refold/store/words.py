"""What a search asks a database for, and what it makes of the answer.

One idea: a database's own rules for words differ from the next one's, so text is taken apart by `refold.core.search_terms`, on both
sides, and a database sees plain words with spaces between them. A query is never the syntax of a database. All of it must be in a
message, and where no message has all, any part will do.

How well a message matches is worked out from the message alone, and how rare a word is from the owner's messages alone: with
the statistics of a whole database, one owner's messages would change the order of another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from math import log as ln

from refold.core.digest.facts import text_of
from refold.core.search_terms import Phrase
from refold.model.dialect import DIALECTS
from refold.model.errors import WireError
from refold.model.message import Reasoning
from refold.store.transactions import Dialect
from refold.wire.message import decode_message

CONSIDERED = 2_000
"""Messages that are ranked, the newest of those that match: more of them say that the words tell nothing apart."""
_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 100
"""Words in a message, as they mostly are."""


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


def said(wire: str, body: bytes) -> str:
    """What search finds of a message: all but thoughts, and nothing where it was not kept or cannot be read any more."""
    try:
        message = decode_message(body, DIALECTS[wire])  # type: ignore[index]
    except (WireError, KeyError):
        return ""
    return "\n".join(text_of(part) for part in message.parts if not isinstance(part, Reasoning))


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
