"""Models that write summaries: from settings, or from a name such as `openai:gpt-4o-mini`, to a summariser.

A summariser without a provider's name is the conversation's provider, one without a model is asked for the conversation's model, and
where none is named at all both serve.

    settings = Settings(model="gpt-4o", summarisers=(Provider("openai", "gpt-4o-mini"), Provider("anthropic", "claude-haiku-4-5")))
    async with open_summariser(settings, Provider("openai")) as summariser:
        talk = Conversation("gpt-4o", summariser=summariser)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy

from msgspec import structs

from refold.core.presets.block import Block, policy_of, read_block
from refold.engine.settings import Settings, policy_for
from refold.model.summary import Summary
from refold.model.tokens import Usage
from refold.ports.summariser import SummaryCache, SummaryTask
from refold.ports.upstream import Upstream
from refold.summarisers import ModelSummariser, Writer
from refold.tokens.catalog import window_for
from refold.tokens.counters import counter_for
from refold.upstreams import Provider, open_upstream
from refold.upstreams.provider import Key, complete, provider_of


@asynccontextmanager
async def open_summariser(
    settings: Settings,
    own: Provider,
    *,
    windows: Mapping[str, int] | None = None,
    cache: SummaryCache | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[ModelSummariser | None]:
    """The summariser that the settings ask for, until the block ends; None where no model has to write.

    `own` is the conversation's provider. `windows` are the sizes of models that nobody else knows, by their names.

    Raises:
        ConfigError: a setting is missing or cannot work, such as a variable that holds no key.
    """
    if not writes_with_model(settings):
        yield None
        return
    async with AsyncExitStack() as stack:
        chain = [
            writer_for(
                await stack.enter_async_context(open_upstream(provider, environ=environ)),
                settings,
                url=provider.base_url,
                windows=windows,
            )
            for provider in providers_for(settings, own)
        ]
        yield ModelSummariser(chain, cache=cache)


class NamedSummariser:
    """A model by its name, such as `openai:gpt-4o-mini` or `my-model@http://localhost:8000/v1`. Its connection is opened for the first
    summary, and closed by `close`.

    Raises:
        ConfigError: there is no such provider, or its key is missing.
    """

    def __init__(self, name: str, settings: Settings, *, environ: Mapping[str, str] = os.environ) -> None:
        provider = provider_of(name)
        Key(complete(provider), environ)  # a missing key is found now, and not when the window is full
        self.model = name
        self._connection = _Connection(provider, settings, environ)
        self._last: ModelSummariser | None = None

    @property
    def bill(self) -> Mapping[str, Usage]:
        """What the last task has cost, by model."""
        return self._last.bill if self._last else {}

    async def write(self, task: SummaryTask) -> Summary | None:
        self._last = copy(await self._connection.summariser())
        return await self._last.write(task)

    async def close(self) -> None:
        await self._connection.close()


class _Connection:
    """The connection of a named summariser; copies of the summariser share it."""

    def __init__(self, provider: Provider, settings: Settings, environ: Mapping[str, str]) -> None:
        self._provider, self._settings, self._environ = provider, settings, environ
        self._lock, self._stack = asyncio.Lock(), AsyncExitStack()
        self._opened: ModelSummariser | None = None

    async def summariser(self) -> ModelSummariser:
        async with self._lock:
            if self._opened is None:
                upstream = open_upstream(self._provider, environ=self._environ)
                asked = await self._stack.enter_async_context(upstream)
                writer = writer_for(asked, self._settings, url=self._provider.base_url)
                self._opened = ModelSummariser([writer])
            return self._opened

    async def close(self) -> None:
        async with self._lock:
            self._opened = None
            await self._stack.aclose()


def summariser_for(
    settings: Settings, own: Upstream, others: Sequence[Upstream] = (), *, cache: SummaryCache | None = None
) -> ModelSummariser | None:
    """Likewise, of upstreams that are open already: `others` in their order, or the conversation's own."""
    if not writes_with_model(settings):
        return None
    return ModelSummariser([writer_for(upstream, settings) for upstream in others or (own,)], cache=cache)


def writes_with_model(settings: Settings) -> bool:
    """Does the policy summarise at all, and with a model?"""
    policy = policy_for(settings)
    return policy.enabled and policy.cut is not None and policy.recipe.strategy != "extractive"


def providers_for(settings: Settings, own: Provider) -> tuple[Provider, ...]:
    """Who is asked, in this order, with everything filled in that is the conversation's own."""
    own = structs.replace(own, model=own.model or settings.model)
    return tuple(_filled(provider, own) for provider in settings.summarisers) or (own,)


def writer_for(
    upstream: Upstream, settings: Settings, *, url: str = "", windows: Mapping[str, int] | None = None
) -> Writer:
    """A model with its window and its count; the conversation's own has the conversation's window."""
    name = upstream.model
    override = settings.window if name == settings.model else None
    window = window_for(name, override=override, url=url, overrides=windows)
    return Writer(upstream, window.tokens, counter_for(name).text)


def with_block(values: Mapping[str, object], settings: Settings) -> Settings:
    """The settings with everything that a `summarization` block says; see docs/summaries.md.

    Raises:
        ConfigError: a key is unknown, or its value cannot be used; the message names it.
    """
    block = read_block(values)
    return structs.replace(settings, policy=policy_of(block), summarisers=_named(block, settings.summarisers))


def _named(block: Block, others: tuple[Provider, ...]) -> tuple[Provider, ...]:
    """The one that a block names. One that names none keeps those that were there, and has its fields sent to them."""
    own = Provider(block.provider or "", block.model or "", parameters=block.fields)
    if own.name or own.model or not others:
        return (own,) if own != Provider("") else ()
    return tuple(
        structs.replace(other, parameters={**other.parameters, **own.parameters}) for other in others
    )


def _filled(provider: Provider, own: Provider) -> Provider:
    if provider.name:
        return structs.replace(provider, model=provider.model or own.model)
    parameters = {**own.parameters, **provider.parameters}
    return structs.replace(own, model=provider.model or own.model, parameters=parameters)
