"""Checks a summary that a function of the user wrote.

Every summary is checked, not only those of models. A function cannot be asked again, so faults that can be
repaired are repaired at once, and a text with any other fault is not used.
"""

from __future__ import annotations

import logging

from refold.core.prompts import said_by, transcript
from refold.core.secrets.redact import redact
from refold.core.summary_checks.accept import DraftSource, SummaryDraft, accept
from refold.core.summary_checks.must_keep import typed_by_user
from refold.core.transcript_chunks import Count
from refold.core.user_requests import missing_lines
from refold.model.summary import Summary
from refold.ports.models import SummaryTask

_log = logging.getLogger("refold.summarisers")


def checked(text: str, task: SummaryTask, count: Count) -> Summary | None:
    """A text as the summary of a task, with the facts that must not get lost; None if it has a fault."""
    found = accept(
        SummaryDraft(text), _source(task, count), most=task.max_tokens, count=count, is_last_try=True
    )
    if found.fault is not None:
        _log.warning("a summary was not used: %s", found.fault)
        return None
    summary = redact(found.text)
    opening = missing_lines(summary, task.word_for_word)
    return Summary(
        f"{opening}{summary}",
        task.first,
        task.last,
        count(f"{opening}{summary}"),
        "model",
        task.scope,
        checks=found.mended,
        requests=len(opening),
    )


def _source(task: SummaryTask, count: Count) -> DraftSource:
    source = transcript(task.passages)
    return DraftSource(
        told=source,
        tokens=count(source) + count(task.previous),
        previous=task.previous,
        asked=task.focus,
        spoken=said_by("user", task.passages),
        typed=typed_by_user(task.passages),
        answered=said_by("assistant", task.passages),
        ledger=task.ledger,
    )
