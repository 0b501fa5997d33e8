"""The preset `refold`: append only, and one deep compaction when the window is full.

The shares were found by replaying 79 recorded sessions; `docs/evaluation.md` shows their effect. A small
tail and a large digest know most: a reply answers the last exchange, and needs only pieces of everything
before it. The size after a compaction shrinks with the size of the window: a small window needs all it can
keep, and a large one is cheaper to fill again than to carry along.
"""

from __future__ import annotations

from refold.core.policy import Exchanges, Policy, Texts
from refold.core.presets.emergency import EMERGENCY, RESERVE
from refold.core.stages import DescribeMedia, DropReasoning, Supersede
from refold.model.budget import Share

REFOLD = Policy(
    name="refold",
    triggers={},
    stages=(Supersede(active=True), DropReasoning(), DescribeMedia()),
    cut=Exchanges(Share(0.1, "effective")),
    whole_turn=Share(0.1),
    target=Share(0.69, "effective", sinks=0.105, least=0.45),
    summary_share=Share(0.6),
    prepares=True,
    by_price=True,
    soft=0.8,
    on_switch="bridge",
    reserve=RESERVE,
    scope="cumulative",
    placement="user",
    on_failure="digest",
    texts=Texts(
        opening="[Earlier messages {handles}, shortened{recall}]\n",
        closing="\n[End of the earlier messages]",
    ),
    emergency=EMERGENCY,
)
