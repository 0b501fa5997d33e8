"""Mask what was answered and fit what is huge under pressure; where that is not enough, summarise all but the last turns.

The variants are the same system under its other settings: a summary that an earlier run has left, no turns kept, and no
summaries at all.
"""

from __future__ import annotations

from msgspec import structs

from refold.core.policy import LastTurns, Policy, Texts
from refold.core.presets.emergency import EMERGENCY, SUMMARY_SHARE
from refold.core.stages import Fade, Fit, Mask
from refold.core.stages.truncate import COUNT_MARK
from refold.model.budget import Share
from refold.model.trigger import MessagesToRefine, TokenRatio

_MASK = Mask(at=0.8, floor=300, headroom=0.025, active=True, mark=COUNT_MARK)
_FIT = Fit(result_share=0.3, input_share=0.15, floor=200, active=True, mark=COUNT_MARK)
_FADE = Fade(fit=_FIT)

LIBRECHAT = Policy(
    name="librechat",
    measure="calibrated",
    reserve=Share(0.05),
    triggers={"before_call": MessagesToRefine(1, ">=")},
    reduce_at={"before_call": TokenRatio(0.8, ">=", of="room")},
    stages=(_MASK, _FIT),
    target=Share(1.0),
    summary_share=SUMMARY_SHARE,
    cut=LastTurns(2, keep=Share(0.5, "effective")),
    source="all",
    scope="cumulative",
    placement="user",
    on_failure="mechanical",
    texts=Texts(
        fence="summary",
        closing=(
            "\n\nThis is your own checkpoint of the work so far. Pick up where you left off. Do not repeat prior tasks: "
            "what it calls done is done."
        ),
    ),
    emergency=(_FADE, *EMERGENCY),
)

ACROSS_RUNS = structs.replace(
    LIBRECHAT, placement="system", texts=Texts(opening="## Conversation Summary\n\n", fence="summary")
)
"""Where a summary of an earlier run is taken up: it stands in the system prompt, and counts as a summary all the same."""

CLEAN_SLATE = structs.replace(LIBRECHAT, cut=LastTurns(0))
"""No turn is kept besides the active one."""

WITHOUT_SUMMARIES = structs.replace(
    LIBRECHAT,
    triggers={},
    stages=(structs.replace(_MASK, headroom=0.0), _FADE),
    cut=None,
    emergency=EMERGENCY,
)
"""Nothing is summarised: results fade as the window fills, and what still does not fit is dropped, with a note.

`Trim()` as one more stage prunes by position as well.
"""
