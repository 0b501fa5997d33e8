"""May what a model wrote stand for a conversation?

One idea: a model writes good prose and gets facts wrong, so nothing it writes is trusted. Each way in which summaries are
known to fail has a check of its own. Some faults can be mended by machine: lines with a name that nobody ever said are taken
out, facts that had to stay are added. The others send the text back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core.summary.ledger import Ledger
from refold.core.summary.prompts import defused
from refold.core.summary.sections import Shares, sections, without_lists
from refold.core.summary.terms import Kind, terms

Fault: TypeAlias = Literal[
    "empty",
    "refusal",
    "cut_off",
    "reasoning_only",
    "tool_call",
    "not_smaller",
    "other_language",
    "invented",
    "echo",
]
FACTS_SHARE = 0.35
"""Of a summary's room, at least, for facts that are added because the model left them out."""
_FACTS = Shares(rules=0.5, files=0.35, notes=0.15)
_REFUSALS = (
    "i can't", "i cannot", "i can not", "i'm sorry", "i am sorry", "i'm unable", "i am unable", "as an ai",
    "sorry, but", "i won't", "i will not be able", "no prior history", "no previous conversation", "there is no conversation",
    "ich kann leider", "es tut mir leid", "je suis désolé", "je ne peux pas", "lo siento", "no puedo", "抱歉", "对不起", "无法",
)  # fmt: skip
_OPENING = 160
"""Characters in which a refusal says that it is one."""
_ENOUGH = 40
"""Words after which a text that opens like a refusal is one no more: it goes on to say something."""
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete", "model_context_window_exceeded"})
_DECLINED = frozenset({"refusal", "content_filter", "safety"})
_SCRIPTS = (
    ("cjk", re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")),
    ("cyrillic", re.compile("[\u0400-\u04ff]")),
    ("greek", re.compile("[\u0370-\u03ff]")),
    ("arabic", re.compile("[\u0600-\u06ff]")),
    ("hebrew", re.compile("[\u0590-\u05ff]")),
    ("devanagari", re.compile("[\u0900-\u097f]")),
    ("thai", re.compile("[\u0e00-\u0e7f]")),
    ("latin", re.compile("[A-Za-z\u00c0-\u024f]")),
)
_SCRIPT_WEIGHT = {"cjk": 3}
"""A Chinese character says about as much as three letters do."""
_HEADING = re.compile(r"#{1,6}\s+\S")
_OURS = re.compile(r"#[ms]\d+(?:\.\d+)?")
_MARKUP = frozenset("-*•>|`")


class Draft(Struct, frozen=True):
    """What came back from a model."""

    text: str
    finish: str = ""
    """Why the model stopped, in the provider's word."""
    has_calls: bool = False
    has_reasoning: bool = False


class Source(Struct, frozen=True):
    """What the draft is held against."""

    text: str
    """Everything the model was shown: transcript and previous summary."""
    told: str
    """The transcript alone."""
    spoken: str
    """What people said in it, which decides the language."""
    tokens: int
    ledger: Ledger


class Accepted(Struct, frozen=True):
    """A text that may be used if it has no fault; `mended` says what was done to it by machine."""

    text: str
    fault: Fault | None = None
    reason: str = ""
    """Why it may not be used, in words that a model understands and that quote nothing."""
    mended: tuple[str, ...] = ()


def accept(draft: Draft, source: Source, *, tokens: int, room: int, is_last_try: bool = False) -> Accepted:
    """Check a draft that takes `tokens`, and mend what can be mended, within `room` characters.

    On the last try, lines with invented names are taken out; before, the model gets a chance to do better.
    """
    text = draft.text.strip()
    for fault, reason in _faults(draft, text, source, tokens):
        if fault:
            return Accepted(text, fault, reason)
    text, mended = without_lists(defused(text)), []
    made_up = invented(text, source)
    if made_up and not is_last_try:
        count = f"{len(made_up)} name{'' if len(made_up) == 1 else 's'} or number{'' if len(made_up) == 1 else 's'}"
        return Accepted(text, "invented", f"it holds {count} that the transcript does not")
    if made_up:
        text = without_lines(text, made_up)
        mended.append("lines with invented names taken out")
        if not says_something(text):
            return Accepted(text, "invented", "nothing is left of it without its inventions")
    once = headings_once(text)
    if once != text:
        mended.append("headings that stood twice joined")
    full = with_facts(once, source.ledger, room)
    if full != once:
        mended.append("facts from the ledger added")
    return Accepted(full, mended=tuple(mended))


def _faults(draft: Draft, text: str, source: Source, tokens: int) -> Iterable[tuple[Fault | None, str]]:
    if draft.has_calls:
        yield "tool_call", "it calls a tool instead of writing a checkpoint"
    if not text and draft.has_reasoning:
        yield "reasoning_only", "it is nothing but reasoning"
    if not says_something(text):
        yield "empty", "it is empty or has only headings"
    if draft.finish in _CUT:
        yield "cut_off", "it was cut off before its end; be briefer"
    if draft.finish in _DECLINED or is_refusal(text):
        yield "refusal", "it declines to write a checkpoint"
    if tokens >= source.tokens:
        yield "not_smaller", "it is no shorter than the transcript"
    if is_echo(text, source.told):
        yield "echo", "it repeats the transcript instead of summarising it"
    if speaks_otherwise(text, source.spoken):
        yield "other_language", "it is not in the language of the conversation"


def says_something(text: str) -> bool:
    """More than white space and headings."""
    return any(line.strip(" -*_#`\t") and not _HEADING.match(line) for line in text.splitlines())


def is_refusal(text: str) -> bool:
    opening = text[:_OPENING].lower()
    return any(words in opening for words in _REFUSALS) and len(text.split()) <= _ENOUGH


def is_echo(text: str, source: str) -> bool:
    """Is most of it copied in long stretches? A checkpoint quotes names, not paragraphs."""
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 120]
    copied = sum(len(line) for line in lines if line in source)
    return copied > len(text) // 2


