"""Policies of a program's own."""

from __future__ import annotations

from msgspec import structs

from refold.core.presets import PRESETS
from refold.core.stages import Fit

ARRIVING = structs.replace(
    PRESETS["refold"],
    arrival=(Fit(result_share=0.115, input_share=0.15, user_share=0.4, floor=2_200),),
)
"""One that cuts what is huge as it arrives, whether it fits or not; no preset does."""
