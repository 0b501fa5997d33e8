"""Calibration: how a provider's counts relate to ours, learnt from what it reports.

One idea: the ratio is that of two sums, everything the provider reported for messages over everything we counted for them,
so that one odd call moves it little. Calls that cannot be real measurements are left out.
"""

from __future__ import annotations

from msgspec import Struct, structs

RATIO_RANGE = (0.5, 5.0)
ARTEFACT_SHARE = 0.5
"""A report below half of our own count is an artefact of cache accounting, not a measurement."""
STABLE_SHARE = 0.10
"""Two observations of the instruction overhead agree when they differ by no more than this."""
CORRECTION_SHARE = 0.15
"""An estimate of the instruction overhead is corrected when it is further off than this."""


class Calibration(Struct, frozen=True):
    """What was learnt about one model. Kept per model across restarts."""

    reported: int = 0
    counted: int = 0
    ratio: float = 1.0
    overhead: int | None = None
    """Instruction tokens as the provider counts them, once two observations agreed."""
    last_overhead: int | None = None


def observe(calibration: Calibration, *, prompt: int, counted: int, instructions: int) -> Calibration:
    """Learn from one call: its reported prompt, our count of its messages, our count of its instructions."""
    if counted <= 0 or prompt <= instructions or prompt < instructions + ARTEFACT_SHARE * counted:
        return calibration
    reported_sum = calibration.reported + prompt - instructions
    counted_sum = calibration.counted + counted
    low, high = RATIO_RANGE
    ratio = min(high, max(low, reported_sum / counted_sum))
    learnt = structs.replace(calibration, reported=reported_sum, counted=counted_sum, ratio=ratio)
    return _observe_overhead(learnt, prompt - round(counted * calibration.ratio))


def _observe_overhead(calibration: Calibration, observed: int) -> Calibration:
    last = calibration.last_overhead
    stable = last is not None and observed > 0 and abs(observed - last) <= STABLE_SHARE * last
    best = observed if stable else calibration.overhead
    return structs.replace(calibration, overhead=best, last_overhead=max(0, observed))


def calibrated(tokens: int, calibration: Calibration) -> int:
    """Our count in the provider's tokens."""
    return round(tokens * calibration.ratio)


def instruction_tokens(estimate: int, calibration: Calibration) -> int:
    """The instruction overhead to plan with: the estimate, unless the provider's own is known to be far from it."""
    observed = calibration.overhead
    if observed is None or abs(observed - estimate) <= CORRECTION_SHARE * estimate:
        return estimate
    return observed


def forget_sums(calibration: Calibration) -> Calibration:
    """After an edit to what was sent, the sums speak of text that is gone; the ratio stays."""
    return structs.replace(calibration, reported=0, counted=0)
