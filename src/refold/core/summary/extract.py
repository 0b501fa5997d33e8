"""The extractive summariser: a digest of messages that leave the window, in their own words.

One idea: the digest is chosen against what stays in sight. It quotes the pieces that hold most of what would otherwise be
lost, in their order, under the handle of the message they come from; the next digest chooses again among these and what was
nearly chosen, so old and new compete for the same room and the size stays bounded over any number of cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from refold.core.summary.choose import Choice, Worth, choose
from refold.core.summary.facts import MAX_CHARACTERS, Facts, term_ids
from refold.core.summary.line_markers import quoted_line, visible
from refold.core.summary.log import Piece, label_of
from refold.core.summary.pieces import ends
from refold.model.tokens import TokenCounter

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
