"""Stages: pure reductions of the messages shown, composed as a list by a policy.

A stage takes the messages that would be sent (`Shown`) and the room for them (`Room`), and returns a
`StageResult`: the messages shown now, an Edit for each change, and the reason if it changed nothing. The
original of everything that a stage replaces stays in the branch, and its stub names it by its handle, so
nothing is lost.

Stages never change the active turn or pinned messages. Each is idempotent.

    cause      supersede                  a later event made it worthless
    age        prune, trim, reasoning, media
    pressure   mask, fade                 the fuller the window, the less is left
    size       fit                        no single part takes more than its share
    selection  select, drop               messages that do not fit are removed, to be summarised
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
"""Every stage that a policy can name; in data, the tag selects the type."""
