"""Facts about messages for scoring: text, size, literals, whole lines, phrases, rules, and identity.

A replay sees nearly the same messages before every reply, so the facts of a message are computed once.
Messages with equal content have the same number, and the other modules compare numbers.

A size has a meaning only together with its counter. The reference counter is plain arithmetic, so that a
repeated measurement uses the same window; a model's own counter shows the sizes that this model would see. A
table names its counter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.model.message import Message, Reasoning, Text, ToolResult
from refold.model.tokens import CountSource, TokenCounter

# Sizes: the counters of a replay

MESSAGE_TOKENS = 4
"""The frame of a message: OpenAI's documented size of a role and its markers."""
CALL_TOKENS = 8
"""The frame of a tool call: an id, a type and the markers of a name."""


def spoken_text(message: Message) -> str:
    """The text of a message and of the results in it; without reasoning and calls."""
    if len(message.parts) == 1 and type(part := message.parts[0]) is Text:
        return part.text
    return "\n".join(part.text for part in message.parts if isinstance(part, Text | ToolResult))


class ReferenceCounter:
    """Four characters per token, every text rounded up on its own. Reasoning and media count as nothing."""

    source: CountSource = "estimated"

    def text(self, text: str, /) -> int:
        return (len(text) + 3) // 4

    def message(self, message: Message, /) -> int:
        calls = sum(CALL_TOKENS + self.text(call.name) + self.text(call.arguments) for call in message.calls)
        return MESSAGE_TOKENS + self.text(spoken_text(message)) + calls


class CounterChoice(Struct, frozen=True):
    """The choice of a counter, which can be sent to another process: a counter with a tokenizer cannot."""

    model: str = ""
    """Count with this model's counter; empty for the reference counter."""

    def counter(self) -> TokenCounter:
        if not self.model:
            return ReferenceCounter()
        from refold.tokens import counter_for

        return counter_for(self.model)

    @property
    def name(self) -> str:
        """The name that a table shows for its counter."""
        if not self.model:
            return "reference: (characters + 3) // 4 per text, 4 per message, 8 per call"
        counter = self.counter()
        by = getattr(counter, "vocabulary", "")
        return f"{self.model}: {f'counted with {by}' if by else counter.source}"


REFERENCE = CounterChoice()


# Literals: pieces of a text that cannot be guessed, only remembered

FactKind: TypeAlias = Literal["url", "email", "path", "date", "dotted", "id", "snake", "camel", "number"]

_NAME = r"[A-Za-z_][\w-]*+"
_SEGMENTS = r"(?:/[\w.@+%-]++)++"
_SHAPES: dict[FactKind, str] = {
    "url": r"""(https?://[^\s<>"'`)\]}]++)""",
    "email": r"[\w.+-]++(@[\w-]++\.[\w.]++)?",
    "path": rf"[\w.@+-]++({_SEGMENTS})?|(~(?:/?[\w.@+-]++)?{_SEGMENTS}|(?:/[\w.@+-]++)?{_SEGMENTS})",
    "date": r"(\b\d{4}(?:-\d{2}){2}(?:T\d{2}(?::\d{2}){1,2})?)",
    "dotted": rf"\b{_NAME}((?:\.{_NAME})++)?",
    "id": r"#?\b([A-Za-z0-9][\w-]*+)",
    "snake": r"(\b_*+[A-Za-z][A-Za-z0-9]*+(?:_[A-Za-z0-9]++)++\b)",
    "camel": r"(\b[A-Za-z][a-z0-9]++[A-Z][A-Za-z0-9]++\b)",
    "number": r"(\b\d{3,}+(?:[.,]\d++)*+|\b\d++\.\d++)",
}
"""The order decides: if two shapes begin at the same character, the first one is the kind.

A match counts only if it has a group. A match without a group skips characters at which no literal of this
kind begins, so that each character is scanned once.
"""
_PATTERNS = tuple((kind, re.compile(shape)) for kind, shape in _SHAPES.items())
_ID_DIGITS, _ID_LETTERS = re.compile(r"\d"), re.compile("[A-Za-z]")
_SHORTEST_ID = 4

_TRAILING = ".,:;-"
MIN_CHARACTERS = 4
"""Shorter pieces occur by chance; only numbers may be shorter (`1.5`)."""
MIN_PATH_CHARACTERS = 5
MAX_CHARACTERS = 160
"""Longer ones are encoded data, which a model does not write from memory."""

