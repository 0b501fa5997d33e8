"""The status of a conversation, and the preview of a compaction. Neither changes anything or asks a model."""

from __future__ import annotations

from msgspec import Struct

from refold.core.assemble import assemble
from refold.core.budget import Frame
from refold.engine.history import Difference, rehearse
from refold.engine.journal import Journal, read_fill_level
from refold.engine.state import MOST_SINCE, FillLevel, Receipt, State, SummaryAuthor, author_of
from refold.engine.summary_jobs import SummaryJobs
from refold.model.message import Message
from refold.model.tokens import Usage, WindowSource
from refold.ports.records import Head
from refold.ports.store import Store


class Status(Struct, frozen=True):
    """The fill level of a conversation, and the state of its compactions and summaries."""

    messages: int
    tokens: int
    """The size of the next request: the provider's last report of it, and an estimate of the messages since.
    Without a report, our count."""
    limit: int
    compactions: int
    flag: str
    """Why the context has to be compacted: the next call does it, or the policy's threshold is passed. Empty
    if neither is true."""
    in_vain: int
    failures: int
    is_stopped: bool
    """No model is asked for summaries: it failed too often a moment ago, or the budget is spent."""
    spent: float
    """Dollars for summaries."""
    window: int
    window_source: WindowSource
    """The size of the model's window, and the source of that figure. `pattern` and `default` are
    assumptions."""
    arithmetic: str
    """How the limit follows from the window, as a sum."""
    billed: Usage
    """The usage of all calls together, as the provider bills it."""
    summary: SummaryAuthor = SummaryAuthor()
    source: str = ""
    """The source of `tokens`, in words."""
    damaged: tuple[int, ...] = ()
    """The numbers of the messages that cannot be read, and that a placeholder is shown for."""

    @property
    def ratio(self) -> float:
        return self.tokens / self.limit if self.limit else 0.0

    @property
    def needs_compaction(self) -> bool:
        return bool(self.flag)


class Preview(Struct, frozen=True):
    """The effect that a compaction would have: tokens before and after, the receipt, and the messages that
    would be sent.
    """

    before: int
    after: int
    receipt: Receipt | None
    messages: tuple[Message, ...]
    difference: Difference


async def status_of(journal: Journal, state: State, jobs: SummaryJobs) -> Status:
    breaker = jobs.breaker
    await breaker.look()
    head, level = journal.head, state.fill_level
    return Status(
        messages=head.next_seq,
        tokens=level.tokens,
        limit=level.limit,
        compactions=await journal.store.count_summarised(head.owner, head.branch),
        flag=level.reason,
        in_vain=state.in_vain,
        failures=breaker.failures,
        is_stopped=breaker.is_open,
        spent=breaker.spent,
        window=state.frame.budget.window,
        window_source=state.frame.budget.source,
        arithmetic=state.arithmetic,
        billed=state.meter.billed,
        summary=author_of(state.folded, has_late=state.late is not None, is_writing=jobs.is_running),
        source=state.size_source,
        damaged=journal.damaged_in(state.folded),
    )


async def stored_fill_level(store: Store, head: Head) -> FillLevel:
    """Return the fill level of a stored conversation without opening it."""
    noted = read_fill_level(head.notes)
    if not 0 <= noted.size < head.next_seq:
        return noted
    return noted.after(await store.messages(head, noted.size, limit=MOST_SINCE))


def preview_of(state: State, frame: Frame, keep: int | None = None) -> Preview:
    """Return the effect that a compaction would have now, without doing it and without asking a model."""
    found = rehearse(state, frame, keep)
    receipt = found.receipts[-1] if found.receipts else None
    window = assemble(frame.fixed, found.after.shown.messages(), found.after.lead)
    return Preview(found.before.tokens, found.after.tokens, receipt, window.sent, found)
