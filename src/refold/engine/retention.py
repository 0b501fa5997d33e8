"""How long conversations are kept.

One idea: nothing is deleted unless somebody has said for how long it is to be kept. Then what nothing happened in for longer is
deleted as if it had been asked for by name, and what is open here stays: whoever holds a conversation is about to go on with it,
and nothing may vanish between two of their sentences.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from math import inf, isfinite

from refold.model.errors import ConfigError, StoreError
from refold.ports.store import Store

DAY_S = 86_400.0
PAUSE_S = 3_600.0
"""Between two looks: who keeps things for days does not mind an hour, and a purge is work."""

_log = logging.getLogger("refold")


class Retention:
    """What one owner wants kept, in days; None keeps it for ever."""

    def __init__(self, store: Store, owner: str, days: float | None, clock: Callable[[], float]) -> None:
        self._store, self._owner, self._clock = store, owner, clock
        self._days, self._looked_at = None if days is None else checked_days(days), -inf

    async def apply(self, names: Collection[str]) -> int:
        """Delete what is past its time, apart from conversations of these names; once an hour at most. How many there were."""
        now = self._clock()
        # By a clock that may have been set back since.
        if self._days is None or 0 <= now - self._looked_at < PAUSE_S:
            return 0
        self._looked_at = now
        gone = await self._store.expire(self._owner, now - self._days * DAY_S, sorted(names))
        if gone:
            _log.info("%d conversations were deleted: nothing happened in them for %g days", gone, self._days)
        return gone

    async def apply_in_passing(self, names: Collection[str]) -> None:
        """Likewise, while something else is done that must not fail for it."""
        try:
            await self.apply(names)
        except StoreError as error:
            _log.warning("old conversations could not be deleted: %s", error.message)


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


def checked_moment(moment: float) -> float:
    """
    Raises:
        ConfigError: this is no moment, and nobody can say what happened before it.
    """
    if not isfinite(moment):
        raise ConfigError(f"{moment:g} is no moment", hint="give it in seconds since the epoch")
    return moment
