"""Summaries that were paid for, kept while the program runs."""

from __future__ import annotations

from refold.model.summary import Summary

MOST = 1_000
"""Summaries of a few thousand tokens each: some megabytes."""


class KeptInMemory:
    """The newest summaries by their key."""

    def __init__(self) -> None:
        self._kept: dict[str, Summary] = {}

    async def get(self, key: str) -> Summary | None:
        return self._kept.get(key)

    async def put(self, key: str, summary: Summary) -> None:
        self._kept[key] = summary
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
