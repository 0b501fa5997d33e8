"""Search: find the passages of a conversation that answer a query.

Pieces are ranked by the match of the piece and of its message with the query, times the value of the terms
that the reader cannot see yet: a passage that is already visible is not worth showing again. Matching pieces
are looked up in the index, so the time depends on the number of matches and not on the length of the
conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from heapq import nlargest
from itertools import chain, count, zip_longest
from math import log as ln
from math import sqrt

from refold.core.digest.extract import CHARACTERS_PER_TOKEN, TermValues, choose, fitting
from refold.core.digest.facts import FactLog, Facts, Piece, label_of, term_ids, terms, text_of
from refold.core.digest.pieces import bare, lines
from refold.core.search.query import Phrase, fragments, phrases, spaced
from refold.core.stage import handle_of
from refold.model.message import Message, Reasoning
from refold.model.tokens import TokenCounter

# Quotations for queries whose spelling differs from the text.

_PORTION = 20_000
"""Characters of a long text that are split for quotation: the portion with the most matches. A log may
have millions."""
_LONGEST_PIECE = 400
"""Quoted characters of a piece that has no place to break it: more of a blob says no more."""
_MOST_PIECES = 1_000_000
"""More pieces than a message has: the number of a piece is composed of its message and its place in the
message."""


def significant_words(query: str) -> str:
    """Return the significant words of a query; all words if none is significant, such as `the` or `C++`."""
    return " ".join(word for word in query.split() if terms(word)) or query


def mentions(message: Message, query: str) -> bool:
    """Return True if the message holds a significant word of the query, in any spelling."""
    wanted = _PhraseCounter(fragments(phrases(significant_words(query))))
    return any(wanted.count(text_of(part)) for part in message.parts if type(part) is not Reasoning)


def quote(pieces: Sequence[Piece], query: str, *, budget: int, counter: TokenCounter) -> str:
    """Return the pieces with the most matches, in at most `budget` tokens; empty if none matches."""
    found = _PhraseCounter(phrases(significant_words(query))).held(pieces)
    newest = sorted(found, key=lambda place: (found[place], place), reverse=True)[:budget]
    return fitting(_with_neighbours(pieces, newest), budget, counter)[1]


def excerpt(
    facts: Facts, said: Sequence[tuple[int, Message]], query: str, *, budget: int, counter: TokenCounter
) -> str:
    """Return the passages of messages about a query, or their beginnings if none matches, as many as fit.

    Earlier messages of the list come first. Empty only if the messages have no text or the budget has no room
    for a handle.
    """
    told = [_pieces_by_match(facts, message, seq, query)[:budget] for seq, message in said]
    by_turns = chain.from_iterable(zip_longest(*told))  # so that one message does not take all the room
    chosen = [piece for piece in by_turns if piece is not None][:budget]
    return fitting(chosen, budget, counter)[1] or (_cut_piece(chosen[0], budget, counter) if chosen else "")


class _PhraseCounter:
    """The phrases of a query, in a form that is fast to count in texts."""

    def __init__(self, wanted: Sequence[Phrase]) -> None:
        self._spelt = [f" {' '.join(phrase)} " for phrase in wanted]
        self._needed = {max(phrase, key=len) for phrase in wanted}

    def count(self, text: str) -> int:
        """Return the number of phrases that a text holds."""
        # Most texts hold none, and a substring test is far faster than splitting into words.
        if text.isascii() and not any(map(text.lower().__contains__, self._needed)):
            return 0
        words = f" {spaced(text)} "
        return sum(phrase in words for phrase in self._spelt)

    def held(self, pieces: Sequence[Piece]) -> dict[int, int]:
        """Map the positions of the pieces that hold phrases to the number of phrases."""
        counts = enumerate(self.count(piece.text) for piece in pieces)
        return {place: held for place, held in counts if held}

    def portion(self, text: str) -> str:
        """Return the part of a long text that holds the most phrases; the first of equals."""
        return max(_portions(text), key=self.count) if len(text) > _PORTION else text


def _portions(text: str) -> Iterator[str]:
    """Split a long text into portions that end at a line end if there is one."""
    start = 0
    while start < len(text):
        line = text.rfind("\n", start, start + _PORTION)
        stop = line + 1 if line > start else start + _PORTION
        yield text[start:stop]
        start = stop


def _pieces_by_match(facts: Facts, message: Message, seq: int, query: str) -> list[Piece]:
    """Return the pieces of a message, those with the most matches first."""
    own = list[Piece]()
    for wanted in _interpretations(query):
        own = list(_pieces_of(facts, message, seq, wanted))
        if found := wanted.held(own):
            return _with_neighbours(own, sorted(found, key=lambda place: -found[place]))
    return own


def _interpretations(query: str) -> Iterator[_PhraseCounter]:
    """Yield interpretations of a query, from the most specific to the least."""
    for words in dict.fromkeys((significant_words(query), query)):
        yield _PhraseCounter(phrases(words))
        yield _PhraseCounter(fragments(phrases(words)))


def _with_neighbours(pieces: Sequence[Piece], found: Sequence[int]) -> list[Piece]:
    """Return the pieces at these positions, then their neighbours in the same message, which often contain
    the answer.
    """
    near = [(place, beside) for place in found for beside in (place - 1, place + 1)]
    inside = [(place, beside) for place, beside in near if 0 <= beside < len(pieces)]
    beside = [pieces[other] for place, other in inside if pieces[other].seq == pieces[place].seq]
    known = {piece.number: piece for piece in [*(pieces[place] for place in found), *beside]}
    return list(known.values())


def _pieces_of(facts: Facts, message: Message, seq: int, wanted: _PhraseCounter) -> Iterator[Piece]:
    """Yield the pieces of a message, also of parts that are too long to be indexed completely."""
    labels = {piece.part: piece.label for piece in facts.pieces(seq, seq + 1)}
    numbers, before = count(), ""
    for place, part in enumerate(one for one in message.parts if type(one) is not Reasoning):
        label = labels.get(place, f"{handle_of(seq)} {message.role}:")
        for line, split in enumerate(lines(wanted.portion(text_of(part)))):
            for at, raw in enumerate(split):
                index, is_spaced, before = next(numbers), raw.startswith(" ") or before.endswith(" "), raw
                number = seq * _MOST_PIECES + index
                yield Piece(
                    number,
                    seq,
                    place,
                    index,
                    _limit_length(bare(raw, is_first=not at)),
                    (),
                    0,
                    line,
                    is_spaced,
                    label,
                )


def _limit_length(text: str) -> str:
    return text if len(text) <= _LONGEST_PIECE else f"{text[:_LONGEST_PIECE]}…"


def _cut_piece(piece: Piece, budget: int, counter: TokenCounter) -> str:
    """Return as much of a piece as fits after its label."""
    stop = len(piece.text)
    while stop >= 0:
        text = f"{piece.label} {piece.text[:stop]}…"
        tokens = counter.text(text)
        if tokens <= budget:
            return text
        stop = min(stop - 1, stop * budget // tokens)
    return ""


# Ranking of indexed pieces (BM25, with shares from neighbours and from the message).

_SATURATION = 1.2
_LENGTH = 0.75
_AVERAGE = 12
"""Terms in a typical piece."""
_NEIGHBOUR = 0.5
"""Share of a neighbour's score that a piece gets: an answer is often on the line after the words of the
query."""
_MESSAGE = 0.6
"""Share of its message's score that a piece gets: a list is named in its first line, and the answer may be
on any other line."""
_LONG_MESSAGE = 20
"""Pieces: the more pieces a message has, the less its score says about each of them."""
_MESSAGES = 50
"""Only this many of the best messages add to the scores of their pieces."""
_CONSIDERED = 1_500
"""Limit of the best matches that are evaluated."""
_MATCHES = 30_000
"""Limit of index entries that are looked up for a query, rare terms first: words that occur everywhere
distinguish nothing."""


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
    """Return the best answers to a query in at most `budget` tokens, each with its handle; empty if nothing
    matches.

    If nothing matches in the spelling of the query, other spellings are tried. `covered` are terms that the
    reader can see already. Only messages `before` the given number are searched.
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
        TermValues(facts, window * CHARACTERS_PER_TOKEN),
        covered,
        budget * CHARACTERS_PER_TOKEN,
        label=label_of,
        factor=lambda piece: scores[piece.number],
    )
    return fitting(found.chosen, budget, counter)[1]


def _scores(log: FactLog, query: set[int]) -> dict[int, float]:
    """Return the score of each matching piece: its own matches, its neighbours' and its message's."""
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


def _matches(log: FactLog, query: set[int]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the summed weights of the query's terms for each piece and for each message that hold any."""
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


def _rarity(log: FactLog, term: int) -> float:
    rest = len(log.messages) - log.spread[term]
    return ln(1 + (rest + 0.5) / (log.spread[term] + 0.5))


def _damping(terms: int) -> float:
    length = 1 - _LENGTH + _LENGTH * terms / _AVERAGE
    return (1 + _SATURATION * length) / (1 + _SATURATION)
