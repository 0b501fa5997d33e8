"""Accept, repair or reject the text that a model wrote as a summary.

Models write good prose and get facts wrong, so no draft is trusted. Each known way in which summaries fail
has its own check. Some faults are repaired by machine: reasoning around the answer and sentences with
invented names are removed, missing facts are added. All other faults reject the draft.

`with_facts` adds the facts of the ledger. They stand in the result word for word, each once, under one heading,
as far as the summary has tokens for them, regardless of the text that the model wrote. Facts that the model kept
itself stay in their place. Rules and changed files come first; each kind has a share of the room before any kind
takes the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core import summary_text
from refold.core.digest.ledger import EMPTY, Ledger, sentences, stated
from refold.core.digest.line_markers import QUOTE, is_rules_title, quoted_lines
from refold.core.digest.terms import contains_word
from refold.core.digest.typed_text import said_by_user, typed_passages
from refold.core.prompts import Count, Passage, defused
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
from refold.core.summary_checks.inventions import KnownNames, invented, known_of, without_inventions
from refold.core.summary_text import (
    DECISIONS,
    ERRORS,
    IDS,
    MODIFIED,
    READ,
    RULES,
    SAID,
    TASKS,
    TITLES,
    headings_once,
    in_order_of_weight,
    is_heading,
    is_shown,
    lines_of,
    one_line,
    says_something,
    section_span,
)
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


class AcceptedSummary(Struct, frozen=True):
    """A text that may be used if it has no fault; `mended` lists the repairs made by machine."""

    text: str
    fault: Fault | None = None
    reason: str = ""
    """Why it may not be used, in words that a model understands and without quoting the draft."""
    mended: tuple[str, ...] = ()


def accept(
    draft: SummaryDraft, source: DraftSource, *, most: int, count: Count, is_last_try: bool = False
) -> AcceptedSummary:
    """Check a draft, and repair it if possible, within `most` tokens.

    On the last try, sentences with invented names are removed; before that, the draft is rejected so that the
    model can try again.
    """
    said = without_thoughts(draft.text)
    if len(said) > max(MAX_DRAFT, most * _LONGEST_TOKEN):
        return AcceptedSummary("", "too_long", "it is many times longer than it may be")
    text = visible("\n".join(said.splitlines()))
    for fault, reason in _faults(draft, text, source, count):
        return AcceptedSummary(text, fault, reason)
    notes = ("reasoning taken out",) if said != draft.text.strip() else ()
    plain = quoted_lines(defused(text), "summary", begins_line=True)
    found = _without_inventions(AcceptedSummary(plain, mended=notes), source, is_last_try=is_last_try)
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


def _without_inventions(found: AcceptedSummary, source: DraftSource, *, is_last_try: bool) -> AcceptedSummary:
    known = source.known
    made_up = invented(found.text, known)
    if not made_up:
        return found
    if not is_last_try:
        what = "a name or number" if len(made_up) == 1 else f"{len(made_up)} names or numbers"
        return AcceptedSummary(found.text, "invented", f"it holds {what} that the transcript does not")
    text = without_inventions(found.text, known)
    if not says_something(text):
        return AcceptedSummary(text, "invented", "nothing is left of it without its inventions")
    return AcceptedSummary(text, mended=(*found.mended, "lines with invented names taken out"))


def _add_facts(found: AcceptedSummary, source: DraftSource, most: int, count: Count) -> AcceptedSummary:
    once, notes = headings_once(found.text), found.mended
    if once != found.text:
        notes = (*notes, "headings that stood twice joined")
    if source.ledger is None:
        return AcceptedSummary(once, mended=notes)
    full = with_facts(once, source.ledger, most=most, count=count, said=source.typed)
    return AcceptedSummary(full, mended=(*notes, "facts from the ledger added") if full != once else notes)


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
    said = summary_text.says_something(text)
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
    repeated = summary_text.count_repeated(text)
    return Verdict(
        "headings_once", not repeated, f"{repeated} headings stand there twice" if repeated else ""
    )


def keeps_facts(text: str, must_keep: Iterable[str]) -> Verdict:
    """Check that every fact that must be carried is present word for word, and not as a part of a longer
    name.
    """
    lost = sum(not contains_word(text, fact) for fact in must_keep)
    return Verdict("keeps_facts", not lost, f"{lost} facts that had to stay are missing" if lost else "")


_SHARES = {
    RULES: 0.3, SAID: 0.2, MODIFIED: 0.15, IDS: 0.1, TASKS: 0.1, ERRORS: 0.1, DECISIONS: 0.05, READ: 0.0,
}  # fmt: skip
"""The order of priority, and the guaranteed share of the room for each kind: files that were only read can
be read again."""
_SLACK = 2
"""Tokens by which a line may cost more in its place than by itself."""
_POINT = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])\s+(?=\S)")
_MARKS = re.compile(r"(?:[\s>*_+•◦|`–—-]|\[[ xX]?\]|(?:[0-9]{1,3}|[a-zA-Z])[.)](?=\s))*+")
"""The marks that may precede a list item."""
_HEADING_MARKS = "#> \t"
_SMALLER = re.compile(
    r"\s{0,3}(?:\*\*|__|<h[1-6]>)?([A-Z][\w &'’/-]{1,40}+)(?::?\*\*:?|__:?|:|</h[1-6]>)\s*+"
)
"""The forms that some models write instead of a heading."""
_SHORTEST_RULE = 12
"""Characters: a shorter string may occur in any text by chance."""


class _FactInserter:
    """A text that is being filled with facts, up to a number of tokens."""

    def __init__(self, text: str, most: int, count: Count) -> None:
        self.text, self.most, self.count = text, most, count
        self.used, self.is_exact = count(text), True
        self.added: dict[str, dict[int, str]] = {}
        """The lines under each heading, by their places in the ledger."""
        self.shown = text

    def whole(self, title: str = "", line: str = "") -> str:
        """Return the text with all added lines, and one line more."""
        text, joint = self.text, "\n\n" if self.text else ""
        for name in TITLES:
            added = self.added.get(name, {})
            lines = [*(added[at] for at in sorted(added)), *([line] if name == title else [])]
            if lines and (place := section_span(text, name)):
                text = _insert_lines(text, place[1], lines)
            elif lines:
                text, joint = "\n".join((f"{text}{joint}{name}", *lines)), "\n"
        return text

    def fill(self, title: str, lines: Sequence[str], limit: int) -> None:
        """Add the lines that the text does not contain, the most important first, while there is room."""
        is_file = title in (MODIFIED, READ)  # that the user speaks of a file does not say that it was changed
        for at in in_order_of_weight(title, lines):
            line = lines[at]
            shown = self.text if is_file else self.shown
            is_new = not is_shown(title, line[2:].removeprefix(QUOTE), shown)
            if is_new and self._fits(title, line, min(limit, self.most)):
                self.added.setdefault(title, {})[at] = line
                self.shown = f"{self.shown}\n{line}"

    def _fits(self, title: str, line: str, limit: int) -> bool:
        is_new = title not in self.added and section_span(self.text, title) is None
        cost = self.count(f"\n{line}") + (self.count(f"\n{title}") if is_new else 0)
        if self.used + cost + _SLACK <= limit:
            self.used, self.is_exact = self.used + cost + _SLACK, False
            return True
        if not self.is_exact:
            self.used, self.is_exact = self.count(self.whole()), True
        if self.used + cost - _SLACK > limit:
            return False
        tokens = self.count(self.whole(title, line))
        self.used = tokens if tokens <= limit else self.used
        return tokens <= limit

    def trimmed(self) -> str:
        """Return the whole text within its tokens, also if lines cost more together than one by one."""
        text = self.whole()
        for name in reversed(tuple(_SHARES)):
            while (added := self.added.get(name)) and self.count(text) > self.most:
                places = sorted(added)
                del added[places[len(places) // 2] if name == RULES else places[0]]
                text = self.whole()
        return text


def with_facts(text: str, ledger: Ledger, *, most: int, count: Count, said: str = "") -> str:
    """Return the text with the facts of the ledger that it lacks, within `most` tokens.

    `said` is the text that the user typed (`typed_by_user`): a rule that occurs there may stay in the text.
    """
    facts = fact_lines(ledger)
    page = _FactInserter(_without_wrong_items(text, facts, said), most, count)
    room = most - page.used
    for title, share in _SHARES.items():
        page.fill(title, facts[title], page.used + int(room * share))
    for title in _SHARES:
        if title != SAID:  # whole messages of the user would take all the room that a model left
            page.fill(title, facts[title], most)
    return page.trimmed()


def typed_by_user(passages: Sequence[Passage]) -> str:
    """Return the text that the user typed in some passages.

    Rules that were typed before these passages are in the ledger. The rules that an earlier summary lists are
    not used: a model may have written them.
    """
    first = passages[0].number if passages else 0
    replies = (passage.number for passage in passages if passage.message.role == "assistant")
    reply = next(replies, 0 if first else len(passages))
    said = (
        "\n".join(typed_passages(said, is_task=not first and passage.number < reply))
        for passage in passages
        if (said := said_by_user(passage.message))
    )
    return "\n".join(said)


def fact_lines(ledger: Ledger) -> dict[str, list[str]]:
    """Return the ledger's facts as list items, under the heading of each kind."""
    found = {
        RULES: ledger.rules,
        SAID: ledger.said,
        IDS: ledger.ids,
        MODIFIED: ledger.modified,
        READ: ledger.read,
        ERRORS: ledger.errors,
        DECISIONS: ledger.decisions,
        TASKS: ledger.tasks,
    }
    return {title: _list_items(entries) for title, entries in found.items()}


