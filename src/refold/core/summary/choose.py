"""Choose the pieces that say most of what is not said yet.

One idea: a piece is worth the terms that only it would bring back, per character it takes. What is shown elsewhere is worth
nothing, so repeats are free to leave. Choosing the best piece again and again, and looking at a piece anew only when its turn
comes (lazy greedy), is near the best choice and takes milliseconds.

What a term is worth comes from replaying real agent transcripts: the chance that the assistant writes it again soon falls
with the time since it was last said, and grows with every message in which the assistant has used it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush, nlargest

from msgspec import Struct

from refold.core.summary.facts import Facts, Piece

_SEPARATOR = 3
"""Characters between two pieces: a line end, and an ellipsis where something is left out."""
_PROBABLE = 8
"""How many more pieces of a message are looked at again once its label is paid for."""


class Weights(Struct, frozen=True):
    """What makes a term likely to be needed again. The numbers were fitted on one half of 79 transcripts and hold on the
    other; the choice is not sensitive to them.
    """

    age: float = 0.55
    """The odds of being used again fall with the age, in windows, to this power."""
    youngest: float = 0.25
    """Below this age, in windows, nothing is more likely for being younger: all of it is part of the work at hand."""
    used: float = 4.0
    """A term that the assistant has used once is (1 + this) to the power below as likely to be used again."""
    habit: float = 0.65
    asked: float = 1.5
    """The user has said it."""
    repeated: float = 1.4
    """The assistant has not used it, but more than one message holds it."""
    overhead: float = 10.0
    """Characters added to the length of every piece, so that the shortest ones do not win by being short alone."""
    crowd: float = 0.2
    """When a message has taken this share of the room, its pieces are worth half: a list of a hundred ids would fill it."""
    cut_off: float = 0.5
    """Pieces of a message that is shown in part: some of it is in sight already."""


DEFAULT = Weights()


class Worth:
    """What each term is worth now, worked out when it is first asked for."""

    def __init__(self, facts: Facts, window_characters: int, weights: Weights = DEFAULT) -> None:
        self.log, self.now, self.weights = facts.log, facts.position, weights
        self.window = max(1, window_characters)
        self.known: dict[int, float] = {}
        self.ages: dict[int, float] = {}
        self.habits: dict[int, float] = {}

    def of(self, term: int) -> float:
        log, weights, used = self.log, self.weights, self.log.used[term]
        value = log.values[term] * self._age(log.last[term]) * self._habit(used)
        if log.asked[term]:
            value *= weights.asked
        if not used and log.spread[term] > 1:
            value *= weights.repeated
        self.known[term] = value
        return value

    def gain(self, piece: Piece, covered: AbstractSet[int]) -> float:
        """What the piece would add to what is covered."""
        known, total = self.known, 0.0
        for term in piece.terms:
            if term not in covered:
                total += known[term] if term in known else self.of(term)
        return total

    def _age(self, position: int) -> float:
        found = self.ages.get(position)
        if found is None:
            age = max(self.weights.youngest, (self.now - position) / self.window)
            found = self.ages[position] = pow(age, -self.weights.age)
        return found

    def _habit(self, used: int) -> float:
        found = self.habits.get(used)
        if found is None:
            found = self.habits[used] = pow(1 + self.weights.used * used, self.weights.habit)
        return found


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
    label_cost: Callable[[Piece], int] = lambda _: 0,
    cut_off: AbstractSet[int] = frozenset(),
) -> Choice:
    """The pieces worth most within `room` characters. The first piece of each message pays for its label."""
    search = _Search(worth, set(covered), label_cost, cut_off)
    search.take(candidates)
    ranked = tuple(search.pieces[place] for _, place in sorted(search.heap))
    heapify(search.heap)
    return Choice(tuple(search.fill(room)), ranked)


class _Search:
    def __init__(
        self,
        worth: Worth,
        covered: set[int],
        label_cost: Callable[[Piece], int],
        cut_off: AbstractSet[int],
    ) -> None:
        self.worth, self.covered, self.label_cost, self.cut_off = worth, covered, label_cost, cut_off
        self.pieces: list[Piece] = []
        self.heap: list[tuple[float, int]] = []
        self.labels: dict[tuple[int, int], int] = {}
        self.siblings: dict[tuple[int, int], list[tuple[float, int]]] = {}
        self.taken: dict[int, int] = {}
        self.share = 1.0

    def take(self, candidates: Iterable[Piece]) -> None:
        for piece in candidates:
            gain = self._gain(piece)
            if gain > 0:
                place, source = len(self.pieces), (piece.seq, piece.part)
                if source not in self.labels:
                    self.labels[source] = self.label_cost(piece)
                self.pieces.append(piece)
                density = gain / self._length(piece)
                self.heap.append((-gain / (self._length(piece) + self.labels[source]), place))
                self.siblings.setdefault(source, []).append((density, place))

    def fill(self, room: int) -> Sequence[Piece]:
        chosen: list[Piece] = []
        self.share = room * self.worth.weights.crowd
        done: set[int] = set()
        while self.heap and room > 0:
            _, place = heappop(self.heap)
            piece = self.pieces[place]
            if place in done:
                continue
            label = self.labels[piece.seq, piece.part]
            value = -self._gain(piece) / (self._length(piece) + label)
            if value >= 0:
                continue
            if self.heap and value > self.heap[0][0]:
                heappush(self.heap, (value, place))
                continue
            cost = len(piece.text) + _SEPARATOR + label
            if cost <= room:
                room -= cost
                chosen.append(piece)
                done.add(place)
                self.taken[piece.seq] = self.taken.get(piece.seq, 0) + cost
                self.covered.update(piece.terms)
                self._open(piece, label)
        return chosen

    def _open(self, piece: Piece, label: int) -> None:
        """The label of a message is paid for: its other pieces are cheaper now."""
        if label:
            source = piece.seq, piece.part
            self.labels[source] = 0
            for density, place in nlargest(_PROBABLE, self.siblings[source]):
                heappush(self.heap, (-density, place))

    def _gain(self, piece: Piece) -> float:
        gain = self.worth.gain(piece, self.covered) / (1 + self.taken.get(piece.seq, 0) / self.share)
        return gain * self.worth.weights.cut_off if piece.seq in self.cut_off else gain

    def _length(self, piece: Piece) -> float:
        return len(piece.text) + self.worth.weights.overhead
