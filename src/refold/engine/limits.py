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
        self.output: int | None = None
        """The output that the call at hand is lowered to after a refusal."""
        self._window: int | None = None
        self._stated_window: int | None = None
        self._learnt: int | None = None
        self._is_stated = False
        self.is_of_model = True
        """Is `stated` a limit of the model? Otherwise it is one of this conversation alone, see `refuse`."""
        self._is_counted = True

    @property
    def limit(self) -> int | None:
        known = (limit for limit in (self.stated, self._turn, self._tried) if limit is not None)
        return min(known, default=None)

    @property
    def window(self) -> int | None:
        """The window that a provider stated when it refused input and output together, as it counts."""
        return self._stated_window or self._window

    def refuse(
        self,
        found: Overflow,
        *,
        sent: int,
        ratio: float,
        max_output: int,
        lowered: int | None = None,
        is_counted: bool = True,
    ) -> None:
        """A window that takes `sent` of our tokens was refused; `ratio` of the provider's make one of them. The next one is smaller,
        and asks for `lowered` output where given.

        Where not `is_counted`, the prompt also holds tokens that only the provider can count. They stay whatever else is taken away,
        so they are taken off the limit, and that limit is no other conversation's.
        """
        output = found.output or max_output
        counted = found.prompt or (found.requested - output if found.requested else 0)
        extra = 0 if is_counted else max(0, counted - int(sent * ratio))
        ratio = max(ratio, counted / sent) if sent and is_counted else ratio
        self._is_counted = is_counted
        self._is_stated = found.limit is not None and found.limit_of == "window"
        output = output if lowered is None else lowered
        room = int(((found.limit or 0) - output - extra) * RECOVERY_MARGIN / ratio) if self._is_stated else 0
        self._is_stated = 0 < room < sent
        self._learnt = room if self._is_stated else int(sent * RECOVERY_MARGIN)
        self._tried = room if self._is_stated else int(sent * BLIND_RECOVERY)
        self.output = lowered
        self._state_window(found)
        self.attempts += 1

    def lower_output(self, found: Overflow, output: int, *, sent: int) -> None:
        """Input and output together were refused: the same window is tried with less output."""
        self.output, self._tried, self._learnt = output, sent, None
        self._state_window(found)
        self.attempts += 1

    def _state_window(self, found: Overflow) -> None:
        if found.kind == "input_plus_output" and found.limit_of == "window":
            self._stated_window = found.limit

    def give_up(self) -> None:
        """Nothing smaller could be sent: what was tried says nothing."""
        self._tried = self.output = self._stated_window = None

    def answer(self) -> None:
        """A reply came: the next call has all its tries, and what was learnt on the way is true."""
        if self._tried is not None and self._learnt is not None:
            if self._is_stated:
                self.stated, self.is_of_model = self._learnt, self._is_counted
            else:
                self._turn = self._learnt
        self._window = self.window
        self._tried, self.output, self._stated_window, self.attempts = None, None, None, 0

    def turn(self) -> None:
        """The user speaks: what nobody stated is forgotten."""
        self._turn = None
