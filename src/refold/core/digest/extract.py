"""The extractive summariser: a digest that quotes the messages that leave the window.

Pieces are chosen for the terms that are not visible elsewhere in the window, and are quoted in order under
the handle of their message. The next digest chooses again among these pieces and a reserve of those that were
nearly chosen, so old and new pieces compete for the same room and the size stays bounded over any number of
cycles.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, compress, repeat
from math import exp, floor, log
from operator import attrgetter, mul

from msgspec import Struct

from refold.core.digest.facts import MAX_CHARACTERS, Facts, Piece, Weights, label_of, term_ids
from refold.core.digest.line_markers import quoted_line, quoted_lines
from refold.core.digest.pieces import ends
from refold.model.message import visible
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
