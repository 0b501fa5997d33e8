"""The cache of answers that were paid for.

Concurrent requests for the same key ask the model once. A cache that fails costs money, but never a summary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from weakref import WeakValueDictionary

import msgspec

from refold.core.prompts import VERSION, Passage, Recipe, transcript
from refold.model.message import Message
from refold.model.summary import Summary
from refold.model.window import Tool
from refold.ports.models import Ask, SummaryCache, SummaryTask

MOST = 1_000
"""Summaries of a few thousand tokens each: a few megabytes."""

_log = logging.getLogger("refold.summarisers")


class KeptInMemory:
    """The newest summaries by key, in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, Summary] = {}

    async def get(self, key: str) -> Summary | None:
        return self._kept.get(key)

    async def put(self, key: str, summary: Summary) -> None:
        self._kept[key] = summary
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]


class PaidAnswers:
    """A cache with one lock per key, whose failures are logged and ignored."""

    def __init__(self, cache: SummaryCache) -> None:
        self._cache = cache
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock_for(self, key: str) -> asyncio.Lock:
        """The lock of a key, to be held during lookup and question: the next caller then finds the answer in
        the cache.
        """
        return self._locks.setdefault(key, asyncio.Lock())

    async def get(self, key: str) -> Summary | None:
        try:
            return await self._cache.get(key)
        except Exception as error:  # noqa: BLE001  # the cache may be the user's own
            _log.warning("a summary could not be looked up: %s", type(error).__name__)
            return None

    async def put(self, key: str, summary: Summary) -> None:
        try:
            await self._cache.put(key, summary)
        except Exception as error:  # noqa: BLE001  # the answer is used even if it cannot be cached
            _log.warning("a summary could not be cached: %s", type(error).__name__)


# Keys of answers and summaries


def key_of(recipe: Recipe, model: str, task: SummaryTask) -> str:
    """The hash of recipe, model and source."""
    settings = (recipe.strategy, recipe.reading, recipe.max_tokens, recipe.temperature, model, task.scope)
    numbers = (task.first, task.last, task.max_tokens, task.turn_from)
    ledger = (line for lines in msgspec.structs.astuple(task.ledger) for line in lines)
    source = (transcript(task.passages), task.previous, task.focus, *task.word_for_word)
    raw = _raw(task.sent, task.system, task.tools) if recipe.reading == "raw" else ()
    prompts = msgspec.structs.astuple(recipe.prompts)
    return _hash((VERSION, repr((*settings, *numbers)), *prompts, *source, *map(str, ledger), *raw))


def question_key(model: str, ask: Ask) -> str:
    """The hash of a question to a model."""
    settings = repr((model, ask.max_output, ask.temperature))
    return f"answer-{_hash((VERSION, settings, *_raw(ask.messages, ask.system, ask.tools)))}"


def _raw(
    messages: Iterable[Message], system: str | tuple[Message, ...], tools: Iterable[Tool]
) -> Iterator[str]:
    yield transcript(Passage(number, message) for number, message in enumerate(messages))
    yield system if isinstance(system, str) else "\n\n".join(message.text for message in system)
    yield from (f"{tool.name} {tool.schema}" for tool in tools)


def _hash(texts: Iterable[str]) -> str:
    """A key for these texts in this order. Accepts lone surrogates."""
    found = blake2b(digest_size=16)
    for text in texts:
        found.update(b"\0")
        found.update(text.encode("utf-8", "surrogatepass"))
    return found.hexdigest()
