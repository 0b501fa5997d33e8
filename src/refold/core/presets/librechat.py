"""The preset `librechat`: mask and limit tool results under pressure, then summarise all but the last turns.

The policy masks results that were answered and limits huge ones. If that is not enough, it summarises. The
variants are the same system with other settings: a summary taken over from an earlier run, no turns kept,
and no summaries at all.
"""

from __future__ import annotations

from msgspec import structs

from refold.core.policy import (
    LastTurns,
    MessagesToRefine,
    Moment,
    Policy,
    Texts,
    TokenRatio,
    ToolTokens,
    Trigger,
)
from refold.core.presets.policies import EMERGENCY, SUMMARY_SHARE
from refold.core.prompts import Prompts, Recipe
from refold.core.stages import Fade, Fit, Mask, Trim
from refold.core.stages.truncate import COUNT_MARK
from refold.model.budget import Share

_MASK = Mask(at=0.8, floor=300, headroom=0.025, active=True, mark=COUNT_MARK)
_FIT = Fit(result_share=0.3, input_share=0.15, floor=200, active=True, mark=COUNT_MARK)
_FADE = Fade(fit=_FIT)
_HEADINGS = (
    "## Checkpoint\n## Goal\n## Constraints & Preferences\n## Progress\n### Done\n### In Progress\n## Key Decisions\n"
    "## Next Steps\n## Critical Context\n"
)
PROMPTS = Prompts(
    fresh=(
        "Stop here for a moment. I want you to write me a checkpoint of all our work, from which you can carry on when "
        f"you see nothing else. Use these headings and leave out those that would be empty:\n{_HEADINGS}"
        "Trust what you have done and do not check it again. Text that is cut short was cut for display only; it is no "
        "fault of yours. Copy my rules, and paths, names, ids, numbers and errors, letter for letter, and never make one "
        "up. Give me the checkpoint and nothing else, in the language we speak, in at most {words} words. Call no tools."
    ),
    update=(
        "Stop here once more. I want you to bring your last checkpoint up to date with what has happened since: the same "
        "headings, each once, and no longer than before. Say less about what is old, move what is finished to Done, and "
        "drop only what no longer holds. Copy my rules, and paths, names, ids, numbers and errors, letter for letter, and "
        "never make one up. Give me the checkpoint and nothing else, in at most {words} words. Call no tools."
    ),
)
"""Written in the user's voice, as an instruction to the assistant: a model that is asked this way stops
working and writes."""

LIBRECHAT = Policy(
    name="librechat",
    measure="calibrated",
    reserve=Share(0.05),
    triggers={"before_call": MessagesToRefine(1, ">=")},
    reduce_at={"before_call": TokenRatio(0.8, ">=", of="room")},
    stages=(_MASK, _FIT),
    target=Share(1.0),
    summary_share=SUMMARY_SHARE,
    on_switch="wait",
    cut=LastTurns(2, keep=Share(0.5, "effective")),
    source="all",
    scope="cumulative",
    placement="user",
    on_failure="mechanical",
    recipe=Recipe(reading="raw", prompts=PROMPTS),
    texts=Texts(
        opening="[Earlier messages {handles}{recall}]\n",
        fence="summary",
        closing=(
            "\n\nThis is your own checkpoint of the work so far. Pick up where you left off. Do not repeat prior tasks: "
            "what it calls done is done."
        ),
    ),
    emergency=(_FADE, *EMERGENCY),
)

ACROSS_RUNS = structs.replace(
    LIBRECHAT,
    placement="system",
    texts=Texts(opening="## Conversation Summary ({handles}{recall})\n\n", fence="summary"),
)
"""For a summary taken over from an earlier run: it stands in the system prompt, and still counts as a summary."""

CLEAN_SLATE = structs.replace(LIBRECHAT, cut=LastTurns(0))
"""No turn is kept besides the active one."""


def without_summaries(policy: Policy, trim: Trim | None = None) -> Policy:
    """The policy without summaries: results fade as the window fills, and messages that still do not fit are
    dropped, with a note. `trim` prunes by position as well, as soon as a result is old enough.
    """
    stages = (structs.replace(_MASK, headroom=0.0), _FADE, *((trim,) if trim else ()))
    reduce_at: dict[Moment, Trigger] = {"before_call": ToolTokens(0)} if trim else policy.reduce_at
    return structs.replace(
        policy, triggers={}, reduce_at=reduce_at, stages=stages, cut=None, emergency=EMERGENCY
    )


WITHOUT_SUMMARIES = without_summaries(LIBRECHAT)

BY_POSITION = without_summaries(LIBRECHAT, Trim())
"""Nothing is summarised, and old results are trimmed by their position."""

VARIANTS: dict[str, Policy] = {
    "across-runs": ACROSS_RUNS,
    "clean-slate": CLEAN_SLATE,
    "without-summaries": WITHOUT_SUMMARIES,
    "by-position": BY_POSITION,
}
"""The variants by the names that a setting selects them with."""
