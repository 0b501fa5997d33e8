"""Decide from the structure of a regular expression whether it takes linear time.

Python's `re` backtracks: if a text can be matched in several ways and then fails, it tries all of them. Here
a pattern is turned into a position automaton, with one state for each character or class that it spells out,
and that automaton is searched for the two known causes of more than linear time:

- exponential: a loop that can read one text in two ways, such as `(a+)+` or `(a|a)*`;
- polynomial: two loops, one after the other, that can read one text, so that it may be split between them at
  any position, such as `a*a*b`. A search tries every position of a text, which is a loop over any character
  in front of the pattern: `a+b` is linear if it is matched once and quadratic if it is searched for.

Possessive and atomic parts never give back characters they took, so the part after them cannot begin with
more of the same. Bounded repetitions are loops too, but several of them in sequence only multiply the time;
that product has a limit, `MAX_STEPS`.

The answer errs on the safe side: a lookaround of more than one character and a backreference are assumed to
hold at every position at which they could begin. Every refused pattern can be rewritten with possessive
quantifiers or with disjoint classes.

`matches_by_portion` searches a long text without holding the interpreter's lock all the while.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

Use: TypeAlias = Literal["search", "match", "fullmatch"]
"""How a pattern is tried: at every position of a text, at one position, or at one position and up to the
end of the text."""

PORTION = 64 * 1024
"""Characters of a long text that are searched at a time: one call over 5 MB holds the interpreter's lock for a third
of a second."""
MAX_STEPS = 20_000
"""Limit of steps for each character of a text: the product of bounded repetitions that can read one text.
A step takes about 5 ns."""
MAX_STATES = 3_000
"""Limit of states of an automaton. The time to check it grows with their square, and a larger pattern is
refused unchecked."""
_UNROLLED = 4
"""A repetition of at most this many times is unrolled into consecutive states instead of being a loop."""
_EXACT = 64
"""A repetition of an exact number of times up to this is unrolled too: it has a fixed length, so nothing
can be split."""
_MOST_GUARDS = 8
"""Limit of distinguished guards for passing a part without reading. More than that are replaced by one
that may always hold."""

_Tree: TypeAlias = Any
"""A pattern, or a piece of one, as `re` has parsed it. Its types have no names."""
_SINGLE = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_LOOKAROUNDS = (_constants.ASSERT, _constants.ASSERT_NOT)
_CLASS_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII | re.UNICODE | re.LOCALE
_PREFERRED = sum(
    1 << ord(letter) for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,:;/"
)
_T = TypeVar("_T")
_Place: TypeAlias = tuple[int, int, int, int]
"""The states of three readers of one text, and the kind of the letter that they read last."""


class EdgeGuard(NamedTuple):
    """A condition on the letters before and after a position, as bits of letters.

    The highest bit is the edge of the text.
    """

    before: int
    behind: int
    is_exact: bool = True
    """True if the condition holds exactly for these letters; False if it may also fail for some of them."""


class Edge(NamedTuple):
    """A step to a state, which reads one letter of `reads` if the letter before it is one of `before`."""

    state: int
    before: int
    reads: int
    is_exact: bool


class _Part(NamedTuple):
    """A piece of a pattern: the ways into it, out of it, and past it without reading."""

    first: list[tuple[EdgeGuard, int]]
    last: list[tuple[int, EdgeGuard]]
    empty: list[EdgeGuard]


class _Body(NamedTuple):
    """The repeated part of a repetition."""

    tree: _Tree
    flags: int
    is_kept: bool


class _Class(NamedTuple):
    """A character or a class of characters as written in a pattern."""

    op: Any
    value: Any
    flags: int


class Alphabet:
    """All characters, grouped into letters: characters that no class of the pattern distinguishes are the
    same letter.
    """

    def __init__(self, classes: Iterable[_Class], flags: int, *, is_text: bool) -> None:
        word = _Class(
            _constants.IN, ((_constants.CATEGORY, _constants.CATEGORY_WORD),), flags & ~re.IGNORECASE
        )
        line = _Class(_constants.LITERAL, ord("\n"), 0)
        wanted = dict.fromkeys((word, line, *classes))
        extra = {code for one in wanted for code in _codes(one.value)} if is_text else set[int]()
        characters = _universe(is_text=is_text) + "".join(map(chr, sorted(_with_cases(extra))))
        masks = {one: _mask(one, characters) for one in wanted}
        blocks = [(1 << len(characters)) - 1]
        for mask in dict.fromkeys(masks.values()):
            blocks = [part for block in blocks for part in (block & mask, block & ~mask) if part]
        samples = [_sample(block, characters) for block in blocks]
        order = sorted(range(len(blocks)), key=lambda at: (not samples[at].isalnum(), samples[at]))
        self.samples = [samples[at] for at in order]
        """One character for each letter; readable ones come first."""
        self._bits = {
            one: sum(1 << at for at, block in enumerate(order) if blocks[block] & mask)
            for one, mask in masks.items()
        }
        self.all = (1 << len(self.samples)) - 1
        self.edge = 1 << len(self.samples)
        self.word, self.line = self._bits[word], self._bits[line]

    def bits(self, op: Any, value: Any, flags: int) -> int:
        return self._bits[_class_of(op, value, flags)]

    def sample(self, bits: int) -> str:
        """Return a character of one of these letters."""
        return self.samples[(bits & -bits).bit_length() - 1]


class Automaton:
    """A pattern as states and edges. State 0 is before the pattern.

    Raises:
        re.error: the pattern is no regular expression.
        OverflowError: it has more than `MAX_STATES` states.
    """

    def __init__(self, pattern: str | bytes | re.Pattern[Any], use: Use = "search", flags: int = 0) -> None:
        source: str | bytes = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        given = pattern.flags if isinstance(pattern, re.Pattern) else flags
        tree = _parser.parse(source, given)
        flags = tree.state.flags
        self.use, self._groups = use, dict(_groups(tree, flags))
        self.alphabet = Alphabet(_classes(tree, flags), flags, is_text=isinstance(source, str))
        edge = self.alphabet.all | self.alphabet.edge
        self._always = EdgeGuard(edge, edge)
        self.reads = [self.alphabet.all]
        """The letters that each state reads."""
        self.weights = [inf if use == "search" else 1.0]
        """How many times in a row each state may be read."""
        self._ends = [0]
        """For each state, the following letters at which the pattern, or the lookahead that contains the
        state, may end."""
        self.edges: list[list[Edge]] = [[]]
        self._weight = 1.0
        self._leading = dict[tuple[tuple[int, ...], int], frozenset[int]]()
        self._ahead = set[int]()
        self._twins = list[tuple[range, range]]()
        whole = self._sequence(tree, flags, is_kept=False)
        for guard, state in whole.first:
            self._join(0, state, guard)
        if use == "search":
            self._join(0, 0, self._always)
        self._accept(whole, self.alphabet.edge if use == "fullmatch" else edge)
        self.is_sure = self._sure_states()
        """For each state, whether the pattern matches regardless of the following text. Then no earlier
        choice is ever tried again."""
        self.failing = [self._failing(state) for state in range(len(self.edges))]
        """The edges that can lead to a failure, without the letters at which the pattern may end as well."""
        self.wasted = [
            edges if state in self._ahead else self.failing[state] for state, edges in enumerate(self.edges)
        ]
        """The edges that read text that may have to be read again: they lead to a failure, or belong to a
        lookahead."""
        self.kinds = self._kinds()
        """Groups of letters that no edge distinguishes by its condition on the previous letter."""

    # The pieces of a pattern

    def _sequence(self, tree: Iterable[_Tree], flags: int, *, is_kept: bool) -> _Part:
        """Build consecutive pieces. If it `is_kept`, the last one does not give back characters it took."""
        items = list(tree)
        whole = self._empty_part
        for at, (op, value) in enumerate(items):
            is_last = at == len(items) - 1
            whole = self._concatenate(whole, self._piece(op, value, flags, is_kept=is_kept and is_last))
        return whole

    def _piece(self, op: Any, value: Any, flags: int, *, is_kept: bool) -> _Part:
        if op in _SINGLE:
            state = self._state(self.alphabet.bits(op, value, flags))
            return _Part([(self._always, state)], [(state, self._always)], [])
        if op in _REPEATS:
            is_own = op is _constants.POSSESSIVE_REPEAT
            least, most, body = value
            return self._repetition(least, most, body, flags, is_kept=is_kept or is_own, is_body_kept=is_own)
        if op is _constants.AT:
            return _Part([], [], self._place(value, flags))
        if op in _LOOKAROUNDS:
            direction, body = value
            return self._lookaround(direction, body, flags, is_wanted=op is _constants.ASSERT)
        if op is _constants.GROUPREF:
            group, own = self._groups[value]
            return self._concatenate(
                self._unknown_part,
                self._concatenate(self._sequence(group, own, is_kept=False), self._unknown_part),
            )
        parts = [
            self._sequence(inner, own, is_kept=is_kept or op is _constants.ATOMIC_GROUP)
            for inner, own in _inside(op, value, flags)
        ]
        return self._alternation(parts)

    @property
    def _empty_part(self) -> _Part:
        return _Part([], [], [self._always])

    @property
    def _unknown_part(self) -> _Part:
        """A condition of which nothing is known."""
        return _Part([], [], [self._always._replace(is_exact=False)])

    def _concatenate(self, one: _Part, other: _Part) -> _Part:
        self._connect(one, other)
        first = [
            (met, state)
            for gap in one.empty
            for guard, state in other.first
            if (met := _intersection(gap, guard))
        ]
        last = [
            (state, met)
            for gap in other.empty
            for state, guard in one.last
            if (met := _intersection(guard, gap))
        ]
        empty = [met for gap in one.empty for guard in other.empty if (met := _intersection(gap, guard))]
        return _Part(one.first + first, last + other.last, self._limit_guards(empty))

    def _alternation(self, parts: Sequence[_Part]) -> _Part:
        first = [way for part in parts for way in part.first]
        last = [way for part in parts for way in part.last]
        return _Part(first, last, self._limit_guards([guard for part in parts for guard in part.empty]))

    def _repetition(
        self, least: int, most: Any, tree: _Tree, flags: int, *, is_kept: bool, is_body_kept: bool
    ) -> _Part:
        """Build a repetition.

        If it `is_kept`, the whole repetition gives nothing back; if `is_body_kept`, no single turn of it
        does.
        """
        most = inf if most is _constants.MAXREPEAT else most
        more = self._certain_letters(tree, flags) if is_kept else 0
        body = _Body(tree, flags, is_body_kept)
        if most <= _UNROLLED or (least == most and least <= _EXACT):
            return self._unrolled(least, int(most), body, more)
        if _UNROLLED < least < most:  # the required turns are a loop of their own
            start = len(self.reads)
            before, middle = self._loop(least, body), len(self.reads)
            loop = self._loop(most - least, body)
            self._connect(before, loop)
            self._twins.append((range(start, middle), range(middle, len(self.reads))))
            return _Part(before.first, self._loop_exits(loop, most, body, more), before.empty)
        whole = self._empty_part
        for _ in range(1, min(least, _UNROLLED + 1)):
            whole = self._concatenate(whole, self._iteration(body))
        loop = self._loop(most, body)
        last = self._loop_exits(loop, most, body, more)
        return self._concatenate(whole, _Part(loop.first, last, [self._always] if least == 0 else loop.empty))

    def _loop_exits(self, loop: _Part, most: float, body: _Body, more: int) -> list[tuple[int, EdgeGuard]]:
        """Return the ways out of a loop.

        A possessive loop ends when it cannot continue, or after its last turn.
        """
        last = self._exits(loop.last, more)
        if not more or most == inf:
            return last
        turn = self._iteration(body)
        self._connect(loop, turn)
        return last + turn.last

    def _iteration(self, body: _Body) -> _Part:
        return self._sequence(body.tree, body.flags, is_kept=body.is_kept)

    def _loop(self, times: float, body: _Body) -> _Part:
        outer, self._weight = self._weight, self._weight * times
        turn = self._iteration(body)
        self._connect(turn, turn)
        self._weight = outer
        return turn

    def _unrolled(self, least: int, most: int, body: _Body, more: int) -> _Part:
        whole, last = self._empty_part, list[tuple[int, EdgeGuard]]()
        for count in range(1, most + 1):
            if count > least:
                last += self._exits(whole.last, more)
            turn = self._iteration(body)
            # An optional turn is not tried again after it read nothing.
            whole = self._concatenate(whole, turn if count <= least else turn._replace(empty=[]))
        empty = [self._always] if least == 0 else whole.empty
        return _Part(whole.first, last + whole.last, empty)

    def _exits(self, last: list[tuple[int, EdgeGuard]], more: int) -> list[tuple[int, EdgeGuard]]:
        """Return the ways out of a repetition that continues as long as one of the letters `more` follows."""
        stop = EdgeGuard(self._always.before, self._always.behind & ~more)
        return [(state, met) for state, guard in last if (met := _intersection(guard, stop))]

    def _certain_letters(self, tree: Iterable[_Tree], flags: int) -> int:
        """Return the letters with which a piece is sure to match, regardless of the following text."""
        items = list(tree)
        if not items or any(op not in _REPEATS or value[0] for op, value in items[1:]):
            return 0
        op, value = items[0]
        if op in _SINGLE:
            return self.alphabet.bits(op, value, flags)
        if op in _REPEATS:
            return self._certain_letters(value[2], flags) if value[0] == 1 else 0
        if op in _LOOKAROUNDS or op in (_constants.AT, _constants.GROUPREF, _constants.GROUPREF_EXISTS):
            return 0
        found = 0
        for inner, own in _inside(op, value, flags):
            found |= self._certain_letters(inner, own)
        return found

    # Positions and lookarounds

    def _place(self, value: Any, flags: int) -> list[EdgeGuard]:
        letters, edge = self.alphabet, self._always.before
        word, other = letters.word, edge & ~letters.word
        match value:
            case _constants.AT_BEGINNING | _constants.AT_BEGINNING_STRING:
                is_line = flags & re.MULTILINE and value is _constants.AT_BEGINNING
                return [EdgeGuard(letters.edge | (letters.line if is_line else 0), edge)]
            case _constants.AT_END | _constants.AT_END_STRING:
                is_line = value is _constants.AT_END  # `$` also matches before a final line break
                after = [EdgeGuard(edge, letters.line, bool(flags & re.MULTILINE))] if is_line else []
                return [EdgeGuard(edge, letters.edge), *after]
            case _constants.AT_BOUNDARY:
                return [EdgeGuard(word, other), EdgeGuard(other, word)]
            case _constants.AT_NON_BOUNDARY:
                return [EdgeGuard(word, word), EdgeGuard(other, other)]
            case _:
                return [self._always]

    def _lookaround(self, direction: int, tree: _Tree, flags: int, *, is_wanted: bool) -> _Part:
        glance = self._lookaround_guards(tree, flags)
        if direction < 0:
            return _Part([], [], [self._lookbehind(tree, flags, glance, is_wanted=is_wanted)])
        if glance is not None and is_wanted:
            return _Part([], [], glance)
        if glance is not None and all(one.before == self._always.before for one in glance):
            barred = _union(one.behind for one in glance)
            return _Part([], [], [EdgeGuard(self._always.before, self._always.behind & ~barred)])
        start = len(self.reads)
        body = self._sequence(tree, flags, is_kept=False)
        self._accept(body, self._always.behind)  # a lookahead that has matched is never retried
        self._ahead.update(range(start, len(self.reads)))
        behind = _union(guard.behind & self.reads[state] for guard, state in body.first)
        is_open = not is_wanted or bool(body.empty)
        return _Part(
            body.first,
            [],
            [EdgeGuard(self._always.before, self._always.behind if is_open else behind, False)],
        )

    def _lookbehind(
        self, tree: _Tree, flags: int, glance: list[EdgeGuard] | None, *, is_wanted: bool
    ) -> EdgeGuard:
        if glance is not None and all(one.before == self._always.before for one in glance):
            found = _union(one.behind for one in glance)
            return self._always._replace(before=found if is_wanted else self._always.before & ~found)
        op, value = list(tree)[-1] if len(tree) else (None, None)
        before = self.alphabet.bits(op, value, flags) if is_wanted and op in _SINGLE else self._always.before
        return EdgeGuard(before, self._always.behind, False)

    def _lookaround_guards(self, tree: _Tree, flags: int) -> list[EdgeGuard] | None:
        """Return the guards that are equivalent to a lookaround; None if it reads more than one character."""
        items = list(tree)
        if len(items) != 1:
            return None
        op, value = items[0]
        if op in _SINGLE:
            return [EdgeGuard(self._always.before, self.alphabet.bits(op, value, flags))]
        if op is _constants.AT:
            return self._place(value, flags)
        if op not in (_constants.BRANCH, _constants.SUBPATTERN):
            return None
        found = [self._lookaround_guards(inner, own) for inner, own in _inside(op, value, flags)]
        known = [guard for guards in found if guards is not None for guard in guards]
        return known if all(guards is not None for guards in found) else None

    # States

    def _state(self, reads: int) -> int:
        if len(self.reads) >= MAX_STATES:
            raise OverflowError(f"a pattern of more than {MAX_STATES} states")
        self.reads.append(reads)
        self.weights.append(self._weight)
        self._ends.append(0)
        self.edges.append([])
        return len(self.reads) - 1

    def _connect(self, one: _Part, other: _Part) -> None:
        for state, leaving in one.last:
            for entering, following in other.first:
                if met := _intersection(leaving, entering):
                    self._join(state, following, met)

    def _join(self, start: int, stop: int, guard: EdgeGuard) -> None:
        before = guard.before & (self.reads[start] | (self.alphabet.edge if start == 0 else 0))
        reads = guard.behind & self.reads[stop]
        if before and reads:
            self.edges[start].append(Edge(stop, before, reads, guard.is_exact))

    def _accept(self, part: _Part, letters: int) -> None:
        """Record that the pattern, or a lookahead, may end after a part if one of the letters follows."""
        for state, guard in part.last:
            if guard.is_exact and not self.reads[state] & ~guard.before:
                self._ends[state] |= guard.behind & letters

    def _sure_states(self) -> list[bool]:
        sure = [ends & self.alphabet.edge != 0 for ends in self._ends]
        is_done = False
        while not is_done:
            held = [is_held and self._stays_sure(state, sure) for state, is_held in enumerate(sure)]
            is_done, sure = held == sure, held
        return sure

    def _stays_sure(self, state: int, sure: Sequence[bool]) -> bool:
        """Return True if every letter that may follow a state ends the pattern or leads to a state that is
        sure.
        """
        known, lost = self._ends[state], 0
        for edge in self.edges[state]:
            known |= edge.reads if edge.is_exact and not self.reads[state] & ~edge.before else 0
            lost |= 0 if sure[edge.state] else edge.reads
        return not self._always.behind & ~known and not lost & ~self._ends[state]

    def _limit_guards(self, guards: list[EdgeGuard]) -> list[EdgeGuard]:
        return guards if len(guards) <= _MOST_GUARDS else self._unknown_part.empty

    def _failing(self, state: int) -> list[Edge]:
        found = [edge._replace(reads=edge.reads & ~self._ends[state]) for edge in self.edges[state]]
        return [
            edge for edge in found if edge.reads and not self.is_sure[edge.state] and not self.is_sure[state]
        ]

    def _kinds(self) -> list[int]:
        groups = [self.alphabet.all]
        for before in {edge.before for edges in self.edges for edge in edges}:
            groups = [part for group in groups for part in (group & before, group & ~before) if part]
        return groups

    def leading(self, stop: tuple[int, ...], letters: int) -> frozenset[int]:
        """Return the states from which the states `stop` can be reached by reading only these letters."""
        key = (stop, letters)
        if key not in self._leading:
            before = [list[int]() for _ in self.edges]
            for state, edges in enumerate(self.edges):
                for edge in edges:
                    if edge.reads & letters:
                        before[edge.state].append(state)
            self._leading[key] = frozenset(_reachable(set(stop), before.__getitem__))
        return self._leading[key]

    def is_twin(self, one: int, other: int) -> bool:
        """Return True for the two halves of one repetition: the split between them is fixed by counting."""
        return any(one in first and other in second for first, second in self._twins)


def _intersection(one: EdgeGuard, other: EdgeGuard) -> EdgeGuard | None:
    before, behind = one.before & other.before, one.behind & other.behind
    return EdgeGuard(before, behind, one.is_exact and other.is_exact) if before and behind else None


def ambiguity(pattern: str | bytes | re.Pattern[Any], use: Use = "search", flags: int = 0) -> str:
    """Explain why a pattern may take more than linear time; empty if it takes linear time.

    Raises:
        re.error: the pattern is no regular expression.
    """
    try:
        automaton = Automaton(pattern, use, flags)
    except (OverflowError, RecursionError):
        return "it is too large to be checked"
    doubled = next(_ambiguous_states(automaton), None)
    if doubled is not None:
        return f"it can read {_sample_text(automaton, doubled)} repeated in exponentially many ways"
    return _split(automaton)


def _sample_text(automaton: Automaton, state: int) -> str:
    return ascii(automaton.alphabet.sample(automaton.reads[state]))


def loops(edges: Sequence[Sequence[Edge]]) -> list[list[int]]:
    """Return the loops of a graph, each as the states that can reach each other.

    The loop of the search is left out.
    """
    following = [[edge.state for edge in own] for own in edges]
    following[0] = []
    return [group for group in _components(following) if len(group) > 1 or group[0] in following[group[0]]]


def _ambiguous_states(automaton: Automaton) -> Iterator[int]:
    """Yield states of loops that can read one text in two ways and return to the same state."""
    for group in loops(automaton.failing):
        inside = set(group)
        edges = {
            state: [edge for edge in automaton.failing[state] if edge.state in inside] for state in group
        }
        yield from (state for state in group if _has_double(edges[state]))
        same = {(state, state) for state in group}
        there = _reachable(same, lambda pair, edges=edges: _joint_steps(edges, pair))  # type: ignore[misc]
        back = dict[tuple[int, int], list[tuple[int, int]]]()
        for pair in there:
            for following in _joint_steps(edges, pair):
                back.setdefault(following, []).append(pair)
        again = _reachable(same, lambda pair, back=back: back.get(pair, ()))  # type: ignore[misc]
        yield from (one for one, other in there & again if one != other)


def _has_double(edges: Sequence[Edge]) -> bool:
    return any(
        one.state == other.state and one.before & other.before and one.reads & other.reads
        for at, one in enumerate(edges)
        for other in edges[at + 1 :]
    )


def _joint_steps(edges: dict[int, list[Edge]], pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the states of two readers of one text after the next letter."""
    for one in edges[pair[0]]:
        for other in edges[pair[1]]:
            if one.reads & other.reads and one.before & other.before:
                yield one.state, other.state


