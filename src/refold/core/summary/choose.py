"""Choose the pieces that say most of what is not said yet.

One idea: a piece is worth the terms that only it would bring back, per character it takes. What is shown elsewhere is worth
nothing, so repeats are free to leave. The best piece is taken again and again; since a piece can only lose by what others
have said, it is looked at anew only when its turn comes. Pieces that are worth about the same stand on one step and are taken
in any order: finding the very best of them each time would take four times as long and gain nothing that can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from math import exp, floor, log
from operator import mul

from msgspec import Struct

from refold.core.summary.facts import Facts
from refold.core.summary.log import Piece
from refold.core.summary.weights import Weights

_SEPARATOR = 3
"""Characters between two pieces: a line end, and an ellipsis where something is left out."""
_STEP = 0.8
"""Each step is worth this much of the one above it."""
_STEPS = -1 / log(_STEP)


class Worth(dict[int, float]):
    """What each term is worth now, worked out when it is first asked for."""

    def __init__(self, facts: Facts, window_characters: int) -> None:
        super().__init__()
        known = facts.log
        self.standing, self.last, self.weights = known.standing, known.last, known.weights
        self.fading = _Fading(facts.position, max(1, window_characters), known.weights)

    def __missing__(self, term: int) -> float:
        value = self[term] = self.standing[term] * self.fading[self.last[term]]
        return value

    def learn(self, terms: AbstractSet[int]) -> None:
        """Work out many terms at once, which is quicker."""
        faded = map(self.fading.__getitem__, map(self.last.__getitem__, terms))
        self.update(zip(terms, map(mul, map(self.standing.__getitem__, terms), faded), strict=True))


class _Fading(dict[int, float]):
    """What the age makes of a term that was last said at a position."""

    def __init__(self, now: int, window: int, weights: Weights) -> None:
        super().__init__()
        self.now, self.window, self.youngest, self.power = now, window, weights.youngest, -weights.age

    def __missing__(self, position: int) -> float:
        age = (self.now - position) / self.window
        value = self[position] = float(max(self.youngest, age) ** self.power)
        return value


class Choice(Struct, frozen=True):
    chosen: tuple[Piece, ...]
    """Best first."""
    ranked: tuple[Piece, ...]
    """Every piece that would have added something, best first, as they stood before the first was chosen."""


def choose(
    candidates: Iterable[Piece],
    worth: Worth,
    covered: AbstractSet[int],
    room: int,
    *,
    label: Callable[[Piece], str] = lambda _: "",
    factor: Callable[[Piece], float] | None = None,
) -> Choice:
    """The pieces worth most within `room` characters. The first piece under a label pays for it.

    What a piece is worth is multiplied by its `factor`, where there is one.
    """
    search = _Search(worth, set(covered), max(1.0, room * worth.weights.crowd))
    search.take(candidates, label, factor)
    offers = sorted(search.offers, key=_value, reverse=True)
    return Choice(tuple(search.fill(offers, room)), tuple([offer.piece for offer in offers]))


class _Source:
    """What offers come from the same place share: its label, and how much of the room it has."""

    __slots__ = ("label", "offers", "taken")

    def __init__(self, label: int) -> None:
        self.label, self.taken = label, 0
        self.offers: list[_Offer] = []


class _Offer:
    """A piece that could be chosen, with those of its terms that are not in sight, and what it was worth when last seen."""

    __slots__ = ("factor", "fresh", "gain", "length", "piece", "source", "taken", "value")

    def __init__(self, piece: Piece, fresh: list[int], source: _Source, length: float, factor: float) -> None:
        self.piece, self.fresh, self.source, self.length, self.factor = piece, fresh, source, length, factor
        self.gain = self.value = 0.0
        self.taken = False


class _Search:
    def __init__(self, worth: Worth, covered: set[int], fair: float) -> None:
        self.worth, self.covered, self.fair = worth, covered, fair
        self.offers: list[_Offer] = []

    def take(
        self,
        candidates: Iterable[Piece],
        label: Callable[[Piece], str],
        factor: Callable[[Piece], float] | None,
    ) -> None:
        """Make an offer of every piece that would add something."""
        covered, value_of, overhead = self.covered, self.worth.__getitem__, self.worth.weights.overhead
        sources: dict[str, _Source] = {}
        fresh_ones = [(piece, [term for term in piece.terms if term not in covered]) for piece in candidates]
        self.worth.learn(set().union(*[fresh for _, fresh in fresh_ones]))
        for piece, fresh in fresh_ones:
            if fresh and (times := factor(piece) if factor else 1.0):
                source = sources.get(said := label(piece))
                if source is None:
                    source = sources[said] = _Source(len(said) + 1 if said else 0)
                offer = _Offer(piece, fresh, source, len(piece.text) + overhead, times)
                offer.gain = times * sum(map(value_of, fresh))
                offer.value = offer.gain / (offer.length + source.label)
                if offer.value > 0:
                    source.offers.append(offer)
                    self.offers.append(offer)

    def fill(self, offers: list[_Offer], room: int) -> Iterator[Piece]:
        """The best offers that fit, from the highest step down; one that is worth less by now goes to a lower step."""
        steps: dict[int, list[_Offer]] = {}
        for offer in offers:
            steps.setdefault(_step(offer.value), []).append(offer)
        step = max(steps, default=0)
        while steps and room > 0:
            for offer in (here := steps.pop(step, [])):
                if offer.taken or not self._weigh(offer):
                    continue
                if (lower := _step(offer.value)) < step:
                    steps.setdefault(lower, []).append(offer)
                elif (cost := len(offer.piece.text) + _SEPARATOR + offer.source.label) <= room:
                    room -= cost
                    here += self._accept(offer, cost, exp(step / _STEPS))
                    yield offer.piece
            step -= 1

    def _weigh(self, offer: _Offer) -> float:
        """What an offer would add now, per character."""
        source, covered = offer.source, self.covered
        fresh = [term for term in offer.fresh if term not in covered]
        if len(fresh) < len(offer.fresh):
            offer.fresh = fresh
            offer.gain = offer.factor * sum(map(self.worth.__getitem__, fresh))
        offer.value = offer.gain / (1 + source.taken / self.fair) / (offer.length + source.label)
        return offer.value

    def _accept(self, offer: _Offer, cost: int, bar: float) -> list[_Offer]:
        """Take an offer. Its label is paid for now, so others under it may reach the bar of this step: they come back."""
        source, offer.taken = offer.source, True
        self.covered.update(offer.fresh)
        source.taken += cost
        below = source.offers if source.label else []
        source.label = 0
        return [other for other in below if not other.taken and other.gain >= bar * other.length]


def _step(value: float) -> int:
    return floor(log(value) * _STEPS)


def _value(offer: _Offer) -> float:
    return offer.value
