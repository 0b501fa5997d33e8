"""What every preset does when nothing else makes the window fit.

The systems themselves either give up here or loop; the rules of this engine ask for a window that fits, or a clear error.
"""

from __future__ import annotations

from refold.core.stages import AnyStage, DropHalf, Fit, Select, Squeeze

EMERGENCY: tuple[AnyStage, ...] = (
    Fit(result_share=0.3, input_share=0.15, user_share=0.3, measured=True, active=True),
    Select(),
    DropHalf(),
    Squeeze(),
)
"""From the mildest to the hardest: one huge thing, then the oldest replies, then half of the turns, then all of it."""
