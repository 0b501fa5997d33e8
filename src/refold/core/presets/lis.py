"""Rolling compaction into sessions: prune old tool output first, keep 4,000 recent tokens, never merge two summaries.

`structs.replace(LIS, stages=(Prune(policy="keep_all"),))` and its like set the policy for tool output: `auto`, `keep_all` or
`keep_none`, and `rules` the tools whose output stays until a summary is made of it (`summarize`).
"""

from __future__ import annotations

from refold.core.policy import ByMessage, Policy, Texts
from refold.core.presets.emergency import EMERGENCY, SUMMARY_SHARE
from refold.core.stages import Prune
from refold.model.budget import Share, Tokens
from refold.model.trigger import TokenRatio, ToolTokens

LIS = Policy(
    name="lis",
    measure="reported",
    triggers={"after_call": TokenRatio(0.8, ">")},
    reduce_at={"after_call": ToolTokens(8_000, ">")},
    stages=(Prune(threshold=8_000, keep=2_000),),
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    cut=ByMessage(Tokens(4_000)),
    source="span",
    scope="own",
    placement="assistant",
    on_failure="mechanical_if_full",
    texts=Texts(opening="Here is context from the previous conversation session:\n"),
    emergency=EMERGENCY,
)
