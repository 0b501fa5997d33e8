"""The presets as policies: `refold`, `lis`, `opal`, `llms` and `picoclaw`. `librechat` has variants, and a module of its own.

Every preset is one `Policy`, so their differences are data and can be read side by side. The differences
between a preset and the system that it is named after are listed in `docs/presets.md`.
"""

from __future__ import annotations

from refold.core.policy import (
    AnyOf,
    ByMessage,
    Exchanges,
    LastMessages,
    MessageCount,
    OverBudget,
    Policy,
    Recovery,
    Texts,
    TokenRatio,
    ToolTokens,
    TurnBoundaryBefore,
    UserBoundaryAfter,
)
from refold.core.prompts import Prompts, Recipe
from refold.core.stages import (
    AnyStage,
    DescribeMedia,
    DropHalf,
    DropReasoning,
    Fit,
    Prune,
    Select,
    Squeeze,
    Supersede,
    Tiers,
)
from refold.model.tokens import Share, Tokens

# Settings that presets share for cases that their systems leave open. If nothing makes the window
# fit, the original systems give up or loop. This engine requires a window that fits, or a clear
# error.

EMERGENCY: tuple[AnyStage, ...] = (
    DropReasoning(),
    DescribeMedia(),
    Fit(result_share=0.3, input_share=0.15, user_share=0.3, measured=True, active=True, unread=False),
    Select(),
    Squeeze(),
)
"""From the mildest to the hardest: content that is not read again, one huge part that was read, the oldest
replies, then a little of everything, with unread messages last."""

RESERVE = Share(0.01)
"""Providers add framing of their own that no tokenizer sees."""

SUMMARY_SHARE = Share(0.15, "effective")
"""No system limits its summaries by the window. With the same room for all, a replay compares their
compaction; it is more than models write unasked."""


# The preset `refold`: append only, and one deep compaction when the window is full, in tiers. The
# newest turns stay word for word, older ones keep the assistant's texts and calls and lose the
# middle of their tool results, and the turns before those become a summary with the task, the
# rules and a digest. The shares were found by replaying recorded sessions, and by asking a real
# model how likely it finds the recorded replies; `docs/evaluation.md` shows both. A larger digest
# holds more single facts, and a larger tail predicts the next reply better. The size after a
# compaction shrinks with the size of the window: a small window needs all it can keep, and a large
# one is cheaper to fill again than to carry along.

REFOLD = Policy(
    name="refold",
    triggers={},
    stages=(Supersede(active=True), DropReasoning(), DescribeMedia(), Tiers(keep=0.8, result=300)),
    cut=Exchanges(Share(0.62, "effective", sinks=0.05, least=0.3), last_reply=0.85),
    manual=Exchanges(Share(0.1, "effective")),
    whole_turn=Share(0.1),
    target=Share(0.73, "effective", sinks=0.115, least=0.45),
    summary_share=Share(0.6),
    least_summary=0.09,
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


# The preset `lis`: rolling compaction into sessions. The policy prunes old tool output first, keeps
# 4,000 recent tokens and never merges two summaries. `structs.replace(LIS,
# stages=(Prune(policy="keep_all"),))` and its like set the policy for tool output: `auto`,
# `keep_all` or `keep_none`; `rules` names the tools with output that stays until it is summarised
# (`summarise`).

_LIS_PROMPTS = Prompts(
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
    goes_on=True,
    on_failure="digest_if_full",
    recipe=Recipe(prompts=_LIS_PROMPTS),
    texts=Texts(opening="Here is context from the previous conversation session ({handles}{recall}):\n"),
    emergency=EMERGENCY,
)


# The preset `opal`: cut at a user message, split turns that are too large, and keep one cumulative
# summary. The window is checked when a turn starts. The cut is the first user message after the
# point at which a quarter of the window is kept. `structs.replace(OPAL,
# cut=UserBoundaryAfter(Tokens(20_000)))` keeps a number of tokens instead; a compaction on request
# does so anyway, or keeps the number that it is given.

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
    texts=Texts(opening="[Conversation summary — older messages were compacted: {handles}{recall}]\n\n"),
    emergency=EMERGENCY,
)


# The preset `llms`: a filter around requests. Flags the conversation at 80 %, then sends a summary
# and the last two messages.

_LLMS_PROMPTS = Prompts(
    fresh=(
        "Summarise the conversation so that it can go on from the summary alone:\n"
        "- what it is about and what the user wants\n"
        "- what was decided, and why\n"
        "- facts, names, numbers, code and files that matter, letter for letter and never invented\n"
        "- what was done and what came of it\n"
        "- what is still open\n"
        "Write in the language of the conversation, in at most {words} words."
    ),
    update="",
)

LLMS = Policy(
    name="llms",
    measure="reported",
    triggers={"after_call": TokenRatio(0.8, ">=")},
    deferred=True,
    target=Share(0.0),
    summary_share=SUMMARY_SHARE,
    on_switch="wait",
    reserve=RESERVE,
    cut=LastMessages(2),
    source="all",
    scope="cumulative",
    placement="assistant",
    goes_on=True,
    on_failure="digest_if_full",
    recipe=Recipe(prompts=_LLMS_PROMPTS),
    texts=Texts(opening="[Context Summary] {handles}{recall}\n\n"),
    emergency=EMERGENCY,
)


# The preset `picoclaw`: whole turns, by message count or share of the window. Half of the turns are
# dropped if a call cannot wait for a summary. Sizes are an estimate by characters, including the
# output. The check before a call holds for every preset: a window that does not fit with its output
# is not sent.

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
            "It may be incomplete or outdated — always defer to explicit instructions. "
            "It stands for {handles}{recall}.\n\n"
        ),
        fence="context_summary",
        dropped="\n[Emergency compression dropped {count} oldest messages due to context limit] {handles}",
    ),
    emergency=EMERGENCY,
)
