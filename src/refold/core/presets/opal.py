"""The preset `opal`: cut at a user message, split turns that are too large, and keep one cumulative summary.

The window is checked when a turn starts. The cut is the first user message after the point at which a
quarter of the window is kept. `structs.replace(OPAL, cut=UserBoundaryAfter(Tokens(20_000)))` keeps a
number of tokens instead; a compaction on request does so anyway, or keeps the number that it is given.
"""

from __future__ import annotations

from refold.core.policy import Policy, Recovery, Texts, UserBoundaryAfter
from refold.core.presets.emergency import EMERGENCY, RESERVE, SUMMARY_SHARE
from refold.model.budget import Share, Tokens
from refold.model.trigger import TokenRatio

OPAL = Policy(
    name="opal",
    measure="hybrid",
    triggers={"turn_start": TokenRatio(0.8, ">=")},
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    on_switch="wait",
    reserve=RESERVE,
    cut=UserBoundaryAfter(Share(0.25)),
    manual=UserBoundaryAfter(Tokens(20_000)),
    source="previous",
    scope="cumulative",
    placement="user",
    on_failure="mechanical",
    fallback="mechanical",
    recovery=Recovery(keep=Share(0.2)),
    texts=Texts(opening="[Conversation summary — older messages were compacted]\n\n"),
    emergency=EMERGENCY,
)
