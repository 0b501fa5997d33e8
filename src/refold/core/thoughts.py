"""Thoughts that a provider has signed: they are sent back as they came, or not at all.

One idea: a signature holds for everything that was said before it. Once something before it is shown another way, the thought is
void, and goes whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import structs

from refold.core.stages.shown import Edit, Item, handle_of
from refold.model.message import Message, Reasoning
from refold.model.tokens import TokenCounter

_VOID = re.compile(rb"(?i)signature.{0,80}thinking|thinking.{0,80}signature|prefix_binding")
"""Providers' words for a thought that does not hold. Bounded, and over the beginning of an answer only."""
MOST_BYTES = 4_096


VOID = "what was said before these thoughts is shown another way"


def is_void(status: int | None, refusal: object) -> bool:
    """Does a refusal say that a thought no longer holds?"""
    text = refusal if isinstance(refusal, bytes) else str(refusal).encode("utf-8", "replace")
    return status in (400, None) and bool(_VOID.search(text[:MOST_BYTES]))


def has_thoughts(message: Message) -> bool:
    return any(isinstance(part, Reasoning) for part in message.parts)


def thoughtless(items: Sequence[Item], until: int, counter: TokenCounter) -> tuple[Item, ...]:
    """The items without the thoughts of messages before number `until`; one that is all thought stays as it is."""
    return tuple(_without(item, counter) if item.seq < until else item for item in items)


def thought_edits(before: Sequence[Item], after: Sequence[Item], known: Sequence[Edit]) -> tuple[Edit, ...]:
    """What became of messages that lost their thoughts when something before them changed, those that are told already apart."""
    told = {edit.seq for edit in known}
    bare = {item.seq: item for item in after if not has_thoughts(item.message) and item.seq not in told}
    return tuple(
        Edit("thoughts", item.seq, item.tokens, bare[item.seq].tokens, VOID, handle_of(item.seq))
        for item in before
        if item.seq in bare and has_thoughts(item.message)
    )


def _bare(message: Message) -> Message:
    """A message without its thoughts; one that is all thought stays as it is."""
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    return message.with_parts(parts) if parts and len(parts) < len(message.parts) else message


def _without(item: Item, counter: TokenCounter) -> Item:
    message = _bare(item.message)
    if message is item.message:
        return item
    return structs.replace(item, message=message, tokens=counter.message(message))
