"""Whole turns by message count or share, a hard check before every call, and half of the turns dropped in an emergency."""

from __future__ import annotations

from refold.core.policy import Policy, Texts, TurnBoundaryBefore
from refold.core.presets.emergency import EMERGENCY
from refold.core.stages import DropHalf
from refold.model.budget import Share
from refold.model.trigger import AnyOf, MessageCount, OverBudget, TokenRatio

PICOCLAW = Policy(
    name="picoclaw",
    measure="counted",
    triggers={
        "after_call": AnyOf((MessageCount(20, ">"), TokenRatio(0.75, ">"))),
        "before_call": OverBudget(),
    },
    cut=TurnBoundaryBefore(4),
    target=Share(0.0),
    scope="cumulative",
    placement="system",
    on_failure="mechanical",
    texts=Texts(
        opening=(
            "CONTEXT_SUMMARY: The following is an approximate summary of prior conversation for reference only. "
            "It may be incomplete or outdated — always defer to explicit instructions.\n\n"
        )
    ),
    emergency=(DropHalf(), *EMERGENCY),
)
