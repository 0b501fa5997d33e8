"""Calibration: how a provider's counts relate to ours, learnt from what it reports.

One idea: a prompt costs a fixed part, the instructions, and a part that grows with the messages. The ratio is that of two
sums, everything reported for messages over everything we counted for them, so that one odd call moves it little. The fixed
part shows when two calls with different messages are compared: what the growth does not explain was there before it.
"""

from __future__ import annotations

from msgspec import Struct, structs

RATIO_RANGE = (0.5, 5.0)
"""What a provider's count of the same text can be of ours; anything else is not a count of it."""
STABLE_SHARE = 0.10
"""Two observations of the instruction overhead agree when they differ by no more than this."""
CORRECTION_SHARE = 0.15
"""An estimate of the instruction overhead is corrected when it is further off than this."""
MIN_GROWTH = 0.05
"""Two calls that differ by less than this tell more about noise than about growth."""


class Calibration(Struct, frozen=True):
    """What was learnt about one model. Kept per model across restarts."""

    reported: int = 0
    counted: int = 0
    ratio: float = 1.0
    overhead: int | None = None
    """Instruction tokens as the provider counts them, once two observations agreed."""
    last_overhead: int | None = None
    last_prompt: int = 0
    last_counted: int = 0


def observe(calibration: Calibration, *, prompt: int, counted: int, instructions: int) -> Calibration:
    """Learn from one call: its reported prompt, our count of its messages, our estimate of its instructions."""
    if counted <= 0 or prompt < RATIO_RANGE[0] * counted:
        return calibration
    learnt = _observe_overhead(calibration, prompt, counted)
    if learnt.overhead != calibration.overhead:
        learnt = structs.replace(learnt, reported=0, counted=0)
    return _observe_ratio(learnt, prompt - instruction_tokens(instructions, learnt), counted)


def _observe_ratio(calibration: Calibration, messages: int, counted: int) -> Calibration:
    """Take a call's messages into the sums, unless the report leaves too little for them: cache accounting does that."""
    low, high = RATIO_RANGE
    if messages <= 0 or messages < low * counted:
        return calibration
    reported_sum, counted_sum = calibration.reported + messages, calibration.counted + counted
    ratio = min(high, max(low, reported_sum / counted_sum))
    return structs.replace(calibration, reported=reported_sum, counted=counted_sum, ratio=ratio)


def _observe_overhead(calibration: Calibration, prompt: int, counted: int) -> Calibration:
    """Compare with the call before: the slope is the ratio, the rest the overhead."""
    more, last = counted - calibration.last_counted, calibration.last_overhead
    remembered = structs.replace(calibration, last_prompt=prompt, last_counted=counted)
    if not calibration.last_counted or abs(more) < MIN_GROWTH * counted:
        return remembered
    slope = (prompt - calibration.last_prompt) / more
    observed = round(prompt - slope * counted)
    if not RATIO_RANGE[0] <= slope <= RATIO_RANGE[1] or observed < 0:
        return structs.replace(remembered, last_overhead=None)
    agrees = last is not None and abs(observed - last) <= STABLE_SHARE * max(last, 1)
    best = observed if agrees else calibration.overhead
    return structs.replace(remembered, overhead=best, last_overhead=observed)


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
    return structs.replace(calibration, reported=0, counted=0, last_prompt=0, last_counted=0)
