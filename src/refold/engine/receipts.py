"""What was done to a conversation on its own: told to whoever asks, and enough to take it back."""

from __future__ import annotations

from msgspec import Struct

from refold.core.fold import Folded
from refold.core.plan import Decision
from refold.core.stages.shown import Edit
from refold.model.summary import Summary


class Receipt(Struct, frozen=True):
    """What was done on its own, and why."""

    decision: Decision
    reason: str
    before: int
    """Tokens of the messages and summaries before and after."""
    after: int
    edits: tuple[Edit, ...] = ()
    summary: Summary | None = None


class Change(Struct, frozen=True):
    """What was shown before and after; `raw` messages after it are to be shown as they came when it is taken back."""

    before: Folded
    after: Folded
    receipt: Receipt
    raw: int = 0
