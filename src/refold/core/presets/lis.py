"""Sessions with rolling compaction: prune old tool output first, keep 4,000 recent tokens, chain summaries."""

from __future__ import annotations

from refold.core.policy import ByMessage, Policy, Texts
from refold.core.presets.emergency import EMERGENCY
from refold.core.stages import Prune
from refold.model.budget import Share, Tokens
from refold.model.trigger import AnyOf, TokenRatio, ToolTokens

LIS = Policy(
    name="lis",
    measure="reported",
    triggers={"after_call": AnyOf((TokenRatio(0.8, ">"), ToolTokens(8_000)))},
    stages=(Prune(),),
    target=Share(0.8),
    cut=ByMessage(Tokens(4_000)),
    scope="own",
    placement="assistant",
    texts=Texts(opening="Here is context from the previous conversation session:\n"),
    emergency=EMERGENCY,
)
