"""Shrinks tool results and call arguments in steps, as the window fills.

Each band of pressure allows results a share of a smaller room, and the oldest result a fifth of the
newest. Used by policies without summaries, and as an emergency.
"""

from __future__ import annotations

from msgspec import Struct

from refold.core.budget import exact
from refold.core.shown import Room, Shown, StageResult
from refold.core.stages.fit import Fit


class Band(Struct, frozen=True, array_like=True):
    """From this pressure on, results are measured against this part of the room."""

    pressure: float
    factor: float


class Fade(Struct, frozen=True, tag="fade"):
    bands: tuple[Band, ...] = (Band(0.8, 1.0), Band(0.85, 0.5), Band(0.9, 0.2), Band(0.99, 0.05))
    """From light cuts of the oldest results to little more than a line of each."""
    base: int = 1_024
    """Least tokens of a band: with fewer, results would be useless in a small window."""
    fit: Fit = Fit()
    """The share of a band's tokens that a single result or input may take."""

    def apply(self, shown: Shown, room: Room) -> StageResult:
        pressure = room.pressure(shown)
        reached = [band for band in self.bands if pressure >= exact(band.pressure)]
        if not reached:
            return StageResult.skipped(shown, "the window is not full enough to fade anything")
        band = max(reached, key=lambda band: band.pressure)
        tokens = max(self.base, int(max(0, room.tokens) * exact(band.factor)))
        reason = f"the window is {band.pressure:.0%} full"
        return self.fit.within(shown, room, tokens, "fade", reason)
