"""Token counters for text and messages, and the choice of one for a model.

`ExactCounter` runs the model's own vocabulary; `FittedCounter` estimates. Both add the framing of messages,
calls and results (`MessageCounter`), and both cache counts by the digest of the text, never the text.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from refold.model.errors import MissingExtra
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    compaction_of,
    is_within,
)
from refold.model.tokens import CountSource, TokenCounter
from refold.plugins.registry import active
from refold.tokens.catalog import spellings

if TYPE_CHECKING:
    import splintr

# Cache of counts, by the digest of the text

GENERATION = 16_384
"""Entries per generation: some 2,000 messages of eight live conversations, at most about 6 MB."""


class Memo:
    """A cache of two generations. A hit moves an entry to the young one; when that is full, the old one is
    dropped.
    """

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, generation: int = GENERATION) -> None:
        self._limit = generation
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: bytes) -> int | None:
        known = self._young.get(key)
        if known is None and (known := self._old.get(key)) is not None:
            self.put(key, known)
        return known

    def put(self, key: bytes, tokens: int) -> None:
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = tokens


def digest(text: str) -> bytes:
    """16 bytes: an accidental collision is impossible in practice, a deliberate one costs 2**64 attempts."""
    if len(text) <= PORTION:
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    found = blake2b(digest_size=16)
    for at in range(0, len(text), PORTION):  # no copy of a long text is made
        found.update(text[at : at + PORTION].encode("utf-8", "surrogatepass"))
    return found.digest()


# The size of a message: its texts, the framing around them, and flat sizes for other content

IMAGE_TOKENS = 1_000
"""A screenshot: OpenAI bills 765 for a square at high detail, Anthropic 1,600 at most. Providers scale every
image down, so its size in bytes says little about its tokens.
"""
PAGE_TOKENS = 2_000
"""A page of a document: Anthropic states 1,500 to 3,000."""
PAGE_BYTES = 64 * 1024
MAX_PAGES = 25
"""Limit for the estimate of pages from bytes: a larger file is a scan, whose pages are large in bytes only."""
CHARACTERS_PER_TOKEN = 4
"""For encrypted content, which cannot be counted; Codex uses the same number."""
_SEALED = frozenset({"data", "encrypted_content", "encrypted_index", "signature"})
"""Keys whose values a model never reads as text."""
_Count: TypeAlias = Callable[[str], int]


class Framing(Struct, frozen=True):
    """Tokens that a provider's template adds around messages, calls and results."""

    message: int
    call: int
    result: int


CHAT_FRAMING = Framing(message=4, call=9, result=8)
"""OpenAI documents three tokens per message and one for the role. Calls and results are from its published
harmony format, in which each is a message: `<|start|>assistant<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>…<|call|>` and `<|start|>functions.NAME
to=assistant<|channel|>commentary<|message|>…<|end|>`, with a short name.
"""
CLAUDE_FRAMING = Framing(message=4, call=30, result=30)
"""Sixty tokens per call and its result, fitted together with `CLAUDE_FACTOR` to recorded bills."""


