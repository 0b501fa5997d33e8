"""Models behind HTTP, at any provider that speaks one of the three formats.

A `Provider` is data: the address of a model, its key and its timeouts. `open_upstream` makes a client of it
that can be asked many times, streamed or not. Every failure is an `UpstreamError` that says whether a smaller
window can help. Neither keys nor content are ever logged or put into an error.

    async with open_upstream(Provider("anthropic", "claude-sonnet-4-5")) as upstream:
        reply = await upstream.ask(Ask((user("Hello!"),)))

All errors in the settings are found when a provider is opened, before the first question. One session serves
all questions to it, so that connections are reused.

`provider` holds the settings and the key; `http` asks for replies and for vectors over one connection,
classifies failures and retries.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError, MissingExtra
from refold.ports.models import Ask, Embedder, StreamingUpstream, Upstream
from refold.upstreams.provider import (
    KNOWN,
    REAL_PACE,
    Pace,
    Provider,
    ProviderKey,
    Retries,
    Timeouts,
    complete,
)

if TYPE_CHECKING:
    from refold.upstreams.http import Connection

__all__ = [
    "KNOWN",
    "Ask",
    "Provider",
    "Retries",
    "StreamingUpstream",
    "Timeouts",
    "Upstream",
    "open_embedder",
    "open_upstream",
]

EMBEDDINGS = "/embeddings"


@asynccontextmanager
async def open_upstream(
    provider: Provider, *, environ: Mapping[str, str] = os.environ, pace: Pace = REAL_PACE
) -> AsyncIterator[StreamingUpstream]:
    """A client for a provider, until the block ends.

    Raises:
        ConfigError: a setting is missing or invalid, such as a variable without a key.
        MissingExtra: aiohttp is not installed.
    """
    whole = complete(provider)
    async with _connected(whole, environ, pace) as connection:
        from refold.upstreams.http import HttpUpstream

        yield HttpUpstream(whole, DIALECTS[whole.format or "chat"], connection, pace)


@asynccontextmanager
async def open_embedder(
    provider: Provider, *, environ: Mapping[str, str] = os.environ, pace: Pace = REAL_PACE
) -> AsyncIterator[Embedder]:
    """A client for vectors, until the block ends: for any provider with OpenAI's `/embeddings`.

    Raises:
        ConfigError: a setting is missing or invalid, or the provider's format has no vectors.
        MissingExtra: aiohttp is not installed.
    """
    whole = complete(provider)
    if whole.format == "anthropic":
        raise ConfigError(
            f"provider {whole.name!r} gives no vectors",
            hint="name one with OpenAI's /embeddings, such as openai",
        )
    async with _connected(whole, environ, pace, EMBEDDINGS) as connection:
        from refold.upstreams.http import HttpEmbedder

        yield HttpEmbedder(whole, connection, pace)


@asynccontextmanager
async def _connected(
    whole: Provider, environ: Mapping[str, str], pace: Pace, path: str = ""
) -> AsyncIterator[Connection]:
    key = ProviderKey(whole, environ)
    try:
        import aiohttp
    except ImportError:
        raise MissingExtra("upstreams", "asking a model") from None
    from refold.upstreams.http import Connection

    # No limit on connections: the caller decides how many requests run at once.
    connector = aiohttp.TCPConnector(ssl=_trust(whole), limit=0)
    patience = aiohttp.ClientTimeout(total=None, connect=whole.timeouts.connect_s)
    session = aiohttp.ClientSession(
        connector=connector, timeout=patience, trust_env=whole.trust_env, cookie_jar=aiohttp.DummyCookieJar()
    )
    async with session:
        yield Connection(whole, DIALECTS[whole.format or "chat"], session, key, pace, path)


def _trust(provider: Provider) -> ssl.SSLContext | bool:
    if not provider.ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=provider.ca_file)
    except (OSError, ValueError):  # an SSLError is an OSError
        raise ConfigError(
            f"the ca_file of {provider.name!r} cannot be read", hint="it is a file of PEM certificates"
        ) from None
