"""Find what was said: the passages of a conversation that answer a query.

One idea: whoever asks lacks something, so what is in sight already is not worth showing again. Pieces are ranked by how well
they and the message around them match the query, times what they would add; those that hold a term of the query are looked
up in the index, so the time follows the matches and not the length of the conversation.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from heapq import nlargest
from math import log as ln
from math import sqrt

from refold.core.summary.alike import quote
from refold.core.summary.choose import Worth, choose
from refold.core.summary.extract import CHARACTERS_PER_TOKEN, fitting
from refold.core.summary.facts import Facts, term_ids
from refold.core.summary.log import Log, label_of
from refold.model.tokens import TokenCounter

_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 12
"""Terms in a piece, as they are mostly split."""
_NEIGHBOUR = 0.5
"""How much of a neighbour's score a piece gets: an answer often stands on the line after the words that were asked for."""
_MESSAGE = 0.6
"""How much of its message's score a piece gets: a list is named in its first line, and the answer stands in any other."""
_LONG_MESSAGE = 20
"""Pieces: the longer a message, the less it says about each of them that some match."""
_MESSAGES = 50
"""How many of the messages that match best lend to their pieces."""
_CONSIDERED = 1_500
"""How many of the best matches are looked at closely."""
_MATCHES = 30_000
"""How many places are looked up for a query, rare terms first: words that are everywhere tell nothing apart."""


def find(
    facts: Facts,
    query: str,
    *,
    budget: int,
    window: int,
    counter: TokenCounter,
    covered: AbstractSet[int] = frozenset(),
    before: int | None = None,
) -> str:
    """The best answers to a query in at most `budget` tokens, each with its handle; empty where nothing matches.

    Where nothing is spelled as in the query, another spelling will do. `covered` are terms that whoever asks can see already, and only what was said `before` a message is looked at.
    """
    log, pieces = facts.log, facts.known.pieces
    scores = _scores(log, term_ids(log, query))
    said = scores if before is None else [number for number in scores if pieces[number].seq < before]
    if not said:
        earlier = [piece for piece in log.pieces if before is None or piece.seq < before]
        return quote(earlier, query, budget=budget, counter=counter)
    best = nlargest(_CONSIDERED, said, key=lambda number: (scores[number], number))
    found = choose(
        [pieces[number] for number in best],
        Worth(facts, window * CHARACTERS_PER_TOKEN),
        covered,
        budget * CHARACTERS_PER_TOKEN,
        label=label_of,
        factor=lambda piece: scores[piece.number],
    )
    return fitting(found.chosen, budget, counter)[1]


def _scores(log: Log, query: set[int]) -> dict[int, float]:
    """How well pieces match: they themselves, their neighbours, and the message they stand in."""
    own, messages = _matches(log, query)
    scores = {number: score / _damping(len(log.pieces[number].terms)) for number, score in own.items()}
    spread = dict(scores)
    for number, score in scores.items():
        for near in (number - 1, number + 1):
            if 0 <= near < len(log.pieces) and log.pieces[near].seq == log.pieces[number].seq:
                spread[near] = spread.get(near, 0.0) + _NEIGHBOUR * score
    for at in nlargest(_MESSAGES, messages, key=lambda at: (messages[at], at)):
        start, stop = log.messages[at - 1].stop if at else 0, log.messages[at].stop
        score = _MESSAGE * messages[at] / sqrt(1 + (stop - start) / _LONG_MESSAGE)
        for number in range(start, stop):
            spread[number] = spread.get(number, 0.0) + score
    return spread


def _matches(log: Log, query: set[int]) -> tuple[dict[int, float], dict[int, float]]:
    """The pieces and the messages that hold terms of the query, with what these terms weigh together."""
    own, messages, left = dict[int, float](), dict[int, float](), _MATCHES
    holders = log.holders
    for term in sorted(query & holders.keys(), key=lambda term: (len(holders[term]), term)):
        held = holders[term]
        left -= len(held)
        if left < 0:
            break
        rarity = _rarity(log, term)
        for number in held:
            own[number] = own.get(number, 0.0) + rarity
        for at in {log.place(number) for number in held}:
            messages[at] = messages.get(at, 0.0) + rarity
    phrases = {term: _rarity(log, term) for term in query - holders.keys()}
    for number in own:
        own[number] += sum([phrases[term] for term in log.pieces[number].terms if term in phrases])
    return own, messages


def _rarity(log: Log, term: int) -> float:
    rest = len(log.messages) - log.spread[term]
    return ln(1 + (rest + 0.5) / (log.spread[term] + 0.5))


def _damping(terms: int) -> float:
    length = 1 - _LENGTH + _LENGTH * terms / _AVERAGE
    return (1 + _SATURATION * length) / (1 + _SATURATION)