def _split(automaton: Automaton) -> str:
    """Explain why consecutive loops take more than linear time; empty if they do not."""
    likely = list(_candidate_pairs(automaton))
    for pair in likely:
        if automaton.weights[pair.one] == automaton.weights[pair.other] == inf and _read_one_text(
            automaton, pair
        ):
            letter = _sample_text(automaton, pair.other)
            if pair.one == 0:
                return (
                    f"it is tried at every place of a text such as {letter} repeated, and reads on each time"
                )
            return f"it can split {letter} repeated between two repetitions at any place"
    steps = _steps(automaton, likely)
    if steps > MAX_STEPS:
        steps = _steps(automaton, [pair for pair in likely if _read_one_text(automaton, pair)])
    return f"it may take {steps:,.0f} steps for each character" if steps > MAX_STEPS else ""


def _steps(automaton: Automaton, pairs: Iterable[_Pair]) -> float:
    """Return the largest product of consecutive bounded loops of which each two can read one text."""
    after, known = dict[int, list[int]](), dict[int, float]()
    for pair in pairs:
        after.setdefault(pair.one, []).append(pair.other)

    def most(state: int) -> float:
        if state not in known:
            weight = automaton.weights[state]
            rest = max(map(most, after.get(state, ())), default=1.0)
            known[state] = rest * (weight if weight < inf else 1.0)
        return known[state]

    return max(map(most, after), default=1.0)


