"""The cost of a replay, with the providers' prompt caches.

A prompt that begins like an earlier one is read from the cache at a tenth of the price, so the cost of a
context depends on the contexts before it. The simulation is generous: it finds a cached prefix at every place
where an earlier prompt ended, and expires it only after five minutes without a read.
"""

from __future__ import annotations

from itertools import accumulate

from msgspec import Struct

from refold.core.prompt_cache import CacheRules, Prompt, PromptCache
from refold.model.errors import ConfigError
from refold.replay.facts import Context

_PER_MILLION = 1e-6


class Tariff(Struct, frozen=True):
    """Prices in dollars per million tokens, and the rules of a provider's cache."""

    name: str
    input: float
    output: float
    cache_read: float
    cache_write: float
    ttl_s: float = 300
    """Both providers state five minutes; a read restarts them."""
    minimum: int = 1_024
    """A shorter prompt is not cached."""
    step: int = 1
    """Cache reads are multiples of this."""


ANTHROPIC = Tariff("anthropic", input=3.00, output=15.00, cache_read=0.30, cache_write=3.75)
"""Claude Sonnet: a read costs a tenth of the input, a write a quarter more than it."""
OPENAI = Tariff("openai", input=1.25, output=10.00, cache_read=0.125, cache_write=1.25, step=128)
"""GPT-5: automatic, in steps of 128 tokens; writing costs nothing extra."""
REFERENCE_TARIFFS = (ANTHROPIC, OPENAI)


def tariff_for(model: str) -> Tariff:
    """The prices of a model in the catalogue; without prices for the cache, the cache saves nothing.

    Raises:
        ConfigError: the catalogue has no prices for this model.
    """
    from refold.tokens import find_model

    found = find_model(model)
    if found is None or found.input_price is None or found.output_price is None:
        raise ConfigError(
            f"the prices of {model!r} are not known", hint="see `refold models` for known prices"
        )
    price = found.input_price
    return Tariff(
        found.name,
        price,
        found.output_price,
        price if found.cache_read_price is None else found.cache_read_price,
        price if found.cache_write_price is None else found.cache_write_price,
        step=ANTHROPIC.step if found.cache_write_price else OPENAI.step,
    )


class CallBill(Struct, frozen=True):
    dollars: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: CallBill) -> CallBill:
        return CallBill(
            self.dollars + other.dollars,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class PromptNames:
    """Numbers the prefixes of one conversation's prompts, so that equal prefixes have equal numbers.

    Assumes that a client asks for caching after each system message, and at the end.
    """

    def __init__(self, head_tokens: int) -> None:
        self.head_tokens = head_tokens
        """Tokens before every message: the tool definitions."""
        self._names: dict[tuple[int, int], int] = {}
        self._last: tuple[int, ...] = ()

    def of(self, context: Context) -> Prompt:
        beginnings = list(self._last[: context.shared])
        name = beginnings[-1] if beginnings else -1
        for known in context.facts[context.shared :]:
            name = self._names.setdefault((name, known.number), len(self._names))
            beginnings.append(name)
        self._last = tuple(beginnings)
        sizes = accumulate((known.tokens for known in context.facts), initial=self.head_tokens)
        system = (at for at, known in enumerate(context.facts, 1) if known.role == "system")
        marks = dict.fromkeys((*system, len(context.facts)))
        return Prompt(self._last, tuple(sizes)[1:], marks)


class ConversationCost:
    """The cost of one conversation at one provider."""

    def __init__(self, tariff: Tariff) -> None:
        self.tariff = tariff
        self._cache = PromptCache(CacheRules(tariff.ttl_s, tariff.minimum, tariff.step))

    def send(self, prompt: Prompt, output_tokens: int, now: float) -> CallBill:
        """The price of one call at time `now`."""
        tariff, size = self.tariff, prompt.sizes[-1]
        hit = self._cache.send(prompt, now)
        fresh = size - hit.read - hit.written
        dollars = hit.read * tariff.cache_read + hit.written * tariff.cache_write
        dollars += fresh * tariff.input + output_tokens * tariff.output
        return CallBill(dollars * _PER_MILLION, size, hit.read)

    def ask(self, input_tokens: int, output_tokens: int) -> CallBill:
        """The price of a call that the candidate itself made; it is not cached."""
        dollars = input_tokens * self.tariff.input + output_tokens * self.tariff.output
        return CallBill(dollars * _PER_MILLION)