_RUN = re.compile(r"(?<![A-Za-z0-9_.@+-])[A-Za-z0-9_.@+-]{4097,}+")
"""A run without a space or a slash is encoded data; only its two ends are scanned."""
_RUN_END = 2_048


def literals(text: str) -> dict[str, FactKind]:
    """Every literal of a text with its kind."""
    found: dict[str, FactKind] = {}
    for kind, whole in _find_literals(_without_long_runs(text)):
        literal = whole.strip(_TRAILING)
        if _is_long_enough(literal, kind):
            found[literal] = kind
    return found


def _find_literals(text: str) -> Iterator[tuple[FactKind, str]]:
    """The first literal in a text, then the first one after it, and so on."""
    finders = [_Finder(kind, pattern, text) for kind, pattern in _PATTERNS]
    at = 0
    while True:
        first = min(finders, key=lambda finder: finder.seek(at))
        if first.start == len(text):
            return
        yield first.kind, text[first.start : first.stop]
        at = first.stop


class _Finder:
    """Finds the next literal of one kind. Scans every character at most once."""

    def __init__(self, kind: FactKind, pattern: re.Pattern[str], text: str) -> None:
        self.kind, self._pattern, self._text = kind, pattern, text
        self.start = self.stop = -1
        self._scanned = 0
        """No literal of this kind begins before this position, except at `start`."""

    def seek(self, at: int) -> int:
        """The start of the first literal at a position or after it; the length of the text if there is none."""
        while self.start < at:
            found = self._pattern.search(self._text, max(at, self._scanned))
            if found is None:
                self.start = len(self._text)
            elif found.lastindex and (self.kind != "id" or _is_id(found[1])):
                self.start, self.stop = found.span()
            else:
                self._scanned = found.end()
        return self.start


def _is_id(word: str) -> bool:
    """True if the word has both a letter and a digit."""
    return len(word) >= _SHORTEST_ID and bool(_ID_DIGITS.search(word)) and bool(_ID_LETTERS.search(word))


def _without_long_runs(text: str) -> str:
    """The text without the middle of very long runs; the rest of such a run is still too long to be a literal."""
    return _RUN.sub(lambda run: run[0][:_RUN_END] + run[0][-_RUN_END:], text)


def _is_long_enough(literal: str, kind: FactKind) -> bool:
    if len(literal) > MAX_CHARACTERS:
        return False
    if kind == "path":
        return len(literal) >= MIN_PATH_CHARACTERS and _LETTER.search(literal) is not None
    return kind == "number" or len(literal) >= MIN_CHARACTERS


_LETTER = re.compile("[A-Za-z]")

_CHUNK = re.compile(r"""[^\s"'`<>(){}\[\],;|=\\→]{3,}""")
_EDGES = ".:!?*#$~+-"
_UNCOMMON = re.compile(r"\d|(?<=.)[A-Z]|\w[._/:@+&]\w")
"""A digit, a capital that is not the first letter, or a sign between two letters. A hyphen alone does not
make a name.
"""


def rare_words(text: str) -> frozenset[str]:
    """The second extractor: words between spaces, quotes and brackets that are not plain English."""
    words = {chunk.strip(_EDGES) for chunk in _CHUNK.findall(text) if _UNCOMMON.search(chunk)}
    return frozenset(
        word for word in words if 3 <= len(word) <= MAX_CHARACTERS and _UNCOMMON.search(word) is not None
    )


def holds(text: str, literal: str) -> bool:
    """True if the text contains the literal as a whole, and not as a part of a longer name or number."""
    at = text.find(literal)
    while at >= 0:
        end = at + len(literal)
        if not _continues(text[at - 1 : at]) and not _continues(text[end : end + 1]):
            return True
        at = text.find(literal, at + 1)
    return False


def _continues(neighbour: str) -> bool:
    return neighbour == "_" or neighbour.isalnum()


_WORD = re.compile(r"[A-Za-z]{4,}")


def surroundings(text: str, literal: str, *, reach: int, most: int) -> list[frozenset[str]]:
    """The words within `reach` characters of each mention, for the first `most` mentions.

    Words of fewer than four letters are ignored, because they say little about the meaning of a literal.
    """
    found: list[frozenset[str]] = []
    at = text.find(literal)
    while at >= 0 and len(found) < most:
        end = at + len(literal)
        around = f"{text[max(0, at - reach) : at]} {text[end : end + reach]}"
        found.append(frozenset(word.lower() for word in _WORD.findall(around)))
        at = text.find(literal, at + 1)
    return found


