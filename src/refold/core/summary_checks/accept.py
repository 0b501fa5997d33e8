"""Accept, repair or reject the text that a model wrote as a summary.

Models write good prose and get facts wrong, so no draft is trusted. Each known way in which summaries fail
has its own check. Some faults are repaired by machine: reasoning around the answer and sentences with
invented names are removed, missing facts are added. All other faults reject the draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.digest.ledger import EMPTY, Ledger
from refold.core.digest.line_markers import quoted_lines
from refold.core.digest.terms import contains_word
from refold.core.prompts import Count, defused
from refold.core.summary_checks import headings
from refold.core.summary_checks.draft_faults import (
    continues,
    ends_open,
    is_call,
    is_echo,
    is_other_language,
    is_refusal,
    letters,
    without_thoughts,
)
from refold.core.summary_checks.headings import headings_once, says_something
from refold.core.summary_checks.inventions import KnownNames, invented, known_of, without_inventions
from refold.core.summary_checks.ledger_facts import fact_lines, with_facts
from refold.model.message import visible

Fault: TypeAlias = Literal[
    "empty",
    "refusal",
    "cut_off",
    "reasoning_only",
    "tool_call",
    "not_smaller",
    "too_long",
    "other_language",
    "invented",
    "echo",
    "continuation",
]
FAULTS: dict[Fault, str] = {
    "empty": "it is empty",
    "refusal": "it is a refusal",
    "cut_off": "it is cut off before its end",
    "reasoning_only": "it has reasoning and no text",
    "tool_call": "it is a tool call",
    "not_smaller": "it is not smaller than the messages",
    "too_long": "it is too long",
    "other_language": "it is in another language than the messages",
    "invented": "it names things that the messages do not have",
    "echo": "it repeats the messages",
    "continuation": "it continues the conversation",
}
"""The faults of a summary, in words for a log."""
_CUT_OFF_REASONS = frozenset(
    {"length", "max_tokens", "max_output_tokens", "incomplete", "model_context_window_exceeded", "error"}
)
MAX_DRAFT = 64 * 1024
"""Limit of characters of a draft that is compared with its source, half a second of work: eight times the
usual summary. If a policy asks for longer summaries, the limit grows with `_LONGEST_TOKEN`."""
_LONGEST_TOKEN = 16
"""Characters of a draft that are allowed for each requested token."""
_MIN_LETTERS = 12
"""Letters: fewer are a word or two, such as "Understood."; the shortest useful summaries have a few more."""
_LONG_SOURCE = 500
"""Tokens of a source: a word or two may be enough for a shorter one, never for a longer one."""
_LONG_TEXT = 4_000
"""Characters of the same. A merge is given short summaries, but stands for the transcript behind them."""
_REFUSAL_REASONS = frozenset({"refusal", "content_filter", "safety"})


class SummaryDraft(Struct, frozen=True):
    """The answer of a model."""

    text: str
    finish: str = ""
    """Why the model stopped, in the provider's word."""
    has_calls: bool = False
    has_reasoning: bool = False


class DraftSource(Struct, frozen=True, dict=True):
    """The texts that the draft is compared with."""

    told: str
    """The transcript, which has to be summarised and not repeated."""
    tokens: int
    """Tokens of the transcript and the previous summary."""
    previous: str = ""
    beside: str = ""
    """Other text that the model was shown: the rest of the window, the system prompt, the parts of a
    merge. Its names may be used."""
    asked: str = ""
    """The instructions and the focus: their names may be used too, but a handle in them is an example."""
    spoken: str = ""
    """All text of the user."""
    typed: str = ""
    """The part of it that the user typed: the only source of rules."""
    answered: str = ""
    """All text of the assistant. A summary has to be in a language of the user or the assistant."""
    ledger: Ledger | None = None
    """Facts that must be carried; None if facts are added later, to a longer text than this draft."""

    @cached_property
    def known(self) -> KnownNames:
        """The names that a draft may use. Cached: several drafts of one source may be checked."""
        return known_of(self.told, self.previous, self.beside, *_ledger_lines(self), asked=self.asked)


class Accepted(Struct, frozen=True):
    """A text that may be used if it has no fault; `mended` lists the repairs made by machine."""

    text: str
    fault: Fault | None = None
    reason: str = ""
    """Why it may not be used, in words that a model understands and without quoting the draft."""
    mended: tuple[str, ...] = ()


def accept(
    draft: SummaryDraft, source: DraftSource, *, most: int, count: Count, is_last_try: bool = False
) -> Accepted:
    """Check a draft, and repair it if possible, within `most` tokens.

    On the last try, sentences with invented names are removed; before that, the draft is rejected so that the
    model can try again.
    """
    said = without_thoughts(draft.text)
    if len(said) > max(MAX_DRAFT, most * _LONGEST_TOKEN):
        return Accepted("", "too_long", "it is many times longer than it may be")
    text = visible("\n".join(said.splitlines()))
    for fault, reason in _faults(draft, text, source, count):
        return Accepted(text, fault, reason)
    notes = ("reasoning taken out",) if said != draft.text.strip() else ()
    plain = quoted_lines(defused(text), "summary", begins_line=True)
    found = _without_inventions(Accepted(plain, mended=notes), source, is_last_try=is_last_try)
    return found if found.fault else _add_facts(found, source, most, count)


