"""Our own: cap what is huge as it arrives, append only, and when the window is full fold it deep, once."""

from __future__ import annotations

from refold.core.policy import Exchanges, Policy, Texts
from refold.core.presets.emergency import EMERGENCY
from refold.core.stages import Fit
from refold.model.budget import Share

REFOLD = Policy(
    name="refold",
    triggers={},
    arrival=(Fit(result_share=0.18, input_share=0.3, user_share=0.4, measured=True, active=True),),
    cut=Exchanges(Share(0.12, "effective")),
    whole_turn=Share(0.12),
    target=Share(0.62, "effective"),
    summary_share=Share(0.5),
    prepares=True,
    scope="cumulative",
    placement="user",
    texts=Texts(opening="[Earlier messages, shortened; recall opens a handle]\n"),
    emergency=EMERGENCY,
)
