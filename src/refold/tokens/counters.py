"""The choice of a counter for a model."""

from __future__ import annotations

import re
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
)
from refold.model.tokens import Source
from refold.tokens.catalog import spellings

if TYPE_CHECKING:
    import splintr
import sys

from refold.model.tokens import TokenCounter

# Counts remembered by the digest of their text.

GENERATION = 16_384
"""Entries until the older half is forgotten: some 2,000 messages of eight live conversations, at most about 6 MB."""


class Memo:
    """Two generations: what is asked for moves to the young one, and what is left in the old one goes with it."""

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
    """16 bytes make an accidental collision impossible in practice, and a wanted one costs 2**64 attempts."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# What one message costs: its texts, the frame around them, and a flat cost for what is not text.

IMAGE_TOKENS = 1_000
"""A screenshot: OpenAI bills 765 for a square at high detail, Anthropic 1,600 at most. Providers scale every image down,
so its bytes say little about its tokens."""
PAGE_TOKENS = 2_000
"""A page of a document: Anthropic states 1,500 to 3,000."""
PAGE_BYTES = 64 * 1024
MAX_PAGES = 25
"""A scan is large in bytes only: beyond this, size no longer tells pages."""
CHARACTERS_PER_TOKEN = 4
"""What is sealed cannot be counted; this is what Codex takes for it."""
_SEALED = frozenset({"data", "encrypted_content", "encrypted_index", "signature"})
"""Keys whose values a model never reads as text."""
_Count: TypeAlias = Callable[[str], int]


class Framing(Struct, frozen=True):
    """Tokens that a provider's template puts around messages, calls and results."""

    message: int
    call: int
    result: int


CHAT_FRAMING = Framing(message=4, call=9, result=8)
"""OpenAI documents three tokens per message and one for the role. Calls and results are those of its published harmony
format, where each is a message: `<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>…
<|call|>` and `<|start|>functions.NAME to=assistant<|channel|>commentary<|message|>…<|end|>`, with a short name."""
CLAUDE_FRAMING = Framing(message=4, call=30, result=30)
"""Sixty tokens per call and its result, found together with `fitted.CLAUDE_FACTOR` in recorded bills."""


class MessageCounter(ABC):
    """A counter of messages on top of a counter of text. Counts of longer texts are remembered, the texts are not."""

    source: Source
    memo_from: ClassVar[int] = 24
    """Characters from which looking a text up (0.5 µs) is faster than counting it."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._memo = Memo()

    @abstractmethod
    def count(self, text: str, /) -> int:
        """The tokens of a text, counted anew."""

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
        frame = self._framing
        return frame.message + sum(_part(part, self.text, frame) for part in message.parts)


def _part(part: Part, count: _Count, frame: Framing) -> int:
    if isinstance(part, Text | Reasoning):
        return count(part.text)
    if isinstance(part, ToolCall):
        return frame.call + count(part.name) + count(part.arguments)
    if isinstance(part, ToolResult):
        return frame.result + sum(_part(inner, count, frame) for inner in part.parts)
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
    """The JSON text a model may be shown, without what only the provider can open; inline media costs as an image.

    Of a provider's own compaction the text counts, and of one that only the provider can open its size.
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


# Exact counts: the model's own vocabulary, run by splintr.

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
"""The first pattern that fits the start of a name decides. Google publishes Gemma's vocabularies as those of its Gemini
models. What is not here is estimated: Claude has no public vocabulary, and a name such as `deepseek-chat` moves on to
models whose vocabulary splintr does not carry."""

_WITH_RUNS = ("gemma2", "gemma3")
"""Vocabularies in which a run of line breaks or tabs is merged as a whole, in time that grows with the square of its length."""
_RUN = 1_984
"""Characters of such a run that are counted at once: 64 times the 31 that make the longest token, so that the count is the same."""
_RUNS = re.compile(rf"(?<!\n)\n{{{_RUN},}}+|(?<!\t)\t{{{_RUN},}}+")


LONG = 64 * 1024
"""Characters from which a text is counted as a batch of one: that takes as long, and lets go of the interpreter's lock meanwhile, which
`encode_flat` holds for a tenth of a second per megabyte of base64. A text that spells a special token is counted under the lock."""


def vocabulary_for(model: str) -> str | None:
    """The vocabulary that a model's name stands for, or None where an estimate is all there is."""
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

    source: Source = "counted"
    memo_from: ClassVar[int] = 64

    def __init__(self, vocabulary: str) -> None:
        super().__init__(CHAT_FRAMING)
        self.vocabulary = vocabulary
        self._tokenizer = _load(vocabulary)
        specials = self._tokenizer.special_tokens()
        self._openings = tuple({special[:2] for special in specials})
        self._spelled = re.compile("|".join(map(re.escape, specials)))

    def count(self, text: str, /) -> int:
        """The buffer of `encode_flat` is several times faster than a list, but reads spelled special tokens as such."""
        if len(text) > _RUN and self.vocabulary in _WITH_RUNS and (parts := _parted(text)):
            return sum(map(self._count, parts))
        return self._count(text)

    def _count(self, text: str) -> int:
        try:
            if self._spells_special(text):
                return len(self._tokenizer.encode_ordinary(text))
            if len(text) > LONG:
                return len(self._tokenizer.encode_batch_flat([text])[0]) // 4
            return len(self._tokenizer.encode_flat(text)) // 4
        except UnicodeEncodeError:
            return self._count(text.encode("utf-8", "replace").decode())

    def _spells_special(self, text: str) -> bool:
        """Looking for two characters first is ten times faster than the pattern alone."""
        return any(opening in text for opening in self._openings) and self._spelled.search(text) is not None