class MessageCounter(ABC):
    """Counts messages with a counter for text. Counts of longer texts are cached, the texts are not."""

    source: CountSource
    memo_from: ClassVar[int] = 24
    """Characters from which a lookup (0.5 µs) is faster than counting."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._memo = Memo()

    @abstractmethod
    def count(self, text: str, /) -> int:
        """The tokens of a text, without the cache."""

    def text(self, text: str, /) -> int:
        if len(text) < self.memo_from:
            return self.count(text)
        key = digest(text)
        known = self._memo.get(key)
        if known is None:
            known = self.count(text)
            self._memo.put(key, known)
        return known

    def message(self, message: Message, /) -> int:
        frame, count = self._framing, self.text
        tokens = frame.message
        for part in message.parts:
            tokens += count(part.text) if type(part) is Text else _part(part, count, frame)
        return tokens


def _part(part: Part, count: _Count, frame: Framing) -> int:
    if isinstance(part, Text):
        return count(part.text)
    if isinstance(part, ToolResult):
        tokens = frame.result
        for inner in part.parts:
            tokens += count(inner.text) if type(inner) is Text else _part(inner, count, frame)
        return tokens
    if isinstance(part, ToolCall):
        return frame.call + count(part.name) + count(part.arguments)
    if isinstance(part, Reasoning):
        return count(part.text)
    if isinstance(part, Image):
        return IMAGE_TOKENS
    if isinstance(part, File):
        return count(part.text) if part.text else _file(part)
    return _opaque(part, count)


def _file(part: File) -> int:
    size = len(part.data) * 3 // 4
    if part.media_type.startswith("text/"):
        return size // 4
    return PAGE_TOKENS * max(1, min(MAX_PAGES, size // PAGE_BYTES))


def _opaque(part: Opaque, count: _Count) -> int:
    """The JSON text that a model may be shown, without encrypted fields; inline media counts as an image.

    Of a provider's own compaction its text counts, or its size if it is encrypted.
    """
    if part.raw is None:
        return count(part.kind)
    if compaction := compaction_of(part):
        return count(compaction.text) if compaction.text else compaction.characters // CHARACTERS_PER_TOKEN
    try:
        value = msgspec.json.decode(part.raw)
        media = sum(1 for _ in _inline_media(value))
        return IMAGE_TOKENS * media + count(msgspec.json.encode(_readable(value)).decode())
    except (msgspec.DecodeError, RecursionError):
        return count(bytes(part.raw).decode(errors="replace"))


def _readable(value: object) -> object:
    if isinstance(value, dict):
        return {key: _readable(inner) for key, inner in value.items() if key not in _SEALED}
    if isinstance(value, list):
        return [_readable(inner) for inner in value]
    return "" if _is_inline_media(value) else value


def _inline_media(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _inline_media(inner)
    elif _is_inline_media(value):
        yield value


def _is_inline_media(value: object) -> bool:
    return isinstance(value, str) and value.startswith("data:") and ";base64," in value[:100]


# Exact counts, with the model's own vocabulary and splintr

_VOCABULARIES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), vocabulary)
    for pattern, vocabulary in (
        (r"distill-llama", "llama3"),
        (r"distill-qwen", "qwen3"),
        (r"(chat)?gpt-(4o|4\.1|4\.5|5|oss|realtime|audio)|o[134](-|$)|codex|computer-use", "o200k_base"),
        (r"gpt-(4|3\.5)|text-embedding-", "cl100k_base"),
        (r"(meta-)?(llama|hermes)-?3", "llama3"),
        (r"(meta-)?llama-?2|vicuna|tinyllama", "llama2"),
        (r"codellama|code-llama", "codellama"),
        (r"qwen-?(2|3(?!\.\d))|qwq", "qwen3"),
        (r"deepseek-(v3|r1)", "deepseek_v3"),
        (r"glm-?4", "glm4"),
        (r"kimi-?k2", "kimi_k2"),
        (r"kimi-?k3", "kimi_k3"),
        (r"mistral-7b(-instruct)?(-v0\.[12])?$|mixtral-8x7b", "mistral_v1"),
        (r"mistral-7b|mixtral-8x22b|codestral", "mistral_v2"),
        (r"(open-)?mistral-(nemo|large|medium|small)|pixtral|ministral|devstral|magistral", "mistral_v3"),
        (r"gemma-?2|gemini-1", "gemma2"),
        (r"gemma-?3|gemini-[23]", "gemma3"),
        (r"gemma-?4", "gemma4"),
        (r"phi-?4(?!-m)", "phi4"),
        (r"olmo-?2", "olmo2"),
    )
)
"""The first pattern that matches the start of a name wins. Google publishes Gemma's vocabularies as those of
its Gemini models. Models not listed here are estimated: Claude has no public vocabulary, and a name such as
`deepseek-chat` moves on to models whose vocabulary splintr does not have.
"""

_WITH_RUNS = ("gemma2", "gemma3")
"""Vocabularies that merge a run of line breaks or tabs as a whole, in time that grows with the square of its
length.
"""
_RUN = 1_984
"""Characters of such a run that are counted at once: 64 times the longest token of 31, so that the count
stays the same.
"""
_RUNS = re.compile(rf"(?<!\n)\n{{{_RUN},}}+|(?<!\t)\t{{{_RUN},}}+")


LONG = 64 * 1024
"""Characters from which a text is counted as a batch of one: equally fast, but it releases the interpreter's
lock, which `encode_flat` holds for a tenth of a second per megabyte of base64. A text that spells a special
token is counted under the lock.
"""


PORTION = 250_000
"""Characters of a text that are counted at once: the encoder takes nine times the memory of its text."""
_BY_WORDS = frozenset(
    [
        "o200k_base",
        "cl100k_base",
        "llama3",
        "qwen3",
        "deepseek_v3",
        "glm4",
        "kimi_k2",
        "kimi_k3",
        "mistral_v3",
        "phi4",
        "olmo2",
    ]
)
"""Vocabularies that split a text before a blank between two letters, and merge nothing across it: the counts of portions add up
to that of the whole. The others merge across words."""
_WORD_ENDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_NEAR = 10_000
"""Characters at the beginning of a portion in which the end of a word is looked for. If there is none, as in base64, the cut may add
a token."""


def _portions(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = min(start + PORTION, len(text))
        if end < len(text) and (found := _WORD_ENDS.search(text, end, end + _NEAR)):
            end = found.start()
        yield text[start:end]
        start = end


def vocabulary_for(model: str) -> str | None:
    """The vocabulary for a model's name; None if the model can only be estimated."""
    for name in reversed(spellings(model)):
        for pattern, vocabulary in _VOCABULARIES:
            if pattern.match(name) or ("distill" in pattern.pattern and pattern.search(name)):
                return vocabulary
    return None


