"""What is told of an owner's conversations: into the log, and to whoever listens.

One idea: every owner has a ring of the latest events, and a listener is a place in it. So one who comes back finds what was told
meanwhile, one who is slow holds up nobody, and neither costs more than the ring. Whoever is so far behind that events have left it
hears how many.

Events are those of this process: where several serve one store, each tells what it does itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from refold.config.tree import Notify
from refold.engine.events import (
    CompactionEnd,
    CompactionStart,
    Event,
    Pruned,
    SummaryFailed,
    SummaryWritten,
    notice,
)
from refold.gateway.log import EVENTS, facts

_log = logging.getLogger(EVENTS)

KEPT = 256
"""Events of one owner: what a busy hour brings, and some hundred kilobytes."""
LOST = "lost"
"""The name of what is told to one who was away, or too slow, for too long."""
_FACTS = ("path", "outcome", "problem", "reason", "author", "model", "dollars", "attempts")
"""Of an event, into a line of the log, where there is something to say. Sizes are told by their tokens."""


class News(Struct, frozen=True):
    """What somebody has not heard yet, and where they are then."""

    lines: tuple[bytes, ...]
    place: int


class Channel:
    """The latest events of one owner. `mark` tells this process from the one before."""

    def __init__(self, mark: str, kept: int = KEPT) -> None:
        self._mark, self._ring = mark, deque[bytes](maxlen=kept)
        self._told, self._news = 0, asyncio.Event()
        self.is_closed = False

    def put(self, kind: str, data: bytes) -> None:
        self._told += 1
        self._ring.append(b"id: %s-%d\n%s" % (self._mark.encode(), self._told, message(kind, data)))
        self._wake()

    def close(self) -> None:
        """Nothing more will be told."""
        self.is_closed = True
        self._wake()

    def place(self, last_id: str) -> int:
        """How many events one has heard who heard this one last; all until now where they come for the first time."""
        found = re.fullmatch(rf"{re.escape(self._mark)}-([0-9]{{1,15}})", last_id)
        if found and int(found[1]) <= self._told:
            return int(found[1])
        return -1 if last_id else self._told

    def since(self, place: int) -> News:
        """What was told after a place. One who comes from another process has missed nobody knows how much."""
        first = self._told - len(self._ring)
        missed = None if place < 0 else max(0, first - place)
        new = tuple(self._ring)[max(0, place - first) :]
        lost = () if missed == 0 else (_lost(missed),)
        return News((*lost, *new), self._told)

    async def wait(self, place: int, seconds: float) -> bool:
        """Is there something new, within this time?"""
        if place != self._told or self.is_closed:
            return True
        try:
            # Unlike `wait_for`, which may swallow that the listener has left at the same moment.
            async with asyncio.timeout(seconds):
                return await self._news.wait()
        except TimeoutError:
            return False

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Events:
    """All owners' channels, and the log."""

    def __init__(self, clock: Callable[[], float], mark: str) -> None:
        self._clock, self._mark = clock, mark
        self._channels: dict[str, Channel] = {}

    def channel(self, owner: str) -> Channel:
        if owner not in self._channels:
            self._channels[owner] = Channel(self._mark)
        return self._channels[owner]

    def tell(self, owner: str, event: Event, notify: Notify) -> None:
        """Log an event and hand it on; what is not to be notified of is handed on without its text."""
        text = notice(event, pruning=notify.pruning, compaction=notify.compaction)
        told = {"at": self._clock(), **msgspec.to_builtins(event), "text": text}
        self.channel(owner).put(event.kind, msgspec.json.encode(told))
        if text:
            _log.log(_level(event), "%s", text, extra=facts(owner=owner, **_facts(event)))

    def close(self) -> None:
        """Let everybody go who listens, so that the gateway can end."""
        for channel in self._channels.values():
            channel.close()


def message(kind: str, data: bytes) -> bytes:
    """One message of an event stream; the data is a line of JSON."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _lost(count: int | None) -> bytes:
    return message(LOST, msgspec.json.encode({"event": LOST, "count": count}))


def _level(event: Event) -> int:
    if isinstance(event, SummaryFailed) or (isinstance(event, CompactionEnd) and event.outcome == "failed"):
        return logging.WARNING
    return logging.DEBUG if isinstance(event, CompactionStart | SummaryWritten) else logging.INFO


def _facts(event: Event) -> Mapping[str, object]:
    known = {name: getattr(event, name, None) for name in _FACTS}
    sizes = {name: size.tokens for name in ("before", "after") if (size := getattr(event, name, None))}
    results = {"results": sum(one.results for one in event.reductions)} if isinstance(event, Pruned) else {}
    told = {name: value for name, value in known.items() if value}
    return {
        "event": event.kind, "conversation": event.conversation, "branch": event.branch, **told, **sizes, **results
    }  # fmt: skip
