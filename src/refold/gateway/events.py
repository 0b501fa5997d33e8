"""Delivers the events of an owner's conversations to the log and to listeners.

Every owner has a ring buffer of the latest events, and a listener is a position in it. A listener that
reconnects gets the events it missed, a slow listener delays no other, and neither costs more than the buffer.
A listener that is too far behind gets the number of lost events.

Events are those of this process: if several gateways share one store, each reports its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice

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
    UsageRecorded,
    notice,
)
from refold.gateway.log import EVENTS, facts

_log = logging.getLogger(EVENTS)

KEPT = 256
"""Events kept per owner: a busy hour, and a few hundred kilobytes."""
LOST = "lost"
"""The event for a listener that missed events no longer in the buffer."""
CHANGED = "changed"
"""The event for an act of a user that the engine has no event for: a conversation was deleted or switched, or its pins changed."""
_FACTS = ("path", "outcome", "problem", "reason", "author", "why", "model", "dollars", "attempts")
"""Fields of an event that go into its log line if they have a value. Sizes are logged in tokens."""


class News(Struct, frozen=True):
    """The events that a listener has not received yet, and its position after them."""

    lines: tuple[bytes, ...]
    place: int


class Channel:
    """The latest events of one owner. `mark` identifies this process, so that ids of an earlier process are
    recognised.
    """

    def __init__(self, mark: str, kept: int = KEPT) -> None:
        self._mark, self._ring = mark, deque[tuple[int, str, Callable[[], bytes]]](maxlen=kept)
        self._count = 0
        self._news: asyncio.Event | None = None
        """Set by the next event; None if nobody waits for it."""
        self.is_closed = False

    def put(self, kind: str, data: Callable[[], bytes]) -> None:
        """Add an event. Its `data` is encoded only if somebody listens: every call has an event."""
        self._count += 1
        self._ring.append((self._count, kind, data))
        self._wake()

    def close(self) -> None:
        """End the stream of all listeners."""
        self.is_closed = True
        self._wake()

    def place(self, last_id: str) -> int:
        """The position after the event with this id; the current position without an id, and -1 for an
        unknown id.
        """
        found = re.fullmatch(rf"{re.escape(self._mark)}-([0-9]{{1,15}})", last_id)
        if found and int(found[1]) <= self._count:
            return int(found[1])
        return -1 if last_id else self._count

    def since(self, place: int) -> News:
        """The events after a position. For position -1, of an earlier process, the number of lost events is
        unknown.
        """
        first = self._count - len(self._ring)
        missed = None if place < 0 else max(0, first - place)
        mark, kept = self._mark.encode(), islice(self._ring, max(0, place - first), None)
        new = (b"id: %s-%d\n%s" % (mark, number, message(kind, data())) for number, kind, data in kept)
        lost = () if missed == 0 else (_lost_event(missed),)
        return News((*lost, *new), self._count)

    async def wait(self, place: int, seconds: float) -> bool:
        """True as soon as there is a new event, False after `seconds`."""
        if place != self._count or self.is_closed:
            return True
        try:
            # Not `wait_for`, which may swallow a cancellation that comes at the same moment.
            async with asyncio.timeout(seconds):
                self._news = self._news or asyncio.Event()
                return await self._news.wait()
        except TimeoutError:
            return False

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None


class Events:
    """The channels of all owners, and the event log."""

    def __init__(self, clock: Callable[[], float], mark: str) -> None:
        self._clock, self._mark = clock, mark
        self._channels: dict[str, Channel] = {}

    def channel(self, owner: str) -> Channel:
        if owner not in self._channels:
            self._channels[owner] = Channel(self._mark)
        return self._channels[owner]

    def tell(self, owner: str, event: Event, notify: Notify) -> None:
        """Log an event and put it in its owner's channel; an event that `notify` switches off is put there
        without its text.
        """
        self.channel(owner).put(event.kind, partial(_encode, event, self._clock(), notify))
        level = _level(event)
        if _log.isEnabledFor(level) and (text := _text(event, notify)):
            _log.log(level, "%s", text, extra=facts(owner=owner, **_facts(event)))

    def note_change(self, owner: str, conversation: str) -> None:
        """Tell an owner's listeners of an act that the engine has no event for, so that they look again."""
        found = {"at": self._clock(), "event": CHANGED, "conversation": conversation}
        self.channel(owner).put(CHANGED, partial(msgspec.json.encode, found))

    def close(self) -> None:
        """End all event streams, so that the gateway can stop."""
        for channel in self._channels.values():
            channel.close()


def message(kind: str, data: bytes) -> bytes:
    """One message of an event stream; the data is a line of JSON."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _encode(event: Event, at: float, notify: Notify) -> bytes:
    return msgspec.json.encode({"at": at, **msgspec.to_builtins(event), "text": _text(event, notify)})


def _text(event: Event, notify: Notify) -> str:
    return notice(event, pruning=notify.pruning, compaction=notify.compaction)


def _lost_event(count: int | None) -> bytes:
    return message(LOST, msgspec.json.encode({"event": LOST, "count": count}))


def _level(event: Event) -> int:
    if isinstance(event, SummaryFailed) or (isinstance(event, CompactionEnd) and event.outcome == "failed"):
        return logging.WARNING
    return (
        logging.DEBUG if isinstance(event, CompactionStart | SummaryWritten | UsageRecorded) else logging.INFO
    )


def _facts(event: Event) -> Mapping[str, object]:
    known = {name: getattr(event, name, None) for name in _FACTS}
    sizes = {name: size.tokens for name in ("before", "after") if (size := getattr(event, name, None))}
    results = {"results": sum(one.results for one in event.reductions)} if isinstance(event, Pruned) else {}
    stated = {name: value for name, value in known.items() if value}
    return {
        "event": event.kind, "conversation": event.conversation, "branch": event.branch, **stated, **sizes, **results
    }  # fmt: skip
