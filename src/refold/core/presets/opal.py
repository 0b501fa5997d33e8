"""Cut at the user boundary after the point, split turns that are too large, one cumulative summary."""

from __future__ import annotations

from refold.core.policy import Policy, Texts, UserBoundaryAfter
from refold.core.presets.emergency import EMERGENCY
from refold.model.budget import Share
from refold.model.trigger import ReportedOverflow, TokenRatio

OPAL = Policy(
    name="opal",
    measure="hybrid",
    triggers={"turn_start": TokenRatio(0.8, ">="), "after_call": ReportedOverflow()},
    cut=UserBoundaryAfter(Share(0.25)),
    target=Share(0.0),
    scope="cumulative",
    placement="user",
    on_failure="mechanical",
    texts=Texts(opening="[Conversation summary — older messages were compacted]\n\n"),
    emergency=EMERGENCY,
)
