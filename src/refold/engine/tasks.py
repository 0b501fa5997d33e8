"""What a summariser is given: the originals behind a plan's request, free of secrets.

One idea: a summary is made from what was really said, whole and unmasked, whatever was shown of it. What must not be copied is
taken out here, before it reaches any summariser.
"""

from __future__ import annotations

from refold.core.fold import Folded
from refold.core.plan import Frame, SummaryRequest
from refold.core.summary.ledger import Ledger
from refold.core.summary.prompts import Passage
from refold.core.summary.redact import redact, redact_message
from refold.model.window import Window
from refold.ports.summariser import SummaryTask


def task_of(
    request: SummaryRequest,
    folded: Folded,
    frame: Frame,
    *,
    focus: str = "",
    hidden: frozenset[int] = frozenset(),
    sent: Window | None = None,
) -> SummaryTask:
    """The task that a request stands for. Messages that are `hidden` are named and not told.

    `sent` is the last window, for a summariser that reads what the conversation's own model has read. Where anything had to be
    taken out, it is not given: it holds the secrets still.
    """
    previous, policy = request.previous[-1] if request.previous else None, frame.policy
    passages = _passages(
        folded, previous.last if previous and policy.source != "all" else 0, request.last, hidden
    )
    window = sent if sent and not hidden and _is_clean(sent) else None
    return SummaryTask(
        passages=passages,
        first=request.first,
        last=request.last,
        max_tokens=request.max_tokens,
        scope=policy.scope,
        previous=redact(previous.text) if previous and policy.scope == "cumulative" else "",
        turn_from=request.turn_from,
        ledger=_clean(folded.ledger),
        focus=redact(focus),
        sent=(*window.summaries, *window.messages) if window else (),
        system=_prompt(window),
        tools=frame.fixed.tools if window else (),
    )


def _passages(folded: Folded, start: int, stop: int, hidden: frozenset[int]) -> tuple[Passage, ...]:
    originals = enumerate(folded.branch.messages(start, stop), start)
    return tuple(Passage(number, redact_message(message, number, hidden)) for number, message in originals)


def _is_clean(window: Window) -> bool:
    """Does nothing in it look like a secret?"""
    sent = (*window.system, *window.summaries, *window.messages)
    return all(redact_message(message, 0) is message for message in sent)


def _prompt(window: Window | None) -> str:
    return "\n\n".join(message.text for message in window.system) if window else ""


def _clean(ledger: Ledger) -> Ledger:
    """The ledger's own words come from the conversation, and so may its secrets."""
    return Ledger(
        read=ledger.read,
        modified=ledger.modified,
        rules=_redacted(ledger.rules),
        errors=_redacted(ledger.errors),
        decisions=_redacted(ledger.decisions),
        tasks=_redacted(ledger.tasks),
        done=_redacted(ledger.done),
    )


def _redacted(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(redact, lines))
