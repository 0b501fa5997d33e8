"""The preset `picoclaw`: whole turns, by message count or share of the window.

Half of the turns are dropped if a call cannot wait for a summary. Sizes are an estimate by characters,
including the output. The check before a call holds for every preset: a window that does not fit with its
output is not sent.
"""

from __future__ import annotations

from refold.core.policy import Policy, Texts, TurnBoundaryBefore
from refold.core.presets.emergency import EMERGENCY, SUMMARY_SHARE
from refold.core.prompts import Recipe
from refold.core.stages import DropHalf
from refold.model.budget import Share
from refold.model.trigger import AnyOf, MessageCount, OverBudget

PICOCLAW = Policy(
    name="picoclaw",
    measure="characters",
    triggers={"after_call": AnyOf((MessageCount(20, ">"), OverBudget(0.75)))},
    hard=(DropHalf(),),
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    soft=1.0,
    on_switch="go_on",
    window_outputs=4,
    cut=TurnBoundaryBefore(4),
    source="previous",
    scope="cumulative",
    placement="system",
    on_failure="mechanical",
    recipe=Recipe(strategy="selective"),
    texts=Texts(
        opening=(
            "CONTEXT_SUMMARY: The following is an approximate summary of prior conversation for reference only. "
            "It may be incomplete or outdated — always defer to explicit instructions.\n\n"
        ),
        fence="context_summary",
        dropped="\n[Emergency compression dropped {count} oldest messages due to context limit] {handles}",
    ),
    emergency=EMERGENCY,
)