# Whole lines and phrases: text that a model copies as it stands, such as code for an edit

_LINE_START = re.compile(r"\s*+(?:\d++(?:→|\t|[:|]) ?|[-+*>|]++(?=\s))?+\s*+")
"""The indentation, and what a tool or Markdown puts before a line: its number, or the mark of a diff, a list
or a quotation. An edit repeats the line without it."""
MIN_LINE_CHARACTERS, MIN_LINE_WORDS = 20, 3
"""A shorter line (`return None`, `import os`) is written without memory."""
_LINE_WORD = re.compile(r"\w+")

PHRASE_WORDS = 5
_PHRASE_EDGES = ".,:;!?\"'`()[]{}*"
_LONG_WORD, _LONG_WORDS = 5, 2
"""A phrase has two words of five characters: one of short words only (`is one of the two`) says little."""


def lines(text: str) -> frozenset[str]:
    """The lines of a text that are worth copying, each without its indentation and its number."""
    found = (line[_end_of_start(line) :].rstrip() for line in text.split("\n"))
    return frozenset(line for line in found if _is_whole_line(line))


def _end_of_start(line: str) -> int:
    start = _LINE_START.match(line)
    return start.end() if start else 0


def _is_whole_line(line: str) -> bool:
    if len(line) < MIN_LINE_CHARACTERS or len(_LINE_WORD.findall(line)) < MIN_LINE_WORDS:
        return False
    return "/" not in line or len(line.split(maxsplit=1)) > 1  # one path or URL is a literal


def phrases(text: str) -> frozenset[str]:
    """Every run of five words in one line of a text; punctuation around the words does not count."""
    return frozenset(phrase for line in text.split("\n") for phrase in _phrases_of(line))


def _phrases_of(line: str) -> Iterator[str]:
    words = [word for chunk in line.split() if (word := chunk.strip(_PHRASE_EDGES))]
    for at in range(len(words) - PHRASE_WORDS + 1):
        run = words[at : at + PHRASE_WORDS]
        if sum(len(word) >= _LONG_WORD for word in run) >= _LONG_WORDS:
            yield " ".join(run)


# Rules: sentences in which a user tells how to work

_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
_BULLET = re.compile(r"^[\s>#*•-]*(?:\d+[.)]\s+)?")
_RULE = re.compile(
    r"\b(?:always|never|must|mustn't|make sure|be sure|ensure|avoid|from now on|remember to|"
    r"under no circumstances|at all times|no more than|at most|at least|only (?:if|when|use|after)|"
    r"(?:i|we) (?:want|prefer|need) you to|you (?:should|may|can) (?:not|only|never))\b"
    r"|(?:^|[,:;(*] ?|\b(?:please|you|but|and) )(?:do not|don't)\b",
    re.IGNORECASE,
)
"""An order, a ban or a limit. "I don't know" states a fact, so a negation counts only at the start of an
order.
"""
MIN_WORDS = 3
MAX_RULE_CHARACTERS = 400
"""A longer sentence is a pasted document."""


def rules(text: str) -> tuple[str, ...]:
    """The sentences of a user's text that state a rule, verbatim."""
    sentences = (_BULLET.sub("", sentence).strip() for sentence in _ENDS.split(text))
    return tuple(dict.fromkeys(sentence for sentence in sentences if _is_rule(sentence)))


def _is_rule(sentence: str) -> bool:
    if len(sentence) > MAX_RULE_CHARACTERS or sentence.endswith("?"):
        return False
    return len(sentence.split(maxsplit=MIN_WORDS)) >= MIN_WORDS and _RULE.search(sentence) is not None