def script_of(text: str) -> str:
    """The script that most of a text is written in; empty where there are too few letters to tell."""
    counts = {name: len(pattern.findall(text)) * _SCRIPT_WEIGHT.get(name, 1) for name, pattern in _SCRIPTS}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= 20 else ""


def speaks_otherwise(text: str, spoken: str) -> bool:
    """Is it written in another script than what people said? Names and code are Latin everywhere."""
    said = script_of(spoken)
    return said not in ("", "latin") and script_of(text) == "latin"


def invented(text: str, source: Source) -> tuple[str, ...]:
    """Names, numbers and handles that the source does not hold."""
    found = (term for term, kind in terms(_OURS.sub(" ", text)) if kind in (Kind.LITERAL, Kind.NUMBER))
    said = dict.fromkeys((*_OURS.findall(text), *found))
    return tuple(term for term in said if term not in source.text and not _is_list_number(term))


def without_lines(text: str, terms_: Iterable[str]) -> str:
    """The text without the lines that hold one of these."""
    bad = tuple(terms_)
    return "\n".join(line for line in text.splitlines() if not any(term in line for term in bad))


def headings_once(text: str) -> str:
    """The text with what stands under the second of two equal headings moved under the first."""
    counts = Counter(line.strip() for line in text.splitlines() if _HEADING.match(line))
    if all(count == 1 for count in counts.values()):
        return text
    parts: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        if _HEADING.match(line):
            heading = line.strip()
            parts.setdefault(heading, [heading])
        else:
            parts[heading].append(line)
    return "\n".join(line for lines in parts.values() for line in lines).strip()


def with_facts(text: str, ledger: Ledger, room: int) -> str:
    """The text and those facts of the ledger that it does not hold word for word."""
    left = max(int(room * FACTS_SHARE), room - len(text))
    added = sections(ledger, left, shown=text, shares=_FACTS)
    return f"{text}\n\n{added}" if added else text


def _is_list_number(term: str) -> bool:
    return term.isdigit() and len(term) <= 2