def _list_items(entries: Iterable[str]) -> list[str]:
    """Return each entry as a line of its own, without anything that could be taken for a mark of Refold."""
    return [f"- {defused(said)}" for entry in entries if (said := one_line(entry))]


def _insert_lines(text: str, at: int, lines: Sequence[str]) -> str:
    whole = text.splitlines()
    return "\n".join((*whole[:at], *lines, *whole[at:]))


def _without_wrong_items(text: str, facts: dict[str, list[str]], said: str) -> str:
    """Return the text without list items that contradict the ledger: rules that the user did not give, words
    that the user did not say, modified files as only read.
    """
    rules, own, modified, read = (
        [line[2:] for line in facts[title]] for title in (RULES, SAID, MODIFIED, READ)
    )
    return _without_points(
        _without_points(_with_given_rules(text, rules, said), SAID, lambda point: point not in own),
        READ,
        lambda point: (
            point not in read and any(contains_word(point, path.removeprefix(QUOTE)) for path in modified)
        ),
    )


def _with_given_rules(text: str, rules: Sequence[str], said: str) -> str:
    """Return the text with its lists of rules rebuilt: an item stays if all of it was said by the user."""
    if not any(map(is_rules_title, text.splitlines())):
        return text
    exact, known = frozenset(rules), frozenset((*map(_normalise, rules), *_typed_units(said)))
    kept: list[str] = []
    point: list[str] = []
    in_list = is_below = False  # below: under a smaller heading that the list had
    for line, is_code in (*lines_of(text), (RULES, False)):  # a last heading ends the last list
        is_title = is_rules_title(line)
        smaller = _SMALLER.fullmatch(line) if in_list and not is_title and not is_code else None
        if point and (is_title or smaller or is_heading(line) or not _continues_item(line)):
            kept += _given_item(point, exact, known)
            point = []
        if is_title and is_code:
            # Quoted in place of its hashes: not longer than it was, and the same when it is checked again.
            kept += () if in_list else (f"{QUOTE}{line.lstrip(_HEADING_MARKS)}",)
        elif is_title:
            in_list, is_below = True, False
            kept.append(RULES)
        elif smaller:
            in_list = False
            kept.append(f"## {smaller[1]}")
        elif is_heading(line) and not is_code:
            is_below = (in_list or is_below) and line.startswith("###")
            in_list = False
            kept.append(f"## {line.lstrip('#').strip()}" if is_below else line)
        elif in_list and line.strip():
            point.append(line)
        else:
            kept.append(line)
    return headings_once("\n".join(_without_empty(kept[:-1])).strip())


