"""The log behind the fact index: pieces and terms by number, and what is known about each of them.

One idea: everything that is asked about a term later (when it was last said, by how many messages, how likely it is to come
back) is a number in a list, kept up to date when a message that holds it is read. Terms and pieces are numbered in the order
in which they were said, so what was known earlier is a beginning of each list.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from operator import attrgetter

from msgspec import Struct

from refold.core.summary.terms import VALUES, Kind, terms
from refold.core.summary.weights import DEFAULT, Weights
from refold.model.message import Message, Role

_LITERAL, _PHRASE = VALUES[Kind.LITERAL], VALUES[Kind.PHRASE]
_LITERAL_KIND = Kind.LITERAL


class Piece(Struct, frozen=True, gc=False):
    """A quotable part of a message. `number` is its place in the whole conversation, `index` in its message."""

    number: int
    seq: int
    part: int
    index: int
    text: str
    terms: tuple[int, ...]
    promise: int
    """What it was worth per character when it was said: a first guess where there are too many pieces to weigh them all."""
    line: int
    """The line of its part that it stands on."""
    is_spaced: bool
    """Does a space part it from what stands before it on its line?"""
    label: str
    """Where it comes from: the handle of its original, and who speaks, a role or a tool."""


label_of = attrgetter("label")
_terms = attrgetter("terms")


class Indexed(Struct, frozen=True, gc=False):
    """One message of the index."""

    seq: int
    role: Role
    stop: int
    """The number after its last piece."""
    position: int
    """Characters of the conversation up to and including it."""


class Log:
    """What the facts of one line share; only ever appended to. Terms are numbered as they are first seen."""

    __slots__ = (
        "_held", "_holders", "_odds", "asked", "calls", "ids", "last", "messages", "pieces", "raised", "spread", "standing", "used",
        "values", "waiting", "weights",
    )  # fmt: skip

    def __init__(self, weights: Weights = DEFAULT) -> None:
        self.weights = weights
        self.ids: dict[str, int] = {}
        self.calls: dict[str, str] = {}
        self.values: list[float] = []
        self.last: list[int] = []
        self.used: list[int] = []
        self.spread: list[int] = []
        self.asked: list[bool] = []
        self.standing: list[float] = []
        self.messages: list[Indexed] = []
        self.pieces: list[Piece] = []
        self.raised: list[tuple[int, int]] = []
        self.waiting: deque[tuple[int, Message]] = deque()
        """Messages that came after those that are read, with their numbers."""
        self._holders: dict[int, array[int]] = {}
        self._held = 0
        self._odds: dict[tuple[int, bool, bool], float] = {}

    def __len__(self) -> int:
        return len(self.messages) + len(self.waiting)

    @property
    def newest(self) -> int:
        """The number of the last message, read or not; -1 where there is none."""
        if self.waiting:
            return self.waiting[-1][0]
        return self.messages[-1].seq if self.messages else -1

    def read(self, text: str) -> tuple[int, ...]:
        """The terms of a text, each once; those that are new get their number."""
        ids, values, found = self.ids, self.values, list[int]()
        for term, kind in terms(text):
            number = ids.get(term)
            if number is None:
                number = len(values)
                values.append(VALUES[kind])
                ids[term] = number
            elif kind is _LITERAL_KIND and values[number] != _LITERAL:
                values[number] = _LITERAL
                self.raised.append((number, len(self.messages)))
            found.append(number)
        return tuple(dict.fromkeys(found))

    def note(self, message: Indexed, own: Sequence[Piece]) -> None:
        """Take a message in, whose pieces have been made."""
        self.pieces += own
        self.messages.append(message)
        known, position, found = len(self.last), message.position, set[int]().union(*map(_terms, own))
        by_assistant, by_user = message.role == "assistant", message.role == "user"
        last, spread, used, asked, values = self.last, self.spread, self.used, self.asked, self.values
        standing, odds = self.standing, self._odds
        self._begin(position, used=by_assistant, asked=by_user)
        for term in found:
            if term < known:
                last[term] = position
                spread[term] += 1
                used[term] += by_assistant
                asked[term] = asked[term] or by_user
                case = used[term], spread[term] > 1, asked[term]
                standing[term] = values[term] * (odds.get(case) or self._odds_of(*case))

    def _begin(self, position: int, *, used: bool, asked: bool) -> None:
        """Take the terms in that nobody has said before: they have the last numbers."""
        new, odds = self.values[len(self.last) :], self._odds_of(int(used), False, asked)
        self.last += [position] * len(new)
        self.spread += [1] * len(new)
        self.used += [int(used)] * len(new)
        self.asked += [asked] * len(new)
        self.standing += [value * odds for value in new]

    def _odds_of(self, used: int, is_repeated: bool, is_asked: bool) -> float:
        odds = self.weights.standing(used, is_repeated=is_repeated, is_asked=is_asked)
        self._odds[used, is_repeated, is_asked] = odds
        return odds

    @property
    def holders(self) -> dict[int, array[int]]:
        """Which pieces hold which terms, phrases aside: whatever holds one holds its words. Noted when somebody asks."""
        values, holders = self.values, self._holders
        for piece in self.pieces[self._held :]:
            for term in piece.terms:
                if values[term] != _PHRASE:
                    if term not in holders:
                        holders[term] = array("I")
                    holders[term].append(piece.number)
        self._held = len(self.pieces)
        return holders

    def place(self, number: int) -> int:
        """Which message a piece belongs to: its place among those that are indexed."""
        return self.find(self.pieces[number].seq, len(self.messages))

    def find(self, seq: int, size: int) -> int:
        """Where among the first `size` messages the message `seq` is, or would be: mostly at its own number."""
        if seq < size and self.messages[seq].seq == seq:
            return seq
        return bisect_left(self.messages, seq, hi=size, key=_seq)

    def upto(self, size: int) -> Log:
        """The log as it was after `size` messages; of these, those that wait here wait there."""
        log, messages = Log(self.weights), self.messages[:size]
        pieces = self.pieces[: messages[-1].stop if messages else 0]
        log._number(self, 1 + max(chain.from_iterable(map(_terms, pieces)), default=-1))
        log.calls, log.raised = dict(self.calls), [(term, at) for term, at in self.raised if at < size]
        for term, at in self.raised:
            if at >= size and term < len(log.values):
                log.values[term] = VALUES[Kind.PART]
        start = 0
        for message in messages:
            log.note(message, pieces[start : message.stop])
            start = message.stop
        log.waiting.extend(islice(self.waiting, max(0, size - len(self.messages))))
        return log

    def _number(self, other: Log, count: int) -> None:
        """Begin with the first terms of another log, under the same numbers, none of which was said here yet."""
        self.ids = {term: number for term, number in other.ids.items() if number < count}
        self.values = other.values[:count]
        self.last, self.used, self.spread = [0] * count, [0] * count, [0] * count
        self.standing, self.asked = [0.0] * count, [False] * count


def _seq(message: Indexed) -> int:
    return message.seq
