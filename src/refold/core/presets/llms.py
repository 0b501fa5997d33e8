"""The preset `llms`: a filter around requests. Flags the conversation at 80 %, then sends a summary and the
last two messages.
"""

from __future__ import annotations

from refold.core.policy import LastMessages, Policy, Texts
from refold.core.presets.emergency import EMERGENCY, RESERVE, SUMMARY_SHARE
from refold.core.prompts import Prompts, Recipe
from refold.model.budget import Share
from refold.model.trigger import TokenRatio

_PROMPTS = Prompts(
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
    on_failure="digest_if_full",
    recipe=Recipe(prompts=_PROMPTS),
    texts=Texts(opening="[Context Summary]\n\n"),
    emergency=EMERGENCY,
)
