"""Is a summary good enough to stand for what it covers?

One idea: a summary that fails is worse than none, so each way in which summaries are known to fail has a named check. The
verdicts say which; what to do about it is the policy's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.summary import headings
from refold.core.summary.whole import says

CheckName: TypeAlias = Literal["says_something", "is_smaller", "headings_once", "keeps_facts"]


class Verdict(Struct, frozen=True):
    check: CheckName
    passed: bool
    reason: str = ""
    """Why it failed, without quoting the summary."""


def check_summary(
    text: str, *, tokens: int, source_tokens: int, must_keep: Iterable[str] = ()
) -> tuple[Verdict, ...]:
    """Every check of a summary that takes `tokens` and stands for messages that took `source_tokens`."""
    return (
        says_something(text),
        is_smaller(tokens, source_tokens),
        headings_once(text),
        keeps_facts(text, must_keep),
    )


def passes(verdicts: Iterable[Verdict]) -> bool:
    return all(verdict.passed for verdict in verdicts)


def says_something(text: str) -> Verdict:
    """More than white space and headings."""
    said = headings.says_something(text)
    return Verdict("says_something", said, "" if said else "it is empty or has only headings")


def is_smaller(tokens: int, source_tokens: int) -> Verdict:
    """A summary as large as its source gains nothing and loses its words."""
    smaller = tokens < source_tokens
    reason = "" if smaller else f"it takes {tokens:,} tokens, its source {source_tokens:,}"
    return Verdict("is_smaller", smaller, reason)


def headings_once(text: str) -> Verdict:
    """No heading twice: a sign that an earlier summary was copied into a later one."""
    repeated = headings.repeated(text)
    return Verdict(
        "headings_once", not repeated, f"{repeated} headings stand there twice" if repeated else ""
    )


def keeps_facts(text: str, must_keep: Iterable[str]) -> Verdict:
    """Everything that had to be carried is there word for word, and not as a part of a longer name."""
    lost = sum(not says(text, fact) for fact in must_keep)
    return Verdict("keeps_facts", not lost, f"{lost} facts that had to stay are missing" if lost else "")
