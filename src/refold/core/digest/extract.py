"""The passages of a conversation that are worth their room: for a digest, and for a query.

A digest quotes the messages that leave the window. Pieces are chosen for the terms that are not visible elsewhere
in the window, and are quoted in order under the handle of their message. The next digest chooses again among these
pieces and a reserve of those that were nearly chosen, so old and new pieces compete for the same room and the size
stays bounded over any number of cycles.

For a query, pieces are ranked by the match of the piece and of its message, times the value of the terms that the
reader cannot see yet: a passage that is already visible is not worth showing again. Matching pieces are looked up
in the index, so the time depends on the number of matches and not on the length of the conversation.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nlargest
from itertools import chain, compress, count, repeat, zip_longest
from math import exp, floor, log, sqrt
from math import log as ln
from operator import attrgetter, mul

from msgspec import Struct

from refold.core.digest.facts import (
    MAX_CHARACTERS,
    FactLog,
    Facts,
    Piece,
    Weights,
    label_of,
    term_ids,
    terms,
    text_of,
)
from refold.core.digest.line_markers import quoted_line, quoted_lines
from refold.core.digest.pieces import bare, ends, lines
from refold.core.search.query import Phrase, fragments, phrases, spaced
from refold.core.stage import handle_of
from refold.model.message import Message, Reasoning, visible
from refold.model.tokens import TokenCounter

# Choice of pieces: greedy, by the value of the terms that are not covered yet, per character.

_SEPARATOR = 3
"""Characters between two pieces: a line end, and an ellipsis for omitted text."""
_STEP = 0.8
"""Ratio between the values of two neighbouring steps."""
_STEPS = -1 / log(_STEP)


class TermValues(dict[int, float]):
    """The current value of each term, computed when it is first read."""

    def __init__(self, facts: Facts, window_characters: int) -> None:
        super().__init__()
        known = facts.log
        self.standing, self.last, self.weights = known.standing, known.last, known.weights
        self.fading = _AgeFactors(facts.position, max(1, window_characters), known.weights)

    def __missing__(self, term: int) -> float:
        value = self[term] = self.standing[term] * self.fading[self.last[term]]
        return value

    def learn(self, terms: AbstractSet[int]) -> None:
        """Compute the values of many terms at once, which is faster."""
        positions = [*map(self.last.__getitem__, terms)]
        self.fading.learn({*positions})
        ages = map(self.fading.__getitem__, positions)
        self.update(zip(terms, map(mul, map(self.standing.__getitem__, terms), ages), strict=True))


class _AgeFactors(dict[int, float]):
    """The factor by which age reduces the value of a term, by the last position of the term."""

    def __init__(self, now: int, window: int, weights: Weights) -> None:
        super().__init__()
        self.now, self.window, self.youngest, self.power = now, window, weights.youngest, -weights.age

    def __missing__(self, position: int) -> float:
        self.learn((position,))
        return self[position]

    def learn(self, positions: Iterable[int]) -> None:
        """Compute the factors of many positions at once."""
        now, window, youngest, power = self.now, self.window, self.youngest, self.power
        self.update({one: float(max(youngest, (now - one) / window) ** power) for one in positions})


class Choice(Struct, frozen=True):
    chosen: tuple[Piece, ...]
    """Best first."""
    ranked: tuple[Piece, ...]
    """Every piece with a value above zero, best first, as ranked before the first was chosen."""


class _Source(Struct, eq=False, gc=False):
    """The state of all offers under one label: the unpaid length of the label, and the characters taken."""

    label: int
    taken: int = 0


class _Offer(Struct, eq=False, gc=False):
    """A piece that could be chosen, its terms that are not covered yet, and their value."""

    piece: Piece
    fresh: Sequence[int]
    source: _Source
    length: float
    factor: float
    gain: float
    value: float
    """The gain per character before the first piece was chosen."""
    taken: bool = False


def choose(
    candidates: Iterable[Piece],
    worth: TermValues,
    covered: AbstractSet[int],
    room: int,
    *,
    label: Callable[[Piece], str] = lambda _: "",
    factor: Callable[[Piece], float] | None = None,
) -> Choice:
    """Choose the most valuable pieces within `room` characters.

    The first piece under a label also pays for the label. If `factor` is given, the value of a piece is
    multiplied by it.
    """
    pieces = [*candidates]
    fresh_ones = [
        own if covered.isdisjoint(own := piece.terms) else [term for term in own if term not in covered]
        for piece in pieces
    ]
    worth.learn(set().union(*fresh_ones))
    value_of, overhead = worth.__getitem__, worth.weights.overhead
    offers, sources, by_source = list[_Offer](), dict[str, _Source](), dict[_Source, list[_Offer]]()
    factors = map(factor, pieces) if factor else repeat(1.0)
    for piece, fresh, times in zip(pieces, fresh_ones, factors, strict=False):
        if fresh and times:
            source = sources.get(said := label(piece))
            if source is None:
                source = sources[said] = _Source(len(said) + 1 if said else 0)
                by_source[source] = []
            length, gain = len(piece.text) + overhead, times * sum(map(value_of, fresh))
            if (value := gain / (length + source.label)) > 0:
                offers.append(_Offer(piece, fresh, source, length, times, gain, value))
                by_source[source].append(offers[-1])
    ranked = sorted(offers, key=attrgetter("value"), reverse=True)
    chosen = _fill(ranked, by_source, worth, {*covered}, room)
    return Choice(tuple(chosen), tuple([offer.piece for offer in ranked]))


def _fill(
    ranked: Sequence[_Offer],
    by_source: Mapping[_Source, Sequence[_Offer]],
    worth: TermValues,
    covered: set[int],
    room: int,
) -> list[Piece]:
    """Return the best offers that fit, from the highest step of values down. An offer that has lost value since
    it was ranked moves to a lower step.

    It is one loop, because calls for each of thousands of offers would take much of the time.
    """
    found, value_of, fair = list[Piece](), worth.__getitem__, max(1.0, room * worth.weights.crowd)
    steps = dict[int, list[_Offer]]()
    for offer in ranked:
        steps.setdefault(_step(offer.value), []).append(offer)
    step = max(steps, default=0)
    while steps and room > 0:
        here, least = steps.pop(step, []), exp(step / _STEPS)
        for offer in here:
            if offer.taken:
                continue
            source, fresh = offer.source, offer.fresh
            if not covered.isdisjoint(fresh):
                offer.fresh = fresh = [term for term in fresh if term not in covered]
                offer.gain = offer.factor * sum(map(value_of, fresh))
            value = offer.gain / (1 + source.taken / fair) / (offer.length + source.label)
            cost = len(offer.piece.text) + _SEPARATOR + source.label
            if value < least:
                if value:
                    steps.setdefault(min(step - 1, _step(value)), []).append(offer)
            elif cost <= room:
                room -= cost
                offer.taken = True
                covered.update(fresh)
                found.append(offer.piece)
                source.taken += cost
                if source.label:  # it is paid for now, so other offers under it may reach this step
                    source.label = 0
                    here += _reaching(by_source[source], least)
        step -= 1
    return found


def _reaching(offers: Iterable[_Offer], least: float) -> list[_Offer]:
    """Return the offers that could be taken at a value of `least`, without a label to pay for."""
    return [offer for offer in offers if not offer.taken and offer.gain >= least * offer.length]


def _step(value: float) -> int:
    return floor(log(value) * _STEPS)


def choose_all(candidates: Iterable[Piece], covered: set[int], room: int) -> Choice | None:
    """Choose pieces that together hold every term that is not covered; None if they take more than `room` characters.

    Where there is room for everything, no values have to be compared: the pieces with the highest promise come
    first, and those that only repeat them are left out.
    """
    fresh = [piece for piece in candidates if not covered.issuperset(piece.terms)]
    ranked = sorted(fresh, key=attrgetter("promise"), reverse=True)
    chosen, known, told = list[Piece](), {*covered}, {""}
    for piece in ranked:
        if not known.issuperset(piece.terms):
            room -= len(piece.text) + _SEPARATOR + (0 if piece.label in told else len(piece.label) + 1)
            if room < 0:
                return None
            known.update(piece.terms)
            told.add(piece.label)
            chosen.append(piece)
    return Choice(tuple(chosen), tuple(ranked))


# The digest: candidates, budget, and the text.

CHARACTERS_PER_TOKEN = 4
"""A first estimate; the finished text is counted and shortened if the estimate was too high."""
RESERVE = 3
"""The reserve for the next digest is this many times the size of the digest. More did not improve the
results: a piece that is not chosen from so many now is not chosen later."""
MAX_CANDIDATES = 2_400
"""Limit of leaving pieces that are evaluated: evaluating all pieces of a long conversation at once would
take a second, and the pieces with the highest `promise` hold nearly all that would be chosen."""
FEWER_CANDIDATES = 1_200
"""Used when there are three times as many pieces: then even the best ones are more than the digest has
room for."""
HISTORY = "## Earlier"
TURN = "## This turn so far"
BELOW = "## Left out of messages below"
_LETTER = re.compile(r"[^\W\d_]")


class VisibleText(Struct, frozen=True):
    """The content that the model will see next to the digest."""

    texts: tuple[str, ...] = ()
    """System prompt, task, rules, and messages that are shown shortened."""
    whole: tuple[int, ...] = ()
    """Numbers of the messages that are shown in full."""
    partly: tuple[int, ...] = ()
    """Numbers of the messages that are shown shortened: the digest may quote the rest of them."""


class Digest(Struct, frozen=True):
    """The text, and the state that the next digest needs: numbers of pieces, best first."""

    text: str = ""
    chosen: tuple[int, ...] = ()
    reserve: tuple[int, ...] = ()


NOTHING = Digest()


def digest(
    facts: Facts,
    *,
    first: int,
    last: int,
    budget: int,
    window: int,
    counter: TokenCounter,
    sight: VisibleText | None = None,
    previous: Digest = NOTHING,
    turn_from: int | None = None,
    usual: int = 0,
) -> Digest:
    """Make a digest of the messages `first` up to, not including, `last`, and of the content of `previous`.

    It takes at most `budget` tokens. If the budget is unusually small, `usual` is the normal one: the reserve
    for the next digest is as large as for that. `window` is the size of the window in tokens, the unit of
    age. If a turn is split, `turn_from` is its first message: the messages before the turn and those of the
    turn get separate headings.
    """
    sight = sight or VisibleText()
    room = budget * CHARACTERS_PER_TOKEN
    candidates, covered = _candidates(facts, first, last, sight, previous), in_sight(facts, sight)
    whole = choose_all(candidates, covered, room)
    text = render(whole.chosen, turn_from, last) if whole else ""
    chosen: Sequence[Piece]
    if whole and counter.text(text) <= budget:
        choice, chosen = whole, whole.chosen
    else:
        worth = TermValues(facts, window * CHARACTERS_PER_TOKEN)
        factor = _factor_of(sight, worth.weights)
        choice = choose(candidates, worth, covered, room, label=label_of, factor=factor)
        chosen, text = fitting(choice.chosen, budget, counter, turn_from, last)
    reserve = _reserve(choice, sight, RESERVE * max(room, usual * CHARACTERS_PER_TOKEN))
    return Digest(text, tuple(piece.number for piece in chosen), reserve)


def in_sight(facts: Facts, sight: VisibleText) -> set[int]:
    """Return the terms that are visible already and need no quotation."""
    log, covered = facts.log, set[int]()
    for text in sight.texts:
        covered |= term_ids(log, ends(text, MAX_CHARACTERS))
    for numbers in facts.numbers_of(sight.whole):
        covered.update(*map(_terms, log.pieces[numbers.start : numbers.stop]))
    return covered


def render(chosen: Iterable[Piece], turn_from: int | None = None, last: int | None = None) -> str:
    """Return the pieces as text, in the order of the conversation, each message under its handle, with an
    ellipsis for omitted text. Pieces of messages from `last` on, which are shown in part, stand apart.
    """
    ordered = sorted(chosen, key=_number)
    stop = len(ordered) if last is None else bisect_left(ordered, last, key=_seq)
    turn = stop if turn_from is None else bisect_left(ordered, turn_from, hi=stop, key=_seq)
    parts = [
        ("" if turn_from is None else HISTORY, ordered[:turn]),
        (TURN, ordered[turn:stop]),
        (BELOW, ordered[stop:]),
    ]
    return "\n".join(
        f"{title}\n{_quote_pieces(own)}" if title else _quote_pieces(own) for title, own in parts if own
    )


def _candidates(facts: Facts, first: int, last: int, sight: VisibleText, previous: Digest) -> Iterable[Piece]:
    """Return the reserve of the previous digest and the leaving pieces; if these are too many, those with the
    highest promise. Bare numbers mean nothing without the words around them, except in the user's own answers.
    """
    known = facts.known
    kept = [number for number in previous.reserve if number < len(known.pieces)]
    ranges = [facts.numbers(first, last), *facts.numbers_of(sight.partly)]
    total = sum(map(len, ranges))
    most = MAX_CANDIDATES if total < 3 * MAX_CANDIDATES else FEWER_CANDIDATES
    leaving = _most_promising(ranges, known.ranks, most) if total > most else chain.from_iterable(ranges)
    found = [known.pieces[number] for number in dict.fromkeys((*kept, *leaving))]
    return [
        piece
        for piece in found
        if piece.text[:1].isalpha() or _LETTER.search(piece.text) or piece.label.endswith(" user:")
    ]


def _most_promising(ranges: Sequence[range], ranks: bytearray, most: int) -> list[int]:
    """Return the `most` numbers with the highest ranks, the last of equals. There are more numbers than that."""
    own = b"".join([ranks[numbers.start : numbers.stop] for numbers in ranges])
    bar, left = 255, most
    while (equal := own.count(bar)) < left:
        left -= equal
        bar -= 1
    is_reached = bytes(bar) + b"\1" * (256 - bar)
    best = [*compress(chain.from_iterable(ranges), own.translate(is_reached))]
    above = [number for number in best if ranks[number] > bar]
    return above + [number for number in best if ranks[number] == bar][equal - left :]


def _factor_of(sight: VisibleText, weights: Weights) -> Callable[[Piece], float]:
    """Return the factor of a piece: more for the assistant's own words and calls, which say what was done and
    why, and less for partly shown messages, because some of their content is visible already.
    """
    partly, cut_off, own = frozenset(sight.partly), weights.cut_off, weights.own

    def factor(piece: Piece) -> float:
        times = own if piece.label.endswith(" assistant:") else 1.0
        return times * cut_off if piece.seq in partly else times

    return factor


def fitting(
    chosen: Sequence[Piece],
    budget: int,
    counter: TokenCounter,
    turn_from: int | None = None,
    last: int | None = None,
) -> tuple[Sequence[Piece], str]:
    """Return the best of the chosen pieces that fit into the budget by the counter, and their text."""
    while chosen:
        text = render(chosen, turn_from, last)
        tokens = counter.text(text)
        if tokens <= budget:
            return chosen, text
        chosen = chosen[: min(len(chosen) - 1, len(chosen) * budget // tokens)]
    return (), ""


def _reserve(choice: Choice, sight: VisibleText, room: int) -> tuple[int, ...]:
    """Return the numbers of the pieces that the next digest may choose from: the chosen ones, then those
    nearly chosen.
    """
    shown, kept = {*sight.whole, *sight.partly}, dict[int, None]()
    for piece in (*choice.chosen, *choice.ranked):
        if piece.seq not in shown and piece.number not in kept:
            room -= len(piece.text)
            if room < 0:
                break
            kept[piece.number] = None
    return tuple(kept)


def _quote_pieces(ordered: Iterable[Piece]) -> str:
    """Return the pieces as text, with each label once."""
    said: list[str] = []
    last: Piece | None = None
    for piece in ordered:
        if last is None or piece.label != last.label:
            text = _quoted(piece)
            is_indented = text[:1].isspace()
            said.append(f"\n{piece.label}\n{quoted_line(text)}" if is_indented else f"\n{piece.label} {text}")
        else:
            said.append(continued(piece, last))
        last = piece
    return "".join(said).removeprefix("\n")


def continued(piece: Piece, last: Piece) -> str:
    """Return a piece with the separator from the previous one: pieces of one line are put on one line again.

    A piece at the beginning of a line is quoted if it could be taken for a heading, a handle or a label of
    Refold.
    """
    text, is_next = _quoted(piece), piece.index == last.index + 1
    if (piece.part, piece.line) == (last.part, last.line):
        return f"{' ' if piece.is_spaced else ''}{text}" if is_next else f" … {text}"
    if is_next:
        return f"\n{quoted_line(text)}"
    return f"\n… {text}" if text[:1].strip() else f"\n…\n{quoted_line(text)}"


def _quoted(piece: Piece) -> str:
    """Return the text of a piece, which follows other words; a line end inside of it begins a line."""
    text = visible(piece.text)
    return quoted_lines(text) if "\n" in text else text


_number = attrgetter("number")
_seq = attrgetter("seq")
_terms = attrgetter("terms")


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


# The answer to a query: ranking of indexed pieces (BM25, with shares from neighbours and from the message).

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
