"""Mask consumed tool results under pressure, fit single results, and summarise all but the last two turns."""

from __future__ import annotations

from refold.core.policy import LastTurns, Policy, Texts
from refold.core.presets.emergency import EMERGENCY
from refold.core.stages import Fit, Mask
from refold.model.budget import Share
from refold.model.trigger import TokenRatio

LIBRECHAT = Policy(
    name="librechat",
    measure="hybrid",
    triggers={"before_call": TokenRatio(0.8, ">=")},
    stages=(Mask(), Fit()),
    target=Share(1.0),
    cut=LastTurns(2),
    scope="cumulative",
    placement="user",
    on_failure="mechanical",
    texts=Texts(
        opening="<summary>\n",
        closing=(
            "\n</summary>\n\nThis is your own checkpoint of the work so far. Pick up where you left off; do not repeat "
            "what is done."
        ),
    ),
    emergency=EMERGENCY,
)
