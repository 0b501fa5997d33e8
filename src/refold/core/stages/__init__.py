"""Stages: pure reductions of the messages shown, composed as a list by a policy.

A stage takes the messages that would be sent (`ShownMessages`) and the room for them (`Room`), and returns a
`StageResult`: the messages shown now, an Edit for each change, and the reason if it changed nothing. The
original of everything that a stage replaces stays in the branch, and its stub names it by its handle, so
nothing is lost.

Stages never change pinned messages, and the active turn only where they say so. Each is idempotent.

    module         stages
    tool_results   Supersede              a later event made a result worthless
                   Prune, Trim, Mask      old output: by total size, by age, or when the window fills
                   Tiers                  old output cut before whole turns leave, in the active turn as well
    fit            Fit, Fade, Squeeze     no part takes more than its share; `Squeeze` alone cuts inside the active turn unasked
    removal        DropReasoning          reasoning of earlier turns
                   DescribeMedia          media of earlier turns
                   Select, DropHalf       messages that do not fit are removed, to be summarised
"""

from __future__ import annotations

from typing import TypeAlias

from refold.core.stages.fit import Fade, Fit, Squeeze
from refold.core.stages.removal import DescribeMedia, DropHalf, DropReasoning, Select
from refold.core.stages.tool_results import Mask, Prune, Supersede, Tiers, Trim

__all__ = [
    "AnyStage",
    "DescribeMedia",
    "DropHalf",
    "DropReasoning",
    "Fade",
    "Fit",
    "Mask",
    "Prune",
    "Select",
    "Squeeze",
    "Supersede",
    "Tiers",
    "Trim",
]

AnyStage: TypeAlias = (
    DescribeMedia
    | DropHalf
    | DropReasoning
    | Fade
    | Fit
    | Mask
    | Prune
    | Select
    | Squeeze
    | Supersede
    | Tiers
    | Trim
)
"""Every stage that a policy can name; in data, the tag selects the type."""
