"""The extractive summariser: a digest of messages that leave the window, in their own words.

One idea: the digest is chosen against what stays in sight. It quotes the pieces that hold most of what would otherwise be
lost, in their order, under the handle of the message they come from; the next digest chooses again among these and what was
nearly chosen, so old and new compete for the same room and the size stays bounded over any number of cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from math import exp, floor, log
from operator import mul

from msgspec import Struct

from refold.core.digest.facts import MAX_CHARACTERS, Facts, Piece, label_of, term_ids
from refold.core.digest.line_markers import quoted_line, visible
from refold.core.digest.pieces import ends
from refold.core.digest.terms import Weights
from refold.model.tokens import TokenCounter

# Choose the pieces that say most of what is not said yet.

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


CHARACTERS_PER_TOKEN = 4
"""A first guess; the finished text is counted and shortened where it was wrong."""
RESERVE = 3
"""How many times the digest's size is kept to choose from next time. More never helped: what is not chosen among so many
now will not be later."""
MAX_CANDIDATES = 2_400
"""How many of the leaving pieces are weighed: weighing all of a long conversation at once would take a second, and those
that promised most when they were said hold nearly all of what would be chosen."""
FEWER_CANDIDATES = 1_200
"""Where there are three times as many: then even the best of them are more than can be told."""
HISTORY = "## Earlier"
TURN = "## This turn so far"


class Sight(Struct, frozen=True):
    """What the model will see next to the digest."""

    texts: tuple[str, ...] = ()
    """System prompt, task, rules, and messages that are shown shortened."""
    whole: tuple[int, ...] = ()
    """Numbers of the messages that are shown as they are."""
    partly: tuple[int, ...] = ()
    """Numbers of the messages that are shown shortened: the digest may quote the rest of them."""


class Digest(Struct, frozen=True):
    """The text, and what the next digest needs to know: numbers of pieces, best first."""

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
    sight: Sight | None = None,
    previous: Digest = NOTHING,
    turn_from: int | None = None,
    usual: int = 0,
) -> Digest:
    """What to keep of the messages `first` up to, not including, `last`, and of what `previous` stood for.

    It takes at most `budget` tokens. The next digest may choose from what one of `usual` tokens would have left it, where the
    budget is smaller for once. `window` is the size of the window in tokens, by which age is measured. Where a turn
    is split, `turn_from` is its first message: what was said before and in it stand apart.
    """
    sight = sight or Sight()
    worth = Worth(facts, window * CHARACTERS_PER_TOKEN)
    room = budget * CHARACTERS_PER_TOKEN
    candidates = _candidates(facts, first, last, sight, previous)
    choice = choose(
        candidates,
        worth,
        in_sight(facts, sight),
        room,
        label=label_of,
        factor=_factor(sight, worth.weights.cut_off),
    )
    chosen, text = fitting(choice.chosen, budget, counter, turn_from)
    reserve = _reserve(choice, sight, RESERVE * max(room, usual * CHARACTERS_PER_TOKEN))
    return Digest(text, tuple(piece.number for piece in chosen), reserve)


def in_sight(facts: Facts, sight: Sight) -> set[int]:
    """The terms that need no quoting."""
    log, covered = facts.log, set[int]()
    for text in sight.texts:
        covered |= term_ids(log, ends(text, MAX_CHARACTERS))
    for seq in sight.whole:
        for piece in facts.pieces(seq, seq + 1):
            covered.update(piece.terms)
    return covered


def render(chosen: Iterable[Piece], turn_from: int | None = None) -> str:
    """Pieces in the order of the conversation, each message under its handle; an ellipsis stands for what is left out."""
    ordered = sorted(chosen, key=_number)
    if turn_from is None:
        return _quoted(ordered)
    before = [piece for piece in ordered if piece.seq < turn_from]
    since = [piece for piece in ordered if piece.seq >= turn_from]
    parts = [(HISTORY, before), (TURN, since)]
    return "\n".join(f"{title}\n{_quoted(own)}" for title, own in parts if own)


def _candidates(facts: Facts, first: int, last: int, sight: Sight, previous: Digest) -> Iterable[Piece]:
    """What was kept to choose from, and the pieces that leave now: where these are very many, the most promising."""
    numbered = facts.known.pieces
    kept = {number: numbered[number] for number in previous.reserve if number < len(numbered)}
    leaving = [*facts.pieces(first, last)]
    for seq in sight.partly:
        leaving += facts.pieces(seq, seq + 1)
    most = MAX_CANDIDATES if len(leaving) < 3 * MAX_CANDIDATES else FEWER_CANDIDATES
    if len(leaving) > most:
        leaving = _promising(leaving, most)
    return {**kept, **{piece.number: piece for piece in leaving}}.values()


def _promising(pieces: Sequence[Piece], most: int) -> list[Piece]:
    """Those of the pieces that promised most when they were said, the newest of equals."""
    counts, bar = Counter([piece.promise for piece in pieces]), 0
    left = most
    for bar in sorted(counts, reverse=True):
        if counts[bar] >= left:
            break
        left -= counts[bar]
    equal = [piece for piece in pieces if piece.promise == bar]
    return [piece for piece in pieces if piece.promise > bar] + equal[len(equal) - left :]


def _factor(sight: Sight, cut_off: float) -> Callable[[Piece], float] | None:
    """What is left of a message that is shown in part is worth less: some of it is in sight already."""
    partly = frozenset(sight.partly)
    return (lambda piece: cut_off if piece.seq in partly else 1.0) if partly else None


def fitting(
    chosen: Sequence[Piece], budget: int, counter: TokenCounter, turn_from: int | None = None
) -> tuple[Sequence[Piece], str]:
    """The best of the chosen pieces whose text really takes no more than the budget, and that text."""
    while chosen:
        text = render(chosen, turn_from)
        tokens = counter.text(text)
        if tokens <= budget:
            return chosen, text
        chosen = chosen[: min(len(chosen) - 1, len(chosen) * budget // tokens)]
    return (), ""


def _reserve(choice: Choice, sight: Sight, room: int) -> tuple[int, ...]:
    """What the next digest may choose from: what was chosen, then what was nearly chosen."""
    shown, kept = {*sight.whole, *sight.partly}, dict[int, None]()
    for piece in (*choice.chosen, *choice.ranked):
        if piece.seq not in shown and piece.number not in kept:
            room -= len(piece.text)
            if room < 0:
                break
            kept[piece.number] = None
    return tuple(kept)


def _quoted(ordered: Iterable[Piece]) -> str:
    """Pieces as text, with each label once."""
    said: list[str] = []
    last: Piece | None = None
    for piece in ordered:
        if last is None or piece.label != last.label:
            said.append(f"\n{piece.label} {visible(piece.text)}")
        else:
            said.append(continued(piece, last))
        last = piece
    return "".join(said).removeprefix("\n")


def continued(piece: Piece, last: Piece) -> str:
    """A piece with what parts it from the one before it: pieces of one line stand on one line again.

    A piece at the beginning of a line is quoted where it could be taken for a heading, a handle or a label of ours.
    """
    text, is_next = visible(piece.text), piece.index == last.index + 1
    if (piece.part, piece.line) == (last.part, last.line):
        return f"{' ' if piece.is_spaced else ''}{text}" if is_next else f" … {text}"
    return f"\n{quoted_line(text)}" if is_next else f"\n… {text}"


def _number(piece: Piece) -> int:
    return piece.number