class _Pair(NamedTuple):
    """Two states of different loops, and the states allowed for three readers of one text: see `_read_one_text`."""

    one: int
    other: int
    inside: tuple[frozenset[int], frozenset[int], frozenset[int]]


def _candidate_pairs(automaton: Automaton) -> Iterator[_Pair]:
    """Yield pairs of loops of which the second can be reached from the first by letters that both read.

    The text that the second loop reads may have to be read again. The first one continues in any case, as a
    search does.
    """
    starts, stops = loops(automaton.edges), loops(automaton.wasted)
    for start in [[0], *starts] if automaton.use == "search" else starts:
        letters = _union(automaton.reads[state] for state in start)
        for stop in stops:
            common = letters & _union(automaton.reads[state] for state in stop)
            if not common or not set(start).isdisjoint(stop):
                continue
            between = automaton.leading(tuple(stop), common)
            if between.isdisjoint(start):
                continue
            inside = frozenset(start), between, frozenset(stop)
            for one in start:
                for other in stop:
                    if not automaton.is_twin(one, other):
                        yield _Pair(one, other, inside)


def _read_one_text(automaton: Automaton, pair: _Pair) -> bool:  # noqa: C901  # three readers, each with its own edges
    """Return True if one text leads from `one` to itself, from `one` to `other`, and from `other` to itself.

    Three readers of that text stay inside the first loop, among the states between the two, and inside the
    second loop.
    """
    reads, kinds = automaton.reads, automaton.kinds
    one, other, inside = pair
    own = (automaton.edges, automaton.edges, automaton.wasted)

    def following(place: _Place) -> Iterator[_Place]:
        *_, kind = place
        ways = [
            [edge for edge in edges[state] if edge.state in allowed and edge.before & kinds[kind]]
            for state, edges, allowed in zip(place, own, inside, strict=False)
        ]
        for second in ways[1]:
            for third in ways[2]:
                if not (read := second.reads & third.reads):
                    continue
                for first in ways[0]:
                    if met := read & first.reads:
                        for at, letters in enumerate(kinds):
                            if letters & met:
                                yield first.state, second.state, third.state, at

    for kind, letters in enumerate(kinds):
        if letters & reads[one] & reads[other]:
            goal = (one, other, other, kind)
            if goal in _reachable(set(following((one, one, other, kind))), following, goal):
                return True
    return False


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _reachable(starts: set[_T], following: Callable[[_T], Iterable[_T]], goal: _T | None = None) -> set[_T]:
    """Return all reachable nodes, the starts included; if a goal is given, stop as soon as it is reached."""
    found, waiting = set(starts), deque(starts)
    while waiting and (goal is None or goal not in found):
        for one in following(waiting.popleft()):
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found


