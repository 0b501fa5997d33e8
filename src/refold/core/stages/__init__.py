"""Stages: pure reductions of what is shown, each one idea, composed as a visible list by a policy.

A stage takes what would be sent (`Shown`) and the room there is (`Room`), and gives back a `StageResult`: what is shown
now, an Edit for each thing it changed, and where it changed nothing the reason. The original of everything that a stage
replaces stays in the branch, and the Stub that stands for it names it by its Handle, so nothing is ever lost.

Stages never touch what is protected: the active turn, and what is pinned. Each is idempotent.

    cause      supersede                  something later made it worthless
    age        prune, trim, reasoning, media
    pressure   mask, fade                 the fuller the window, the less is left
    size       fit                        no single thing takes more than its share
    selection  select, drop               what does not fit goes to be summarised
    emergency  squeeze                    a little of everything; the one stage that cuts inside the active turn unasked
"""

from __future__ import annotations

from typing import TypeAlias

from refold.core.stages.drop import DropHalf
from refold.core.stages.fade import Fade
from refold.core.stages.fit import Fit
from refold.core.stages.mask import Mask
from refold.core.stages.media import DescribeMedia
from refold.core.stages.prune import Prune
from refold.core.stages.reasoning import DropReasoning
from refold.core.stages.select import Select
from refold.core.stages.squeeze import Squeeze
from refold.core.stages.supersede import Supersede
from refold.core.stages.trim import Trim

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
    "Trim",
]

AnyStage: TypeAlias = (
    DescribeMedia | DropHalf | DropReasoning | Fade | Fit | Mask | Prune | Select | Squeeze | Supersede | Trim
)
"""Every stage, as a policy can name it: the tag tells them apart in data."""
