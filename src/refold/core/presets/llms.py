"""A filter around requests: flag the conversation at 80 %, then send a summary and the last two messages."""

from __future__ import annotations

from refold.core.policy import LastMessages, Policy, Texts
from refold.core.presets.emergency import EMERGENCY, SUMMARY_SHARE
from refold.model.budget import Share
from refold.model.trigger import TokenRatio

LLMS = Policy(
    name="llms",
    measure="reported",
    triggers={"after_call": TokenRatio(0.8, ">=")},
    deferred=True,
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    cut=LastMessages(2),
    source="all",
    scope="cumulative",
    placement="assistant",
    on_failure="mechanical_if_full",
    texts=Texts(opening="[Context Summary]\n\n"),
    emergency=EMERGENCY,
)
