"""Settings that presets share for cases that their systems leave open.

If nothing makes the window fit, the original systems give up or loop. This engine requires a window that
fits, or a clear error.
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
"""From the mildest to the hardest: content that is not read again, one huge part that was read, the oldest
replies, then a little of everything, with unread messages last."""

RESERVE = Share(0.01)
"""Providers add framing of their own that no tokenizer sees."""

SUMMARY_SHARE = Share(0.15, "effective")
"""No system limits its summaries by the window. With the same room for all, a replay compares their
compaction; it is more than models write unasked."""
