"""Exact counts: the model's own vocabulary, run by splintr.

One idea: a message's text is data. A special token that somebody spelled in it is counted as the ordinary text it is,
and no begin-of-text is added, since the frame is counted per message.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from refold.model.errors import MissingExtra
from refold.model.tokens import Source
from refold.tokens.message_cost import CHAT_FRAMING, MessageCounter
from refold.tokens.names import spellings

if TYPE_CHECKING:
    import splintr

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
