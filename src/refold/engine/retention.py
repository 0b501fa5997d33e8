"""How long conversations are kept, and what one retention run may delete.

Nothing is deleted unless somebody has said for how long it is to be kept (`keep_days`). Then a run deletes the conversations that
nothing happened in for longer, the oldest first, apart from those that are open here. It decides by the clock, and a clock can be
wrong, so two things wait for a later run:

- everything, while the clock is more than `JUMP_S` ahead of what the store knows of time. A clock that jumped and a store that
  nobody used for long look the same to the first run. Runs that follow tell them apart: the clock is believed once it has run on
  for a day in steps of at most `STEP_S`, which a clock that only jumps again does not do.
- whatever is above a share of the owner's conversations. It is deleted by the first run that comes a day later.

What the store knows of time, and what waits, is one row per owner. A run replaces the row it has read before it deletes anything,
so of two programs that run at the same moment one deletes, and a program that stops in between has deleted too little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from math import floor, inf, isfinite
from typing import Literal, TypeAlias

from msgspec import Struct, json, structs

from refold.model.errors import ConfigError, StoreError
from refold.ports.records import Idle
from refold.ports.store import Store

DAY_S = 86_400.0
PAUSE_S = 3_600.0
"""Between two looks: who keeps things for days does not mind an hour, and a purge is work."""
JUMP_S = 2 * DAY_S
"""How far ahead of the store's last use a clock is believed: a program that runs once a day stays below it."""
STEP_S = DAY_S / 4
"""The most that one run adds to the day that a doubtful clock has to run on for, however far it has moved since the run before. A
program that is always there runs every hour; for another it takes four more runs."""
MAX_SHARE = 0.10
"""Of the owner's conversations: retention deletes a few every day, and a tenth at once is a mistake more often than not."""
TOPIC, KEY = "retention", "time"
"""Where the row is: among what a store has learnt."""

Reason: TypeAlias = Literal["clock", "share"]

_log = logging.getLogger("refold")


class Held(Struct, frozen=True):
    """What waits: all that nothing happened in since `before`."""

    reason: Reason
    since: float
    before: float
    waited_s: float = 0.0
    """For how long a doubtful clock has run on."""

    def is_confirmed(self, now: float) -> bool:
        return (self.waited_s if self.reason == "clock" else now - self.since) >= DAY_S


class StoreClock(Struct, frozen=True):
    """What a store knows of time."""

    at: float
    """The latest moment that was believed."""
    looked_at: float
    """What the clock said when a run last looked."""
    held: Held | None = None


class HeldBack(Struct, frozen=True):
    """Conversations that are past their time and are not deleted yet, and why."""

    conversations: int
    reason: Reason
    since: float


