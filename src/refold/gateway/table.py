"""The branches that were used last, found by what a request begins or ends with.

One idea: the next request of a conversation holds the bytes of the one before. So the last bytes of each are held, as many as
there is room for, and the branch that was not used for the longest time is let go first: everything is in the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from refold.gateway.lines import Found, Line
from refold.ports.store import Place
from refold.wire.history import same_items

if TYPE_CHECKING:
    from refold.gateway.hosting import Live
    from refold.gateway.incoming import Incoming

MOST_BYTES = 40 * 1024 * 1024
"""Of branches in use: four of the longest conversations, or several hundred short ones. With the hundred megabytes that the gateway
takes itself it stays below 150."""
EACH_BYTES, TIMES = 32 * 1024, 12
"""What a branch takes besides its messages, and how much more its messages take than the request that they came in; measured."""
SHORT = 6 * 1024
"""A shorter list of messages is read sooner than it is compared with hundreds of others."""
LATELY = 256
"""Branches that a request without a name is compared with, the latest first; another is found by its hashes."""
NEW = 64
"""Messages at the end of a request behind which the end of a branch is looked for: more at once are rare."""


class Table:
    """Live branches of one owner."""

    def __init__(self) -> None:
        self._live: OrderedDict[str, Live] = OrderedDict()
        self._ends: dict[bytes, Live] = {}
        """By the hash of all that a branch holds."""
        self._named: dict[str, dict[str, Live]] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Live]:
        return iter(tuple(self._live.values()))

    def lines(self, name: str, array: bytes) -> Sequence[Line]:
        """Earlier requests that a list of messages may go on from: those of its name, or the latest that have none.

        May be called in a thread: the branches are copied in one step, and what is noted meanwhile is not among them.
        """
        if not name and len(array) < SHORT:
            return ()
        branches = tuple(self._named.get(name, {}).values())
        if not name:
            branches = branches[: -LATELY - 1 : -1]
        return [line for live in branches if (line := live.line)]

    def ending(self, hashes: Sequence[bytes], incoming: Incoming) -> tuple[Live, Found] | None:
        """The branch that a request goes on with, where it is here."""
        for known in range(len(hashes), max(0, len(hashes) - NEW), -1):
            mark = hashes[known - 1]
            live = self._ends.get(mark)
            if live is not None and live.serves(incoming) and live.talk.size == known:
                talk = live.talk
                return live, Found(Place(mark, talk.id, talk.branch, talk.size, talk.size), known)
        return None

    def note(self, live: Live, line: Line) -> None:
        """Remember what a branch ends with, and let go of what was not used for the longest time."""
        self.drop(self._live.get(live.talk.branch, live))
        live.line = line
        self._weight += _weight(live)
        self._live[live.talk.branch] = live
        self._named.setdefault(live.name, {})[live.talk.branch] = live
        if line.hashes:
            self._ends[line.hashes[-1]] = live
        while self._weight > MOST_BYTES and len(self._live) > 1:
            self.drop(next(iter(self._live.values())))

    def drop(self, live: Live) -> None:
        branch = live.talk.branch
        if self._live.get(branch) is not live:
            return
        del self._live[branch]
        self._weight -= _weight(live)
        named = self._named[live.name]
        del named[branch]
        if not named:
            del self._named[live.name]
        if live.line and live.line.hashes and self._ends.get(live.line.hashes[-1]) is live:
            del self._ends[live.line.hashes[-1]]


def before(lines: Sequence[Line], name: str, array: bytes) -> Line | None:
    """The earlier request of the same conversation: the most alike of its name, or the first that this one begins with."""
    if not name:
        return next((line for line in lines if _begins(line, array)), None)
    if len(lines) < 2:
        return lines[0] if lines else None
    return max(lines, key=lambda line: same_items(line.history, array))


def known_bytes(earlier: Line, array: bytes) -> int:
    """How many bytes at the beginning of a list of messages are items that came with an earlier request."""
    items = same_items(earlier.history, array)
    return earlier.history.ends[items - 1] if items else 0


def _begins(line: Line, array: bytes) -> bool:
    """Does a list of messages begin with another one? Its last bytes are compared first: mostly they tell."""
    ends = line.history.ends
    last = ends[-1] if ends else 0
    held = line.history.array
    near = max(0, last - 64)
    return bool(last) and array[near:last] == held[near:last] and array.startswith(held[:last])


def _weight(live: Live) -> int:
    return EACH_BYTES + TIMES * live.weight
