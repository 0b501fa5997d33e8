"""The preset `lis`: rolling compaction into sessions.

The policy prunes old tool output first, keeps 4,000 recent tokens and never merges two summaries.
`structs.replace(LIS, stages=(Prune(policy="keep_all"),))` and its like set the policy for tool output:
`auto`, `keep_all` or `keep_none`; `rules` names the tools with output that stays until it is summarised
(`summarise`).
"""

from __future__ import annotations

from refold.core.policy import ByMessage, Policy, Texts
from refold.core.presets.emergency import EMERGENCY, RESERVE, SUMMARY_SHARE
from refold.core.prompts import Prompts, Recipe
from refold.core.stages import Prune
from refold.model.budget import Share, Tokens
from refold.model.trigger import TokenRatio, ToolTokens

_PROMPTS = Prompts(
    fresh=(
        "Write down what somebody must know to carry this conversation on. Keep facts, names, dates and decisions; what "
        "the user prefers and always wants; tasks that are open and what was promised; the tone, and how the two stand to "
        "each other; results of tools that still matter. Leave out greetings, repetitions, raw data about tool calls and "
        "long tool output. Copy names, ids, numbers and paths letter for letter; never invent one. Write in the language "
        "of the conversation, in at most {words} words."
    ),
    update="",
)

LIS = Policy(
    name="lis",
    measure="reported",
    triggers={"after_call": TokenRatio(0.8, ">")},
    reduce_at={"after_call": ToolTokens(8_000, ">")},
    stages=(Prune(threshold=8_000, keep=2_000),),
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    soft=1.0,
    on_switch="go_on",
    reserve=RESERVE,
    cut=ByMessage(Tokens(4_000)),
    source="span",
    scope="own",
    placement="assistant",
    on_failure="digest_if_full",
    recipe=Recipe(prompts=_PROMPTS),
    texts=Texts(opening="Here is context from the previous conversation session:\n"),
    emergency=EMERGENCY,
)