class MessageFacts:
    """The facts of one message, each computed once."""

    def __init__(self, message: Message, number: int, tokens: int) -> None:
        self.message, self.number, self.tokens = message, number, tokens
        self.role = message.role

    @cached_property
    def spoken_text(self) -> str:
        return spoken_text(self.message)

    @cached_property
    def text(self) -> str:
        """All readable text of the message: its text, then the name and the arguments of every call."""
        calls = (f"\n{call.name}\n{spelled_out(call.arguments)}" for call in self.message.calls)
        return self.spoken_text + "".join(calls)

    @cached_property
    def literals(self) -> dict[str, FactKind]:
        return literals(self.text)

    @cached_property
    def rare_words(self) -> frozenset[str]:
        return rare_words(self.text)

    @cached_property
    def lines(self) -> frozenset[str]:
        return lines(self.text)

    @cached_property
    def phrases(self) -> frozenset[str]:
        return phrases(self.text)

    @cached_property
    def rules(self) -> tuple[str, ...]:
        return rules(self.spoken_text) if self.role == "user" else ()

    @cached_property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in self.message.calls)

    @cached_property
    def result_ids(self) -> tuple[str, ...]:
        return tuple(result.call_id for result in self.message.results)

    @cached_property
    def has_bad_arguments(self) -> bool:
        return any(call.kind == "function" and not _is_json(call.arguments) for call in self.message.calls)

    @cached_property
    def is_empty(self) -> bool:
        """True for a message of a user or a model that contains only white space."""
        parts = self.message.parts
        return (
            self.role in ("user", "assistant")
            and all(type(part) is Text for part in parts)
            and not self.spoken_text.strip()
        )

    @cached_property
    def is_only_thought(self) -> bool:
        """True if the message contains only reasoning and white space."""
        thoughts = [part for part in self.message.parts if type(part) is not Text]
        return (
            bool(thoughts)
            and all(type(part) is Reasoning for part in thoughts)
            and not self.spoken_text.strip()
        )


class FactBook:
    """The facts of all messages of one replay. Keeps every message, so that no `id()` is reused."""

    def __init__(self, counter: TokenCounter, known: Iterable[MessageFacts] = ()) -> None:
        self.counter = counter
        self._by_identity: dict[int, tuple[Message, MessageFacts]] = {}
        self._by_content: dict[object, MessageFacts] = {}
        for facts in known:
            self._by_identity[id(facts.message)] = facts.message, facts
            self._by_content.setdefault(_content(facts.message, facts.tokens), facts)

    def of(self, message: Message) -> MessageFacts:
        seen = self._by_identity.get(id(message))
        if seen is None:
            seen = self._by_identity[id(message)] = message, self._find_or_add(message)
        return seen[1]

    def all_of(self, messages: Iterable[Message]) -> tuple[MessageFacts, ...]:
        return tuple(map(self.of, messages))

    def _find_or_add(self, message: Message) -> MessageFacts:
        tokens = self.counter.message(message)
        content = _content(message, tokens)
        known = self._by_content.get(content)
        if known is None:
            known = self._by_content[content] = MessageFacts(message, len(self._by_content), tokens)
        return known


def _content(message: Message, tokens: int) -> object:
    """The properties that make two messages equal to a prompt cache; the tokens stand for reasoning and media."""
    calls = tuple((call.id, call.name, call.arguments) for call in message.calls)
    results = tuple(result.call_id for result in message.results)
    return message.role, results, spoken_text(message), calls, tokens


class Context:
    """The messages that a candidate would send, and the prefix that they share with the previous context."""

    def __init__(self, facts: Sequence[MessageFacts], before: Context | None) -> None:
        self.facts = facts
        self.tokens = sum(known.tokens for known in facts)
        self.shared = _shared(facts, before.facts) if before else 0
        self.is_rewritten = before is not None and self.shared < len(before.facts)

    @cached_property
    def numbers(self) -> frozenset[int]:
        return frozenset(known.number for known in self.facts)

    @cached_property
    def text(self) -> str:
        return "\n".join(known.text for known in self.facts)

    @cached_property
    def system_size(self) -> int:
        """The number of system messages at the beginning."""
        later = (at for at, known in enumerate(self.facts) if known.role not in ("system", "developer"))
        return next(later, len(self.facts))


def spelled_out(arguments: str) -> str:
    """The arguments of a call as a reader sees them: keys and values, one per line."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return "\n".join(_leaves(value))


def argument_names(arguments: str) -> list[str]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    return list(value) if isinstance(value, dict) else []


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _shared(new: Sequence[MessageFacts], old: Sequence[MessageFacts]) -> int:
    """The number of messages in the common prefix."""
    at = 0
    for one, other in zip(new, old, strict=False):
        if one.number != other.number:
            break
        at += 1
    return at
