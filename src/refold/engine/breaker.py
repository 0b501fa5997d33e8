"""When no model is asked for summaries: the money is spent, or it has failed again and again.

One idea: the store knows both. What was paid is the sum of the calls that are kept, and how often it failed stands in the
compactions that came to nothing, so that neither a restart nor another program begins to count anew.
"""

from __future__ import annotations

from refold.engine.journal import Journal
from refold.engine.work import Outcome

MAX_FAILURES = 3
"""After so many summaries in a row that could not be written, the model rests: each costs, and nothing comes of it."""
REST_S = 300.0
"""Then it is asked once more: outages of a few minutes are the usual ones."""


class Breaker:
    """What one conversation may spend on summaries, in dollars and in patience."""

    def __init__(self, journal: Journal, max_spend: float | None = None) -> None:
        self._journal, self._max_spend = journal, max_spend
        self.spent, self.failures, self._failed_at = 0.0, 0, 0.0
        self._is_known = False

    @property
    def is_open(self) -> bool:
        """Is nobody asked, as far as is known?"""
        is_spent = self._max_spend is not None and self.spent >= self._max_spend
        # A clock that was set back must not make the rest longer.
        is_resting = 0 <= self._journal.clock() - self._failed_at < REST_S
        return is_spent or (self.failures >= MAX_FAILURES and is_resting)

    async def may_ask(self) -> bool:
        """To be asked before every question."""
        await self.look()
        return not self.is_open

    async def look(self) -> None:
        """Learn what the store knows."""
        seen = self._journal.seen
        self.spent = await self._journal.store.spent(seen.owner, seen.conversation, "summary")
        if not self._is_known:
            self.failures, self._failed_at = await self._journal.store.failures(seen.owner, seen.branch)
            self._is_known = True

    def note(self, outcome: Outcome) -> None:
        """Take in what came of a question; what was there already says nothing about the model."""
        if outcome.has_failed:
            self.failures, self._failed_at = self.failures + 1, self._journal.clock()
        elif outcome.is_asked:
            self.failures = 0