class ExactCounter(MessageCounter):
    """Counts with one vocabulary.

    Raises:
        MissingExtra: splintr is not installed.
    """

    source: CountSource = "counted"
    memo_from: ClassVar[int] = 64

    def __init__(self, vocabulary: str) -> None:
        super().__init__(CHAT_FRAMING)
        self.vocabulary = vocabulary
        self._tokenizer = _load(vocabulary)
        specials = self._tokenizer.special_tokens()
        self._openings = tuple({special[:2] for special in specials})
        self._spelled = re.compile("|".join(map(re.escape, specials)))

    def count(self, text: str, /) -> int:
        """Uses `encode_flat`, which is several times faster than a list, but reads spelled special tokens as
        such.
        """
        if len(text) > _RUN and self.vocabulary in _WITH_RUNS and (parts := _split_runs(text)):
            return sum(map(self._count, parts))
        return self._count(text)

    def _count(self, text: str) -> int:
        try:
            if self._spells_special(text):
                return len(self._tokenizer.encode_ordinary(text))
            if len(text) > LONG:
                portions = _portions(text) if self.vocabulary in _BY_WORDS else (text,)
                return sum(len(self._tokenizer.encode_batch_flat([one])[0]) // 4 for one in portions)
            return len(self._tokenizer.encode_flat(text)) // 4
        except UnicodeEncodeError:
            return self._count(text.encode("utf-8", "replace").decode())

    def _spells_special(self, text: str) -> bool:
        """Searches for two characters first: ten times faster than the pattern alone."""
        for opening in self._openings:
            if is_within(text, opening):
                return self._spelled.search(text) is not None
        return False


def _split_runs(text: str) -> list[str]:
    """A text split inside its long runs of line breaks and tabs; empty if it has none."""
    cuts = [at for run in _RUNS.finditer(text) for at in range(run.start() + _RUN, run.end(), _RUN)]
    return [text[start:stop] for start, stop in pairwise((0, *cuts, len(text)))] if cuts else []


@cache
def _load(vocabulary: str) -> splintr.AnyTokenizer:
    try:
        import splintr
    except ImportError:
        raise MissingExtra("tokens", "exact token counting") from None
    return splintr.Tokenizer.from_pretrained(vocabulary)


# Estimated counts: a weighted histogram of neighbouring bytes, fitted to a real tokenizer

CLAUDE_FACTOR = 1.2
"""Claude's billed tokens per o200k token, between 1.12 and 1.24 in 1,153 recorded steps of two coding agents
(Opus 4.5 and 4.6, Sonnet 4.5, Haiku 4.5), fitted together with `CLAUDE_FRAMING`. A factor and framing fitted
to one agent's steps puts half of the other's within 7 to 9 % of the bill and the total 5 to 6 % under it;
plain o200k is 25 % under it. Calibration with reported usage corrects the rest.
"""

SAMPLE_FROM = 1_024
"""Even pairs (about 2 KB of text) from which every second pair is skipped, for twice the speed and the same
error.
"""
_STEP = 32 * 1024
"""Pairs summed in one step: a millisecond."""

_LETTERS = ("ae", "io", "u", "t", "n", "r", "s", "lh", "dc", "mpf", "gbyw", "kvxqzj", "AEIOU", "BCDFGHJKLMNPQRSTVWXYZ")  # fmt: skip
_SIGNS = ("0123456789", " ", "\n\r", "\t", ".,", ":;", "\"'`", "([{<", ")]}>", "_", "-/\\")
_CONTINUATIONS = ("80-8f", "90-9f", "a0-af", "b0-bf")
_LEADS = ("c2", "c3", "c4-c9", "ce", "cf", "d0", "d1", "d2-d6", "d7", "d8", "d9", "da-db", "e0", "e1", "e2", "e3", "e4",
          "e5-e6", "e7-e9", "ea", "eb-ec", "ed", "ef", "f0-f4")  # fmt: skip
"""First bytes of UTF-8 sequences, by script: c3 is Western European, d0 Cyrillic, e0 Indic, e3 to e9 East
Asian.
"""


def _span(span: str) -> range:
    first, _, last = span.partition("-")
    return range(int(first, 16), int(last or first, 16) + 1)


_MEMBERS = [
    *(letters.encode() for letters in (*_LETTERS, *_SIGNS)),
    *(_span(span) for span in (*_CONTINUATIONS, *_LEADS)),
]
CLASSES = len(_MEMBERS) + 1
"""Class 0 is everything not listed: operators, `#`, `@`, `&`, `%` and control characters."""
ASCII_CLASSES = len(_LETTERS) + len(_SIGNS) + 1
"""Classes below this are ASCII characters."""
_CLASS_OF = {byte: number for number, members in enumerate(_MEMBERS, 1) for byte in members}
_TABLE = bytes(_CLASS_OF.get(byte, 0) for byte in range(256))


def class_pairs(text: str) -> tuple[memoryview[int], memoryview[int]]:
    """The codes of all neighbouring classes: the pairs that start at even positions, and those that start at
    odd ones.

    A line break is assumed before and after the text.
    """
    classes = memoryview((b"\n%b\n" % text.encode("utf-8", "surrogatepass")).translate(_TABLE))
    return _coded(classes), _coded(classes[1:])


def _coded(classes: memoryview[int]) -> memoryview[int]:
    return classes[: len(classes) & ~1].cast("H")


def pair_code(first: int, second: int) -> int:
    return int.from_bytes((first, second), sys.byteorder)


class FittedCounter(MessageCounter):
    """Estimates o200k tokens times a factor."""

    source: CountSource = "estimated"

    def __init__(self, factor: float = 1.0, framing: Framing = CHAT_FRAMING) -> None:
        super().__init__(framing)
        self.factor = factor

    def count(self, text: str, /) -> int:
        if not text:
            return 0
        return max(1, round(self.factor * _estimate(*class_pairs(text))))


def _estimate(even: memoryview[int], odd: memoryview[int]) -> float:
    """The sum of all weights. A long text is sampled at even positions in its first half and at odd ones in
    its second, because a pattern of even period looks different at each.
    """
    weight = _weights().__getitem__
    if len(even) < SAMPLE_FROM:
        return sum(map(weight, even)) + sum(map(weight, odd))
    half = len(even) // 2
    return 2 * (_summed(even[:half]) + _summed(odd[half:]))


def _summed(pairs: memoryview[int]) -> float:
    """The sum of the weights, in steps: one call over megabytes would hold the interpreter's lock for a fifth
    of a second.
    """
    weight, total = _weights().__getitem__, 0.0
    for start in range(0, len(pairs), _STEP):
        total = sum(map(weight, pairs[start : start + _STEP]), total)
    return total


class _Fit(Struct, frozen=True):
    """The part of the data file that counting needs: one row per first class, one weight per second class."""

    weights: tuple[tuple[float, ...], ...]


@cache
def _weights() -> list[float]:
    """The weights as a list by code: a faster lookup than a dictionary."""
    from importlib import resources

    data = resources.files("refold.tokens").joinpath("data/estimator.json").read_bytes()
    weights = [0.0] * (pair_code(CLASSES, CLASSES) + 1)
    for first, row in enumerate(msgspec.json.decode(data, type=_Fit).weights):
        for second, weight in enumerate(row):
            weights[pair_code(first, second)] = weight
    return weights


def counter_for(model: str) -> TokenCounter:
    """The best counter available: that of a plugin, exact if splintr is installed and knows the model, otherwise an
    estimate.

    Models with the same vocabulary share one counter, and its cache.
    """
    return active().counter(model, lambda: _own_counter(model)) or _own_counter(model)


def _own_counter(model: str) -> TokenCounter:
    vocabulary = vocabulary_for(model)
    exact = _exact(vocabulary) if vocabulary else None
    return exact or _fitted("claude" in spellings(model)[-1])


@cache
def _exact(vocabulary: str) -> ExactCounter | None:
    try:
        return ExactCounter(vocabulary)
    except MissingExtra:
        return None


@cache
def _fitted(is_claude: bool) -> FittedCounter:
    return FittedCounter(CLAUDE_FACTOR, CLAUDE_FRAMING) if is_claude else FittedCounter()
