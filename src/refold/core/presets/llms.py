"""A request filter: flag at 80 %, then send the summary and the last two messages."""

from __future__ import annotations

from refold.core.policy import LastMessages, Policy, Texts
from refold.core.presets.emergency import EMERGENCY
from refold.model.budget import Share
from refold.model.trigger import TokenRatio

LLMS = Policy(
    name="llms",
    measure="reported",
    triggers={"after_call": TokenRatio(0.8, ">=")},
    cut=LastMessages(2),
    target=Share(0.0),
    scope="cumulative",
    placement="assistant",
    texts=Texts(opening="[Context Summary]\n\n"),
    emergency=EMERGENCY,
)
