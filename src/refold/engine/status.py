"""How a conversation is doing, and what a compaction would do to it: what people ask before they act.

One idea: asking changes nothing and costs nothing.
"""

from __future__ import annotations

from msgspec import Struct

from refold.core.frame import Frame
from refold.engine.breaker import Breaker
from refold.engine.hindsight import Difference, rehearse
from refold.engine.journal import Journal
from refold.engine.memory import Memory
from refold.engine.notes import read_standing
from refold.engine.receipts import Receipt
from refold.engine.standing import MOST_SINCE, Standing, standing_of
from refold.model.message import Message
from refold.ports.store import Head, Store


class Status(Struct, frozen=True):
    """How a conversation is doing."""

    messages: int
    tokens: int
    limit: int
    compactions: int
    flag: str
    """Why the context has to be compacted: the next call does so, or the policy's threshold is passed. Empty where neither is."""
    in_vain: int
    failures: int
    is_stopped: bool
    """No model is asked for summaries: it failed too often a moment ago, or the money is spent."""
    spent: float
    """Dollars for summaries."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0

    @property
    def needs_compaction(self) -> bool:
        return bool(self.flag)


class Preview(Struct, frozen=True):
    """What a compaction would do: tokens before and after, why, and what would be sent."""

    before: int
    after: int
    receipt: Receipt | None
    messages: tuple[Message, ...]
    difference: Difference


async def status_of(journal: Journal, memory: Memory, breaker: Breaker) -> Status:
    await breaker.look()
    seen, standing = journal.seen, standing_of(memory)
    return Status(
        messages=seen.next_seq,
        tokens=standing.tokens,
        limit=standing.limit,
        compactions=await journal.store.count_summarised(seen.owner, seen.branch),
        flag=standing.reason,
        in_vain=memory.in_vain,
        failures=breaker.failures,
        is_stopped=breaker.is_open,
        spent=breaker.spent,
    )


async def standing_in(store: Store, head: Head) -> Standing:
    """How full a stored conversation is, without opening it."""
    noted = read_standing(head.notes)
    if not 0 <= noted.size < head.next_seq:
        return noted
    return noted.after(await store.messages(head, noted.size, limit=MOST_SINCE))


def preview_of(memory: Memory, frame: Frame) -> Preview:
    """What a compaction would do now, without doing it and without asking any model."""
    found, window = rehearse(memory, frame)
    receipt = found.receipts[-1] if found.receipts else None
    sent = window.sent
    return Preview(found.before.tokens, found.after.tokens, receipt, sent, found)
