"""The extractive summariser: a digest of messages that leave the window, in their own words.

One idea: the digest is chosen against what stays in sight. It quotes the pieces that hold most of what would otherwise be
lost, in their order, under the handle of the message they come from; the next digest chooses again among these and what was
nearly chosen, so old and new compete for the same room and the size stays bounded over any number of cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from refold.core.summary.choose import DEFAULT, Choice, Weights, Worth, choose
from refold.core.summary.facts import Facts, Piece, term_ids
from refold.model.tokens import TokenCounter

CHARACTERS_PER_TOKEN = 4
"""A first guess; the finished text is counted and shortened where it was wrong."""
RESERVE = 3
"""How many times the digest's size is kept to choose from next time. More never helped: what is not chosen among so many
now will not be later."""
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
    weights: Weights = DEFAULT,
) -> Digest:
    """What to keep of the messages `first` up to, not including, `last`, and of what `previous` stood for.

    It takes at most `budget` tokens. `window` is the size of the window in tokens, by which age is measured. Where a turn
    is split, `turn_from` is its first message: what was said before and in it stand apart.
    """
    sight = sight or Sight()
    worth = Worth(facts, window * CHARACTERS_PER_TOKEN, weights)
    room = budget * CHARACTERS_PER_TOKEN
    candidates = _candidates(facts, first, last, sight, previous)
    choice = choose(
        candidates,
        worth,
        in_sight(facts, sight),
        room,
        label_cost=lambda piece: len(facts.label(piece)) + 1,
        cut_off=frozenset(sight.partly),
    )
    chosen = _fitting(facts, choice.chosen, budget, counter, turn_from)
    reserve = _reserve(choice, sight, RESERVE * room)
    return Digest(render(facts, chosen, turn_from), tuple(piece.number for piece in chosen), reserve)


def in_sight(facts: Facts, sight: Sight) -> set[int]:
    """The terms that need no quoting."""
    log, covered = facts.log, set[int]()
    for text in sight.texts:
        covered |= term_ids(log, text)
    for seq in sight.whole:
        for piece in facts.pieces(seq, seq + 1):
            covered.update(piece.terms)
    return covered


def render(facts: Facts, chosen: Iterable[Piece], turn_from: int | None = None) -> str:
    """Pieces in the order of the conversation, each message under its handle; an ellipsis stands for what is left out."""
    ordered = sorted(chosen, key=_number)
    if turn_from is None:
        return "\n".join(_lines(facts, ordered))
    before = [piece for piece in ordered if piece.seq < turn_from]
    since = [piece for piece in ordered if piece.seq >= turn_from]
    parts = [(HISTORY, before), (TURN, since)]
    return "\n".join(line for title, own in parts if own for line in (title, *_lines(facts, own)))


def _candidates(facts: Facts, first: int, last: int, sight: Sight, previous: Digest) -> list[Piece]:
    numbered = facts.shared.pieces
    found = [numbered[number] for number in previous.reserve if number < len(numbered)]
    found += facts.pieces(first, last)
    for seq in sight.partly:
        found += facts.pieces(seq, seq + 1)
    return list({piece.number: piece for piece in found}.values())


def _fitting(
    facts: Facts, chosen: Sequence[Piece], budget: int, counter: TokenCounter, turn_from: int | None
) -> Sequence[Piece]:
    """The best of the chosen pieces whose text really takes no more than the budget."""
    while chosen:
        tokens = counter.text(render(facts, chosen, turn_from))
        if tokens <= budget:
            break
        chosen = chosen[: min(len(chosen) - 1, len(chosen) * budget // tokens)]
    return chosen


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


def _lines(facts: Facts, ordered: Iterable[Piece]) -> Iterable[str]:
    """Lines of pieces, with the label of each message once."""
    last: Piece | None = None
    for piece in ordered:
        if last is None or (last.seq, last.part) != (piece.seq, piece.part):
            yield f"{facts.label(piece)} {piece.text}"
        else:
            yield continued(piece, last)
        last = piece


def continued(piece: Piece, last: Piece) -> str:
    """A quoted heading is marked too, so that it never looks like one of ours."""
    is_next = piece.index == last.index + 1 and not piece.text.startswith("#")
    return piece.text if is_next else f"… {piece.text}"


def _number(piece: Piece) -> int:
    return piece.number
