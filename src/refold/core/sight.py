"""What the model sees of a conversation now: what is chosen to be quoted beside it need not say that again."""

from __future__ import annotations

from collections.abc import Iterable

from refold.core.fold import Folded
from refold.core.frame import Frame
from refold.core.stages.shown import Item
from refold.core.summary.extract import Sight, in_sight
from refold.core.summary.facts import text_of


def terms_in_sight(folded: Folded, frame: Frame, *, before: int | None = None) -> set[int]:
    """The terms of all that would be sent now, or of what comes `before` a message: to show them again tells nothing new."""
    lead = (folded.lead.block, *(message.text for message in folded.lead.messages))
    items = [item for item in folded.items.items if before is None or item.seq < before]
    return in_sight(folded.facts, seen_of(folded, items, (*system_texts(frame), *lead)))


def seen_of(folded: Folded, shown: Iterable[Item], texts: Iterable[str]) -> Sight:
    """What the model sees: messages as they came, messages cut short, and other texts."""
    whole, partly = list[Item](), list[Item]()
    for item in shown:
        (whole if folded.is_original(item.message, item.seq) else partly).append(item)
    cut = (text_of(part) for item in partly for part in item.message.parts)
    return Sight((*texts, *cut), tuple(item.seq for item in whole), tuple(item.seq for item in partly))


def system_texts(frame: Frame) -> tuple[str, ...]:
    return tuple(message.text for message in frame.fixed.system)