def _continues_item(line: str) -> bool:
    """Return True if a line continues a wrapped list item and is no item of its own."""
    return line[:1].isspace() and bool(line.strip()) and _POINT.match(line) is None


def _given_item(point: Sequence[str], rules: frozenset[str], known: frozenset[str]) -> list[str]:
    """Return an item of a list of rules, if it or each of its sentences was given; an empty list if not."""
    whole = " ".join(map(str.strip, point))
    if whole.startswith("- ") and whole[2:] in rules:
        return [whole]  # the ledger's own item, marks at its beginning included
    bare = whole[_after_marks(whole) :]
    said = [plain for one in sentences(bare) if (plain := _normalise(one))]
    is_given = _normalise(bare) in known or known.issuperset(said)
    return [f"- {bare}"] if said and is_given else []


def _without_empty(lines: Sequence[str]) -> list[str]:
    """Return the lines without headings of rules that have nothing under them."""
    found: list[str] = []
    for line in (*lines, "#"):
        if line == "#" or is_heading(line):
            last = next((at for at in range(len(found), 0, -1) if found[at - 1].strip()), 0)
            if last and found[last - 1] == RULES:
                del found[last - 1 :]
        found.append(line)
    return found[:-1]


def _without_points(text: str, title: str, is_wrong: Callable[[str], bool]) -> str:
    """Return the text without the wrong items of the list under a heading, and without the heading if nothing
    is left.
    """
    place = section_span(text, title)
    if place is None:
        return text
    start, stop = place
    lines = text.splitlines()
    points = ((line, _POINT.match(line)) for line in lines[start:stop])
    kept = [line for line, mark in points if not (mark and is_wrong(line[mark.end() :]))]
    if len(kept) == stop - start:
        return text
    is_left = any(line.strip() for line in kept)
    rest = (*lines[:start], *kept) if is_left else lines[: start - 1]
    return headings_once("\n".join((*rest, *lines[stop:])).strip())


def _typed_units(said: str) -> Iterator[str]:
    """Yield the typed text as lines and as sentences: a smaller part may say the contrary of the whole."""
    for unit in stated(said):
        plain = _normalise(unit[_after_marks(unit) :])
        if len(plain) >= _SHORTEST_RULE:
            yield plain


def _after_marks(line: str) -> int:
    found = _MARKS.match(line)
    return found.end() if found else 0


def _normalise(text: str) -> str:
    """Return a text in lower case, without markup and surrounding punctuation."""
    return " ".join(text.casefold().replace("*", "").replace("`", "").split()).strip("\"'“”«».!。！ ")
