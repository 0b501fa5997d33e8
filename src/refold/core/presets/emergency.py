"""What presets share where their systems say nothing.

When nothing else makes the window fit, the systems themselves either give up or loop; the rules of this engine ask for a
window that fits, or a clear error.
"""

from __future__ import annotations

from refold.core.stages import AnyStage, DescribeMedia, DropReasoning, Fit, Select, Squeeze
from refold.model.budget import Share

EMERGENCY: tuple[AnyStage, ...] = (
    DropReasoning(),
    DescribeMedia(),
    Fit(result_share=0.3, input_share=0.15, user_share=0.3, measured=True, active=True, unread=False),
    Select(),
    Squeeze(),
)
"""From the mildest to the hardest: what nobody reads again, one huge thing that was read, the oldest replies, then a little of
everything, and of what was not read yet last of all."""

AHEAD = Share(0.7)
"""How full the window is when a model is asked for a summary: all systems compact from about 80 % on, and writing one takes
about as long as a few replies."""

SUMMARY_SHARE = Share(0.15, "effective")
"""No system bounds its summaries by the window. With the same room for all, a replay compares how they fold; it is more than
models write unasked."""
