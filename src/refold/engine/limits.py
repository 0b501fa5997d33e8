"""What refusals have taught about how much a provider takes.

One idea: a limit that the provider has stated is a fact, once a smaller window was answered. That something was too long,
without a number, says only that this much was too much, and not for long: another reason may have been behind it.
"""

from __future__ import annotations

from refold.model.overflow import Overflow

RECOVERY_MARGIN = 0.95
"""A learnt limit is the provider's count; ours differs from it by a few percent."""
BLIND_RECOVERY = 0.7
"""How much of the last window to try next where the provider stated no limit."""


class Limits:
    """Limits in our own tokens: one that was stated, one for this turn, and what the call at hand is shrunk to."""

    def __init__(self) -> None:
        self.attempts = 0
        self.stated: int | None = None
        self._turn: int | None = None
        self._tried: int | None = None
        self._learnt = 0
        self._is_stated = False

    @property
    def limit(self) -> int | None:
        known = (limit for limit in (self.stated, self._turn, self._tried) if limit is not None)
        return min(known, default=None)

    def refuse(self, found: Overflow, *, sent: int, ratio: float, max_output: int) -> None:
        """A window that takes `sent` of our tokens was refused; `ratio` of the provider's make one of them."""
        output = found.output or max_output
        counted = found.prompt or (found.requested - output if found.requested else 0)
        ratio = max(ratio, counted / sent) if sent else ratio
        self._is_stated = found.limit is not None and found.limit_of == "window"
        room = int(((found.limit or 0) - output) * RECOVERY_MARGIN / ratio) if self._is_stated else 0
        self._is_stated = 0 < room < sent
        self._learnt = room if self._is_stated else int(sent * RECOVERY_MARGIN)
        self._tried = room if self._is_stated else int(sent * BLIND_RECOVERY)
        self.attempts += 1

    def give_up(self) -> None:
        """Nothing smaller could be sent: what was tried says nothing."""
        self._tried = None

    def answer(self) -> None:
        """A reply came: the next call has all its tries, and what was learnt on the way is true."""
        if self._tried is not None and self._is_stated:
            self.stated = self._learnt
        elif self._tried is not None:
            self._turn = self._learnt
        self._tried, self.attempts = None, 0

    def turn(self) -> None:
        """The user speaks: what nobody stated is forgotten."""
        self._turn = None
