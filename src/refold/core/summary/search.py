"""Find what was said: the passages of a conversation that answer a query.

One idea: whoever asks lacks something, so what is in sight already is not worth showing again. Pieces are ranked by how well
they match the query (BM25 over the terms of the index, neighbours lending each other support) times what they would add.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from heapq import nlargest
from math import log as ln

from refold.core.summary.choose import Worth
from refold.core.summary.extract import CHARACTERS_PER_TOKEN, render
from refold.core.summary.facts import Facts, Piece, term_ids
from refold.model.tokens import TokenCounter

_SATURATION = 1.2
_LENGTH = 0.75
_NEIGHBOUR = 0.5
"""How much of a neighbour's score a piece gets: an answer often stands on the line after the words that were asked for."""
_CONSIDERED = 400
"""How many of the best matches are looked at closely."""
_FLOOR = 0.1
"""What a match is worth that adds nothing: something is better than no answer."""


def find(
    facts: Facts,
    query: str,
    *,
    budget: int,
    window: int,
    counter: TokenCounter,
    covered: AbstractSet[int] = frozenset(),
) -> str:
    """The best answers to a query in at most `budget` tokens, each with its handle; empty where nothing matches."""
    scores = _scores(facts, term_ids(facts.log, query))
    worth = Worth(facts, window * CHARACTERS_PER_TOKEN)
    pieces = facts.shared.pieces
    best = nlargest(_CONSIDERED, scores, key=lambda number: (scores[number], number))
    ranked = sorted(best, key=lambda n: (-scores[n] * (_FLOOR + worth.gain(pieces[n], covered)), -n))
    return render(facts, _new_ones(facts, (pieces[n] for n in ranked), worth, covered, budget, counter))


def _scores(facts: Facts, query: set[int]) -> dict[int, float]:
    """How well each piece matches, its neighbours in the same message included; only pieces that match at all."""
    log = facts.log
    total = len(log.messages)
    rarity = {term: ln(1 + (total - log.spread[term] + 0.5) / (log.spread[term] + 0.5)) for term in query}
    average = sum(len(piece.terms) for piece in log.pieces) / max(1, len(log.pieces))
    own = {
        piece.number: sum(rarity[term] for term in matching) / _damping(piece, average)
        for piece in log.pieces
        if (matching := query.intersection(piece.terms))
    }
    spread = dict(own)
    for number, score in own.items():
        for near in (number - 1, number + 1):
            if 0 <= near < len(log.pieces) and log.pieces[near].seq == log.pieces[number].seq:
                spread[near] = spread.get(near, 0.0) + _NEIGHBOUR * score
    return spread


def _damping(piece: Piece, average: float) -> float:
    length = 1 - _LENGTH + _LENGTH * len(piece.terms) / max(1.0, average)
    return (1 + _SATURATION * length) / (1 + _SATURATION)


def _new_ones(
    facts: Facts,
    ranked: Iterable[Piece],
    worth: Worth,
    covered: AbstractSet[int],
    budget: int,
    counter: TokenCounter,
) -> Sequence[Piece]:
    """The best pieces that add to each other and to what is in sight, as many as fit."""
    seen, chosen, used = set(covered), list[Piece](), 0
    labelled = set[tuple[int, int]]()
    for piece in ranked:
        if worth.gain(piece, seen) <= 0:
            continue
        source = piece.seq, piece.part
        used += counter.text(f"… {piece.text}\n") + 1
        used += 0 if source in labelled else counter.text(facts.label(piece)) + 1
        if used > budget:
            break
        labelled.add(source)
        seen.update(piece.terms)
        chosen.append(piece)
    return chosen
