"""Facts that outlive their messages: what the next digest may choose from, once the originals are no longer held.

One idea: a digest chooses among pieces, so the pieces that were kept to choose from are all that has to be carried along. Read
back in their order they make an index of their own, in which what was said since takes its place as it always does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from refold.core.summary.facts import Facts
from refold.core.summary.log import Indexed, Log, Piece
from refold.model.message import Role


class Carried(Struct, frozen=True, array_like=True):
    """A piece without its terms, which are read from its text again."""

    seq: int
    role: Role
    position: int
    """Characters of the conversation up to and including its message."""
    part: int
    index: int
    line: int
    promise: int
    is_spaced: bool
    label: str
    text: str


def carry(facts: Facts, numbers: Iterable[int], upto: int) -> tuple[tuple[Carried, ...], dict[int, int]]:
    """Pieces by number, in the order of the conversation, and where each of the numbers is found among them.

    Only messages before `upto` are carried: the others are held anyway.
    """
    known = set(numbers)
    if not known:
        return (), {}  # and nothing that waits has to be read for it
    pieces = facts.known.pieces
    kept = sorted(number for number in known if number < len(pieces) and pieces[number].seq < upto)
    places = {number: place for place, number in enumerate(kept)}
    found = tuple(_carried(facts, pieces[number]) for number in kept)
    return found, places


def _carried(facts: Facts, piece: Piece) -> Carried:
    message = facts.known.messages[facts.find(piece.seq)]
    return Carried(
        piece.seq,
        message.role,
        message.position,
        piece.part,
        piece.index,
        piece.line,
        piece.promise,
        piece.is_spaced,
        piece.label,
        piece.text,
    )


def restore(carried: Sequence[Carried]) -> Facts:
    """The index of what was carried; its pieces are numbered in their order."""
    log = Log()
    for seq, group in groupby(carried, key=lambda one: one.seq):
        own = list(group)
        pieces = [_piece(one, len(log.pieces) + place, log) for place, one in enumerate(own)]
        log.note(Indexed(seq, own[0].role, len(log.pieces) + len(pieces), own[0].position), pieces)
    return Facts(len(log.messages), log)


def _piece(one: Carried, number: int, log: Log) -> Piece:
    return Piece(
        number,
        one.seq,
        one.part,
        one.index,
        one.text,
        log.read(one.text),
        one.promise,
        one.line,
        one.is_spaced,
        one.label,
    )