def _faults(draft: SummaryDraft, text: str, source: DraftSource, count: Count) -> Iterator[tuple[Fault, str]]:
    """Yield the faults that cannot be repaired, the most obvious first."""
    if draft.has_calls or is_call(text):
        yield "tool_call", "it calls a tool instead of writing a checkpoint"
    if not text and (draft.has_reasoning or draft.text.strip()):
        yield "reasoning_only", "it is nothing but reasoning"
    if not says_something(text):
        yield "empty", "it is empty or has only headings"
    if draft.finish.lower() in _CUT_OFF_REASONS or ends_open(text, tuple(_ledger_lines(source))):
        yield "cut_off", "it was cut off before its end; be briefer"
    if draft.finish.lower() in _REFUSAL_REASONS or is_refusal(text):
        yield "refusal", "it declines to write a checkpoint"
    if letters(text) < _MIN_LETTERS and (source.tokens > _LONG_SOURCE or len(source.told) > _LONG_TEXT):
        yield "empty", "it is a word or two"
    if count(text) >= source.tokens:
        yield "not_smaller", "it is no shorter than the transcript"
    yield from _report_faults(text, source)


def _report_faults(text: str, source: DraftSource) -> Iterator[tuple[Fault, str]]:
    """Yield the faults of a text that is no report of the conversation, or not in its language."""
    if is_echo(text, source.told) or is_echo(text, source.asked):
        yield "echo", "it repeats what it was given instead of summarising it"
    if continues(text):
        yield "continuation", "it goes on with the conversation instead of summarising it"
    if is_other_language(text, (source.spoken, source.answered)):
        yield "other_language", "it is not in the language of the conversation"


def _ledger_lines(source: DraftSource) -> Iterator[str]:
    for lines in fact_lines(source.ledger or EMPTY).values():
        yield from lines


def _without_inventions(found: Accepted, source: DraftSource, *, is_last_try: bool) -> Accepted:
    known = source.known
    made_up = invented(found.text, known)
    if not made_up:
        return found
    if not is_last_try:
        what = "a name or number" if len(made_up) == 1 else f"{len(made_up)} names or numbers"
        return Accepted(found.text, "invented", f"it holds {what} that the transcript does not")
    text = without_inventions(found.text, known)
    if not says_something(text):
        return Accepted(text, "invented", "nothing is left of it without its inventions")
    return Accepted(text, mended=(*found.mended, "lines with invented names taken out"))


def _add_facts(found: Accepted, source: DraftSource, most: int, count: Count) -> Accepted:
    once, notes = headings_once(found.text), found.mended
    if once != found.text:
        notes = (*notes, "headings that stood twice joined")
    if source.ledger is None:
        return Accepted(once, mended=notes)
    full = with_facts(once, source.ledger, most=most, count=count, said=source.typed)
    return Accepted(full, mended=(*notes, "facts from the ledger added") if full != once else notes)


# Checks of a finished summary: whether it is good enough to replace the messages it covers.

CheckName: TypeAlias = Literal["says_something", "is_smaller", "headings_once", "keeps_facts"]


class Verdict(Struct, frozen=True):
    check: CheckName
    passed: bool
    reason: str = ""
    """Why it failed, without quoting the summary."""


def check_summary(
    text: str, *, tokens: int, source_tokens: int, must_keep: Iterable[str] = ()
) -> tuple[Verdict, ...]:
    """Run every check of a summary that takes `tokens` and replaces messages that took `source_tokens`."""
    return (
        check_says_something(text),
        is_smaller(tokens, source_tokens),
        check_headings_once(text),
        keeps_facts(text, must_keep),
    )


def passes(verdicts: Iterable[Verdict]) -> bool:
    return all(verdict.passed for verdict in verdicts)


def check_says_something(text: str) -> Verdict:
    """Check that the text is more than white space and headings."""
    said = headings.says_something(text)
    return Verdict("says_something", said, "" if said else "it is empty or has only headings")


def is_smaller(tokens: int, source_tokens: int) -> Verdict:
    """Check that the summary is smaller than its source: one of the same size saves nothing and loses the
    exact words.
    """
    smaller = tokens < source_tokens
    reason = "" if smaller else f"it takes {tokens:,} tokens, its source {source_tokens:,}"
    return Verdict("is_smaller", smaller, reason)


def check_headings_once(text: str) -> Verdict:
    """Check that no heading occurs twice: a repeated one is a sign that an earlier summary was copied into a
    later one.
    """
    repeated = headings.count_repeated(text)
    return Verdict(
        "headings_once", not repeated, f"{repeated} headings stand there twice" if repeated else ""
    )


def keeps_facts(text: str, must_keep: Iterable[str]) -> Verdict:
    """Check that every fact that must be carried is present word for word, and not as a part of a longer
    name.
    """
    lost = sum(not contains_word(text, fact) for fact in must_keep)
    return Verdict("keeps_facts", not lost, f"{lost} facts that had to stay are missing" if lost else "")
