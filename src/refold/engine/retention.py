"""Retention: deletes idle conversations after `keep_days`, and limits how many one run may delete.

Nothing is deleted unless `keep_days` is set. Then a run deletes the conversations that were idle for longer,
the oldest first, except those that are open here. It decides by the clock, and a clock can be wrong, so two
things wait for a later run:

- everything, while the clock is more than `JUMP_S` ahead of the time that the store knows. To the first run
  a clock that jumped and a store that was idle for long look the same. Later runs tell them apart: the clock
  is believed once it has run on for a day in steps of at most `STEP_S`, which a clock that only jumps again
  does not do.
- conversations above a share of all that the owner has. They are deleted by the first run a day later.

Both waits are counted by the clock of the machine, since they go on after a restart. For the time that this program itself has run,
they are also counted by a monotonic clock, which does not jump, and the shorter count holds.

A clock that is behind deletes nothing, but what is used while it is behind would look old as soon as it is right. So a use is
never stored as earlier than the time that the store knows (`KnownTime` of the journal).

The time that the store knows, and the waiting deletion, are one row per owner. A run replaces the row by
compare-and-swap before it deletes anything. So of two programs that run at the same moment one deletes, and a
program that stops in between has deleted too little, never too much.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from math import floor, inf, isfinite
from typing import Literal, TypeAlias

from msgspec import Struct, ValidationError, json, structs

from refold.model.errors import ConfigError, StoreError
from refold.ports.records import Idle
from refold.ports.store import Store

DAY_S = 86_400.0
PAUSE_S = 3_600.0
"""Pause between two runs: a retention of days can wait an hour, and a purge is work."""
JUMP_S = 2 * DAY_S
"""How far ahead of the store's last use a clock is believed: a program that runs once a day stays below it."""
STEP_S = DAY_S / 4
"""The most that one run adds to the day that a doubtful clock has to run on for, however far it has moved
since the run before. A program that always runs does so every hour; another one needs four more runs."""
MAX_SHARE = 0.10
"""Share of the owner's conversations: retention deletes a few every day, and a tenth at once is more often
than not a mistake."""
TOPIC, KEY = "retention", "time"
"""The key of the row, among the learnt facts of a store."""

SweepReason: TypeAlias = Literal["clock", "share"]

_log = logging.getLogger("refold")


class WaitingDeletion(Struct, frozen=True):
    """A deletion that waits: all conversations that were idle since `before`."""

    reason: SweepReason
    since: float
    before: float
    waited_s: float = 0.0
    """For how long a doubtful clock has run on."""


class StoreClock(Struct, frozen=True):
    """The time that a store knows."""

    at: float
    """The latest moment that was believed."""
    looked_at: float
    """The clock's time at the last run."""
    held: WaitingDeletion | None = None


class HeldBack(Struct, frozen=True):
    """Conversations that are past `keep_days` and not deleted yet, and the reason."""

    conversations: int
    reason: SweepReason
    since: float


