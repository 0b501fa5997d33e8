"""Demands: what the real reply shows that the model needed.

One idea: a literal in a reply that stood earlier in the conversation was needed at that moment; whether it is in the
context is recall that no model has to judge. How long ago it was last mentioned says how hard that was: near is less than
a quarter of the window, far is more than the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.replay.facts import Context, Facts
from refold.replay.literals import holds, surroundings

Band: TypeAlias = Literal["near", "mid", "far"]
Extract: TypeAlias = Callable[[Facts], Collection[str]]

NEAR = 4
"""Near is less than this part of the window: the newest messages, which everybody keeps."""
SOURCE_REACH, CONTEXT_REACH = 80, 160
"""Characters around a literal that belong to it, where it came from and where it is now: a digest may spread them out."""
SOURCE_MENTIONS, CONTEXT_MENTIONS = 4, 6
LATEST = 3
"""Messages that mentioned it last: older ones may have meant something else."""
BOUND_WORDS = 2
"""One word in common happens by chance."""


class Demand(Struct, frozen=True, gc=False):
    """A literal that a reply needed, and what became of it."""

    literal: str
    band: Band
    kept: bool
    bound: bool = False
    """It is there with words of its original surroundings: a fact, and not an entry of a list."""

    @property
    def is_old(self) -> bool:
        return self.band != "near"


class Mentions:
    """Where each literal has been mentioned so far."""

    def __init__(self, extract: Extract, fixed: Collection[str]) -> None:
        self._extract, self._fixed = extract, fixed
        self._places: dict[str, list[int]] = {}

    def note(self, facts: Facts, index: int) -> None:
        for literal in self._extract(facts):
            self._places.setdefault(literal, []).append(index)

    def __contains__(self, literal: str) -> bool:
        return literal in self._places or literal in self._fixed

    def demanded_by(self, reply: Iterable[Facts]) -> list[str]:
        """The literals of a reply that it must have had in front of it."""
        used = {literal for facts in reply for literal in self._extract(facts)}
        return sorted(literal for literal in used if literal in self._places and literal not in self._fixed)

    def latest(self, literal: str) -> Sequence[int]:
        return self._places[literal][-LATEST:]

    def is_in(self, literal: str, context: Context) -> bool:
        return any(literal in self._extract(facts) for facts in context.facts) or holds(context.text, literal)


def band(distance: int, window: int) -> Band:
    if distance * NEAR < window:
        return "near"
    return "mid" if distance < window else "far"


def is_bound(literal: str, sources: Iterable[Facts], context: Context) -> bool:
    """Does the literal stand in the context among words that it stood among before?"""
    words: set[str] = set()
    for facts in sources:
        words.update(*surroundings(facts.text, literal, reach=SOURCE_REACH, most=SOURCE_MENTIONS))
    words.discard(literal.lower())
    if len(words) < BOUND_WORDS:
        return True
    found = surroundings(context.text, literal, reach=CONTEXT_REACH, most=CONTEXT_MENTIONS)
    return any(len(words & around) >= BOUND_WORDS for around in found)
