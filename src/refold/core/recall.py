"""Recall by words: the passages of the originals that fit a query best.

One idea: rare words say more than common ones (BM25), and the index of every original is there already. What comes back is
quoted with its handle, so that the rest of it can be asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from refold.core.summary.extract import render
from refold.core.summary.facts import Facts, Piece, term_ids
from refold.model.tokens import TokenCounter

_SATURATION = 1.2
"""A word said again in one passage says little more."""
_LENGTH = 0.75
"""Long passages hold more words by being long."""


def search(facts: Facts, query: str, *, max_tokens: int, counter: TokenCounter) -> str:
    """Passages that fit the query, best first as long as they fit into `max_tokens`, in the order of the conversation."""
    pieces = facts.pieces(0, facts.position + 1)
    chosen: list[Piece] = []
    left = max_tokens
    for piece in _ranked(pieces, term_ids(facts.log, query)):
        cost = counter.text(f"{facts.label(piece)} {piece.text}\n")
        if cost > left:
            break
        left -= cost
        chosen.append(piece)
    return render(facts, chosen)


def _ranked(pieces: Sequence[Piece], wanted: set[int]) -> list[Piece]:
    found = [piece for piece in pieces if not wanted.isdisjoint(piece.terms)]
    if not found:
        return []
    spread = {term: sum(term in piece.terms for piece in found) for term in wanted}
    average = sum(len(piece.terms) for piece in found) / len(found)
    rarity = {term: log(1 + len(pieces) / (1 + count)) for term, count in spread.items()}

    def score(piece: Piece) -> tuple[float, int]:
        damped = 1 + _SATURATION * (1 - _LENGTH + _LENGTH * len(piece.terms) / average)
        hits = sum(rarity[term] for term in piece.terms if term in wanted)
        return -hits * (1 + _SATURATION) / damped, -piece.number

    return sorted(found, key=score)