class Retention:
    """Applies the retention of one owner: conversations that were idle for `days` are deleted."""

    def __init__(
        self,
        store: Store,
        owner: str,
        days: float,
        clock: Callable[[], float],
        max_share: float = MAX_SHARE,
        warn: Callable[[str], None] = _log.warning,
        *,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._owner, self._clock, self._steady = store, owner, clock, steady
        self._seen: tuple[float, float, float] | None = None
        """The beginning of the deletion that waits, and the clock and the monotonic clock when it was seen first."""
        self._looked_steady = -inf
        self._days, self._looked_at = checked_days(days), -inf
        self._share, self._warn, self._warned = checked_share(max_share), warn, -inf

    async def begin(self) -> None:
        """Store the time of the store's last use if no run has stored it yet. It has to be called before this
        program writes anything with its own clock.
        """
        now = checked_moment(self._clock())
        if isfinite(self._looked_at):
            return
        if await self._store.learnt(self._owner, TOPIC, KEY) is None:
            before = now - self._days * DAY_S
            idle = await self._store.idle(self._owner, before)
            if idle.conversations:
                await self._note(None, _after_look(await self._last_use(idle, now), now, before), now)

    async def apply(self, names: Collection[str]) -> int:
        """Delete expired conversations except those with these names, once an hour at most. Return how many
        there were.
        """
        now = checked_moment(self._clock())
        # The clock may have been set back since, so a negative difference does not count.
        if 0 <= now - self._looked_at < PAUSE_S:
            return 0
        self._looked_at, run_s = now, self._steady() - self._looked_steady
        self._looked_steady = self._steady()
        before, keep = now - self._days * DAY_S, sorted(names)
        seen = await self._store.learnt(self._owner, TOPIC, KEY)
        idle = await self._store.idle(self._owner, before, keep)
        if not idle.conversations:
            return 0
        noted = _read_row(seen)
        known = _after_look(noted or await self._last_use(idle, now), now, before, run_s)
        known, count = await self._due(known, idle, now, before, keep)
        if not count and noted and not (noted.held or known.held) and now - noted.at < STEP_S:
            return (
                0  # nothing to delete, and little time has passed: a gateway runs for every owner, every hour
            )
        if not await self._note(seen, known, now):
            return 0  # another program ran at this moment
        gone = await self._store.expire(self._owner, before, keep, count) if count else 0
        if gone:
            _log.info("%d conversations were deleted: nothing happened in them for %g days", gone, self._days)
        if known.held and idle.idle > gone and self._warned != known.held.since:
            self._warned = known.held.since  # one warning per program and deletion
            self._warn(self._warning(known, idle.idle - gone, idle.conversations - gone))
        return gone

    async def apply_in_passing(self, names: Collection[str]) -> None:
        """Like `apply`, but log an error of the store instead of raising it: the caller's own act must not
        fail.
        """
        try:
            await self.apply(names)
        except StoreError as error:
            _log.warning("old conversations could not be deleted: %s", error.message)

    async def begin_in_passing(self) -> None:
        """Like `begin`, but log an error of the store instead of raising it."""
        try:
            await self.begin()
        except StoreError as error:
            _log.warning("the last use of the store could not be recorded: %s", error.message)

    async def _due(
        self, known: StoreClock, idle: Idle, now: float, before: float, keep: Sequence[str]
    ) -> tuple[StoreClock, int]:
        """Return how many of the oldest conversations this run deletes, and the row after it."""
        held, confirmed = known.held, 0
        if held:
            if (held.waited_s if held.reason == "clock" else self._waited(held, now)) < DAY_S:
                return known, 0
            # `keep_days` may have grown since then: such conversations are not due any more.
            confirmed = (await self._store.idle(self._owner, min(before, held.before), keep)).idle
        allowed = most_at_once(self._share, idle.conversations)
        rest = idle.idle - confirmed
        waits = WaitingDeletion("share", now, before) if rest > allowed else None
        if waits:
            self._seen = waits.since, now, self._steady()
        return StoreClock(max(known.at, now), now, waits), confirmed + min(rest, allowed)

    def _waited(self, held: WaitingDeletion, now: float) -> float:
        """Return for how long a deletion has waited, in seconds."""
        if self._seen is None or self._seen[0] != held.since:
            self._seen = held.since, now, self._steady()
        _, first, steady = self._seen
        return min(now, first + self._steady() - steady) - held.since

    async def _last_use(self, idle: Idle, now: float) -> StoreClock:
        """Return the first row of a store. If most conversations were used later than now, the clock is behind.
        If only some were, these were used by a clock that was ahead, and the row is not later than now.
        """
        if idle.last_used - now <= JUMP_S:
            return StoreClock(min(idle.last_used, now), now)
        used_by_now = (await self._store.idle(self._owner, now + JUMP_S)).idle
        return StoreClock(idle.last_used if 2 * used_by_now < idle.conversations else now, now)

    async def _note(self, seen: bytes | None, known: StoreClock, now: float) -> bool:
        return await self._store.swap_learnt(self._owner, TOPIC, KEY, seen, json.encode(known), now)

    def _warning(self, known: StoreClock, waiting: int, conversations: int) -> str:
        waits = (
            f"not deleted yet: {waiting} of {conversations} conversations that are past {self._days:g} days"
        )
        if known.held and known.held.reason == "clock":
            ahead = (known.looked_at - known.at) / DAY_S
            return (
                f"{waits}; the clock is {ahead:.1f} days ahead of the last use of the store, and is believed once it has run on "
                "for a day"
            )
        return f"{waits}; one run deletes {100 * self._share:g} % of all at most, and the rest a day later"


async def held_back(store: Store, owner: str) -> HeldBack | None:
    """Return the deletions that the last run held back and that are still due; None if there are none."""
    known = _read_row(await store.learnt(owner, TOPIC, KEY))
    if known is None or known.held is None:
        return None
    waiting = (await store.idle(owner, known.held.before)).idle
    return HeldBack(waiting, known.held.reason, known.held.since) if waiting else None


async def clock_lead_s(store: Store, owner: str, now: float) -> float:
    """Return how far the clock is ahead of the store's last use, if that is too far to be believed; else 0."""
    known = _read_row(await store.learnt(owner, TOPIC, KEY))
    last = (await store.idle(owner, now)).last_used
    if known is not None:
        # Conversations used while the clock was in doubt are dated by it.
        last = known.at if known.held and known.held.reason == "clock" else max(known.at, last)
    return now - last if last and now - last > JUMP_S else 0.0


async def believed_time(store: Store, owner: str) -> float:
    """Return the latest moment that a run believed; 0 where nothing is ever deleted."""
    known = _read_row(await store.learnt(owner, TOPIC, KEY))
    return known.at if known else 0.0


def most_at_once(share: float, conversations: int) -> int:
    """Return how many conversations may be deleted without a wait or a question: at least one, unless the
    share is 0.
    """
    return max(1, floor(share * conversations)) if share else 0


def _read_row(row: bytes | None) -> StoreClock | None:
    try:
        return None if row is None else json.decode(row, type=StoreClock)
    except ValidationError:
        return None  # an earlier version stored infinity, which JSON does not have: the row is written anew


def _after_look(known: StoreClock, now: float, before: float, run_s: float = inf) -> StoreClock:
    """Return the row after one more look at the clock. `run_s` is the time since this program looked before."""
    held = known.held
    if now - known.at <= JUMP_S:  # believed; a clock that was ahead has been set right
        return StoreClock(max(known.at, now), now, held if held and held.reason == "share" else None)
    step = now - known.looked_at
    if held and held.reason == "clock" and step >= 0:
        held = structs.replace(held, waited_s=held.waited_s + min(step, STEP_S, run_s))
    else:  # it jumped just now, or again
        held = WaitingDeletion("clock", now, before)
    return StoreClock(known.at, now, held)


def checked_days(days: float) -> float:
    """Check a number of days.

    Raises:
        ConfigError: the number is not above 0 and finite.
    """
    if not isinstance(days, int | float):
        raise ConfigError("keep_days must be a number", hint="leave it out to keep conversations for ever")
    if not 0 < days < inf:
        raise ConfigError(
            f"conversations cannot be kept for {days:g} days",
            hint="give a number above 0, or none at all to keep them for ever",
        )
    return days


def checked_share(share: float) -> float:
    """Check a share.

    Raises:
        ConfigError: the number is not between 0 and 1.
    """
    if not isinstance(share, int | float):
        raise ConfigError("max_expired_share must be a number", hint="give 0 to 1, such as 0.1 for 10 %")
    if not 0 <= share <= 1:
        raise ConfigError(
            f"{share:g} is not a share of the conversations", hint="give 0 to 1, such as 0.1 for 10 %"
        )
    return share


def checked_moment(moment: float) -> float:
    """Check a moment.

    Raises:
        ConfigError: the number is not finite.
    """
    if not isinstance(moment, int | float):
        raise ConfigError("a moment must be a number", hint="give it in seconds since the epoch")
    if not isfinite(moment):
        raise ConfigError(f"{moment:g} is not a moment", hint="give it in seconds since the epoch")
    return moment