def _parted(text: str) -> list[str]:
    """A text with long runs of line breaks and tabs, parted inside of these; empty where it has none."""
    cuts = [at for run in _RUNS.finditer(text) for at in range(run.start() + _RUN, run.end(), _RUN)]
    return [text[start:stop] for start, stop in pairwise((0, *cuts, len(text)))] if cuts else []


@cache
def _load(vocabulary: str) -> splintr.AnyTokenizer:
    try:
        import splintr
    except ImportError:
        raise MissingExtra("tokens", "exact token counting") from None
    return splintr.Tokenizer.from_pretrained(vocabulary)


# Estimated counts: a weighted histogram of neighbouring bytes, fitted to a real tokenizer.

CLAUDE_FACTOR = 1.2
"""Claude's billed tokens per o200k token, between 1.12 and 1.24 as found in 1,153 steps recorded by two coding agents (Opus
4.5 and 4.6, Sonnet 4.5, Haiku 4.5), together with `CLAUDE_FRAMING`. A factor and frame found in one agent's steps puts half
of the other's within 7 to 9 % of the bill and the whole 5 to 6 % under it; plain o200k lies 25 % under it. Calibration
with reported usage does the rest."""

SAMPLE_FROM = 1_024
"""Even pairs (so about 2 KB of text) from which every second pair is left out, for twice the speed and the same error."""
_STEP = 32 * 1024
"""Pairs that are added up at a time: a millisecond."""

_LETTERS = ("ae", "io", "u", "t", "n", "r", "s", "lh", "dc", "mpf", "gbyw", "kvxqzj", "AEIOU", "BCDFGHJKLMNPQRSTVWXYZ")  # fmt: skip
_SIGNS = ("0123456789", " ", "\n\r", "\t", ".,", ":;", "\"'`", "([{<", ")]}>", "_", "-/\\")
_CONTINUATIONS = ("80-8f", "90-9f", "a0-af", "b0-bf")
_LEADS = ("c2", "c3", "c4-c9", "ce", "cf", "d0", "d1", "d2-d6", "d7", "d8", "d9", "da-db", "e0", "e1", "e2", "e3", "e4",
          "e5-e6", "e7-e9", "ea", "eb-ec", "ed", "ef", "f0-f4")  # fmt: skip
"""First bytes of UTF-8 sequences, by script: c3 is Western European, d0 Cyrillic, e0 Indic, e3 to e9 East Asian."""


def _span(span: str) -> range:
    first, _, last = span.partition("-")
    return range(int(first, 16), int(last or first, 16) + 1)


_MEMBERS = [
    *(letters.encode() for letters in (*_LETTERS, *_SIGNS)),
    *(_span(span) for span in (*_CONTINUATIONS, *_LEADS)),
]
CLASSES = len(_MEMBERS) + 1
"""Class 0 is everything not listed: signs of operators, `#`, `@`, `&`, `%` and control characters."""
ASCII_CLASSES = len(_LETTERS) + len(_SIGNS) + 1
"""Classes below this are of ASCII characters."""
_CLASS_OF = {byte: number for number, members in enumerate(_MEMBERS, 1) for byte in members}
_TABLE = bytes(_CLASS_OF.get(byte, 0) for byte in range(256))


def class_pairs(text: str) -> tuple[memoryview[int], memoryview[int]]:
    """The codes of all neighbouring classes: the pairs that begin at even places, and those that begin at odd ones.

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

    source: Source = "estimated"

    def __init__(self, factor: float = 1.0, framing: Framing = CHAT_FRAMING) -> None:
        super().__init__(framing)
        self.factor = factor

    def count(self, text: str, /) -> int:
        if not text:
            return 0
        return max(1, round(self.factor * _estimate(*class_pairs(text))))


def _estimate(even: memoryview[int], odd: memoryview[int]) -> float:
    """The sum of all weights. A long text is sampled from both sides, since a pattern of even period has two faces."""
    weight = _weights().__getitem__
    if len(even) < SAMPLE_FROM:
        return sum(map(weight, even)) + sum(map(weight, odd))
    half = len(even) // 2
    return 2 * (_summed(even[:half]) + _summed(odd[half:]))


def _summed(pairs: memoryview[int]) -> float:
    """The sum of the weights, step by step: one call over megabytes would hold the interpreter's lock for a fifth of a second."""
    weight, total = _weights().__getitem__, 0.0
    for start in range(0, len(pairs), _STEP):
        total = sum(map(weight, pairs[start : start + _STEP]), total)
    return total


class _Fit(Struct, frozen=True):
    """The part of the data file that counting needs: one row per first class, one weight per second class."""

    weights: tuple[tuple[float, ...], ...]


@cache
def _weights() -> list[float]:
    """A list by code, which is looked up faster than a dictionary."""
    from importlib import resources

    data = resources.files("refold.tokens").joinpath("data/estimator.json").read_bytes()
    weights = [0.0] * (pair_code(CLASSES, CLASSES) + 1)
    for first, row in enumerate(msgspec.json.decode(data, type=_Fit).weights):
        for second, weight in enumerate(row):
            weights[pair_code(first, second)] = weight
    return weights


def counter_for(model: str) -> TokenCounter:
    """The best counter at hand: exact where splintr is installed and knows the model, else an estimate.

    Models that count alike share one counter, and so what it remembers.
    """
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