class Retention:
    """What one owner wants kept, in days; None keeps it for ever."""

    def __init__(
        self,
        store: Store,
        owner: str,
        days: float | None,
        clock: Callable[[], float],
        max_share: float = MAX_SHARE,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self._store, self._owner, self._clock = store, owner, clock
        self._days, self._looked_at = None if days is None else checked_days(days), -inf
        self._share, self._warn, self._told = checked_share(max_share), warn, -inf

    async def begin(self) -> None:
        """Note when the store was last used, where no run has noted it yet: before anything is written by this clock."""
        if self._days is None or isfinite(self._looked_at):
            return
        if await self._store.learnt(self._owner, TOPIC, KEY) is None:
            now = self._clock()
            before = now - self._days * DAY_S
            idle = await self._store.idle(self._owner, before)
            if idle.conversations:
                await self._note(None, _looked(_last_use(idle, now), now, before), now)

    async def apply(self, names: Collection[str]) -> int:
        """Delete what is past its time, apart from conversations of these names; once an hour at most. How many there were."""
        now = self._clock()
        # By a clock that may have been set back since.
        if self._days is None or 0 <= now - self._looked_at < PAUSE_S:
            return 0
        self._looked_at = now
        before, keep = now - self._days * DAY_S, sorted(names)
        seen = await self._store.learnt(self._owner, TOPIC, KEY)
        idle = await self._store.idle(self._owner, before, keep)
        if not idle.conversations:
            return 0
        noted = _read(seen)
        known = _looked(noted or _last_use(idle, now), now, before)
        known, count = await self._due(known, idle, now, before, keep)
        if not count and noted and not (noted.held or known.held) and now - noted.at < STEP_S:
            return 0  # nothing to delete, and little time has passed: a gateway looks for every owner, every hour
        if not await self._note(seen, known, now):
            return 0  # another program ran at this moment
        gone = await self._store.expire(self._owner, before, keep, count) if count else 0
        if gone:
            _log.info("%d conversations were deleted: nothing happened in them for %g days", gone, self._days)
        if known.held and idle.idle > gone and self._told != known.held.since:
            self._told = known.held.since  # once in a program is enough
            self._warn(self._why(known, idle.idle - gone, idle.conversations - gone))
        return gone

    async def apply_in_passing(self, names: Collection[str]) -> None:
        """Likewise, while something else is done that must not fail for it."""
        try:
            await self.apply(names)
        except StoreError as error:
            _log.warning("old conversations could not be deleted: %s", error.message)

    async def begin_in_passing(self) -> None:
        """Likewise, for what comes before."""
        try:
            await self.begin()
        except StoreError as error:
            _log.warning("the last use of the store could not be noted: %s", error.message)

    async def _due(
        self, known: StoreClock, idle: Idle, now: float, before: float, keep: Sequence[str]
    ) -> tuple[StoreClock, int]:
        """How many of the oldest a run deletes, and what is known when it has."""
        held, confirmed = known.held, 0
        if held:
            if not held.is_confirmed(now):
                return known, 0
            # What is kept for longer by now than it was then is not past its time.
            confirmed = (await self._store.idle(self._owner, min(before, held.before), keep)).idle
        allowed = most_at_once(self._share, idle.conversations)
        rest = idle.idle - confirmed
        waits = Held("share", now, before) if rest > allowed else None
        return StoreClock(max(known.at, now), now, waits), confirmed + min(rest, allowed)

    async def _note(self, seen: bytes | None, known: StoreClock, now: float) -> bool:
        return await self._store.swap_learnt(self._owner, TOPIC, KEY, seen, json.encode(known), now)

    def _why(self, known: StoreClock, waiting: int, conversations: int) -> str:
        what = (
            f"not deleted yet: {waiting} of {conversations} conversations that are past {self._days:g} days"
        )
        if known.held and known.held.reason == "clock":
            ahead = (known.looked_at - known.at) / DAY_S
            return (
                f"{what}; the clock is {ahead:.1f} days ahead of the last use of the store, and is believed once it has run on "
                "for a day"
            )
        return f"{what}; one run deletes {100 * self._share:g} % of all at most, and the rest a day later"


async def held_back(store: Store, owner: str) -> HeldBack | None:
    """What the last run held back, as far as it is still there; None where that is nothing."""
    known = _read(await store.learnt(owner, TOPIC, KEY))
    if known is None or known.held is None:
        return None
    waiting = (await store.idle(owner, known.held.before)).idle
    return HeldBack(waiting, known.held.reason, known.held.since) if waiting else None


async def clock_lead_s(store: Store, owner: str, now: float) -> float:
    """By how much the clock is ahead of the last use of the store, where that is too much to be believed; else 0."""
    known = _read(await store.learnt(owner, TOPIC, KEY))
    last = (await store.idle(owner, now)).last_used
    if known is not None:
        # What was used while the clock was in doubt was dated by it.
        last = known.at if known.held and known.held.reason == "clock" else max(known.at, last)
    return now - last if last and now - last > JUMP_S else 0.0


def most_at_once(share: float, conversations: int) -> int:
    """How many of so many conversations are deleted without waiting or asking: one at least, unless the share is nothing."""
    return max(1, floor(share * conversations)) if share else 0


def _read(row: bytes | None) -> StoreClock | None:
    return None if row is None else json.decode(row, type=StoreClock)


def _last_use(idle: Idle, now: float) -> StoreClock:
    """What is known where no run has looked yet. A conversation may be dated by a clock that was ahead."""
    return StoreClock(min(idle.last_used, now), now)


def _looked(known: StoreClock, now: float, before: float) -> StoreClock:
    """What is known after one more look at the clock."""
    held = known.held
    if now - known.at <= JUMP_S:  # believed; a clock that was ahead has been set right
        return StoreClock(max(known.at, now), now, held if held and held.reason == "share" else None)
    step = now - known.looked_at
    if held and held.reason == "clock" and step >= 0:
        held = structs.replace(held, waited_s=held.waited_s + min(step, STEP_S))
    else:  # it jumped just now, or again
        held = Held("clock", now, before)
    return StoreClock(known.at, now, held)


def checked_days(days: float) -> float:
    """
    Raises:
        ConfigError: nothing can be kept for so long.
    """
    if not 0 < days < inf:
        raise ConfigError(
            f"conversations cannot be kept for {days:g} days",
            hint="give a number above 0, or none at all to keep them for ever",
        )
    return days


def checked_share(share: float) -> float:
    """
    Raises:
        ConfigError: this is no share of anything.
    """
    if not 0 <= share <= 1:
        raise ConfigError(
            f"{share:g} is no share of the conversations", hint="give 0 to 1, such as 0.1 for 10 %"
        )
    return share


def checked_moment(moment: float) -> float:
    """
    Raises:
        ConfigError: this is no moment, and nobody can say what happened before it.
    """
    if not isfinite(moment):
        raise ConfigError(f"{moment:g} is no moment", hint="give it in seconds since the epoch")
    return moment
