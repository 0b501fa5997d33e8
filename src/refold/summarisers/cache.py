"""Answers that were paid for.

One idea: whoever asks looks here first, and two who ask the same at the same time ask once. A cache that fails costs money and
never a summary.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakValueDictionary

from refold.model.summary import Summary
from refold.ports.summariser import SummaryCache

MOST = 1_000
"""Summaries of a few thousand tokens each: some megabytes."""

_log = logging.getLogger("refold.summarisers")


class KeptInMemory:
    """The newest summaries by their key, while the program runs."""

    def __init__(self) -> None:
        self._kept: dict[str, Summary] = {}

    async def get(self, key: str) -> Summary | None:
        return self._kept.get(key)

    async def put(self, key: str, summary: Summary) -> None:
        self._kept[key] = summary
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]


class Shelf:
    """Any cache, as those who pay use it."""

    def __init__(self, cache: SummaryCache) -> None:
        self._cache = cache
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def alone(self, key: str) -> asyncio.Lock:
        """Held while something is looked up and asked for: the next in line finds it."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def get(self, key: str) -> Summary | None:
        try:
            return await self._cache.get(key)
        except Exception as error:  # noqa: BLE001  # somebody else's cache
            _log.warning("a summary could not be looked up: %s", type(error).__name__)
            return None

    async def put(self, key: str, summary: Summary) -> None:
        try:
            await self._cache.put(key, summary)
        except Exception as error:  # noqa: BLE001  # it was paid for and is at hand: it is used, kept or not
            _log.warning("a summary could not be kept: %s", type(error).__name__)