def _components(following: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components, in the order in which they can be left (Tarjan's
    algorithm).
    """
    index, low, found = dict[int, int](), dict[int, int](), list[list[int]]()
    held, is_held = list[int](), set[int]()
    for root in range(len(following)):
        if root in index:
            continue
        work = [(root, iter(following[root]))]
        index[root] = low[root] = len(index)
        held.append(root)
        is_held.add(root)
        while work:
            state, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    held.append(other)
                    is_held.add(other)
                    work.append((other, iter(following[other])))
                    break
                if other in is_held:
                    low[state] = min(low[state], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[state])
                if low[state] == index[state]:
                    at = held.index(state)
                    found.append(held[at:])
                    is_held.difference_update(held[at:])
                    del held[at:]
    return found


# Trees of the parser of `re`


def _inside(op: Any, value: Any, flags: int) -> Iterator[tuple[_Tree, int]]:
    """Yield the patterns inside a piece, with the flags that are valid there."""
    if op is _constants.BRANCH:
        yield from ((inner, flags) for inner in value[1])
    elif op is _constants.SUBPATTERN:
        yield value[3], (flags | value[1]) & ~value[2]
    elif op in _REPEATS:
        yield value[2], flags
    elif op is _constants.ATOMIC_GROUP:
        yield value, flags
    elif op in _LOOKAROUNDS:
        yield value[1], flags
    elif op is _constants.GROUPREF_EXISTS:
        yield from ((inner or (), flags) for inner in value[1:])


def _classes(tree: Iterable[_Tree], flags: int) -> Iterator[_Class]:
    for op, value in tree:
        if op in _SINGLE:
            yield _class_of(op, value, flags)
        for inner, own in _inside(op, value, flags):
            yield from _classes(inner, own)


def _class_of(op: Any, value: Any, flags: int) -> _Class:
    return _Class(op, tuple(value) if isinstance(value, list) else value, flags & _CLASS_FLAGS)


def _groups(tree: Iterable[_Tree], flags: int) -> Iterator[tuple[int, tuple[_Tree, int]]]:
    """Yield the groups of a pattern by number, for backreferences."""
    for op, value in tree:
        if op is _constants.SUBPATTERN and value[0] is not None:
            yield value[0], (value[3], (flags | value[1]) & ~value[2])
        for inner, own in _inside(op, value, flags):
            yield from _groups(inner, own)


# Characters


def _codes(value: Any) -> Iterator[int]:
    """Yield the characters that distinguish a class from others, and their neighbours."""
    if isinstance(value, int) and not isinstance(value, type(_constants.CATEGORY)):
        yield from (code for code in (value - 1, value, value + 1) if 0 <= code <= 0x10FFFF)
    elif isinstance(value, tuple):
        for one in value:
            yield from _codes(one)


def _with_cases(codes: Iterable[int]) -> set[int]:
    found = set[int]()
    for code in codes:
        forms = (chr(code), chr(code).lower(), chr(code).upper())
        found |= {ord(form) for form in forms if len(form) == 1}
    return found - {ord(known) for known in _universe(is_text=True)}


@lru_cache(maxsize=2)
def _universe(*, is_text: bool) -> str:
    r"""Return one character of each kind that `\w`, `\d`, `\s` and similar classes distinguish, and all Latin
    ones.
    """
    if not is_text:
        return "".join(map(chr, range(256)))
    rest = "".join(map(chr, (*range(0x250, 0xD800), *range(0xE000, 0x110000))))
    runs = (found[0][0] for found in re.finditer(r"\d+|[^\W\d]+|\s+|[^\w\s]+", rest))
    return "".join(dict.fromkeys((*map(chr, range(0x250)), "\u212a", *runs)))


@lru_cache(maxsize=2_000)
def _mask(one: _Class, characters: str) -> int:
    """Return the characters that a class contains, as bits, by running `re` itself."""
    state = _parser.State()
    state.flags = one.flags
    value = list(one.value) if isinstance(one.value, tuple) else one.value
    held = set(_compiler.compile(_parser.SubPattern(state, [(one.op, value)])).findall(characters))
    return int("".join("1" if character in held else "0" for character in reversed(characters)), 2)


def _sample(block: int, characters: str) -> str:
    """Return the most readable character of a block."""
    bits = block & _PREFERRED or block
    return characters[(bits & -bits).bit_length() - 1]


def matches_by_portion(pattern: re.Pattern[str], text: str, *, longest: int) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern, as `finditer` does. Between two portions of the text other threads can run.

    `longest` is more than the characters of the longest match and of what the pattern looks at after it.
    """
    start = 0
    while start < len(text):
        stop = start + PORTION
        for match in pattern.finditer(text, start, stop + longest):
            if match.start() >= stop:
                break
            yield match
            start = match.end()
        start = max(start, stop)
