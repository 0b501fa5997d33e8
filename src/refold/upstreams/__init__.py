"""Models behind HTTP, at any provider that speaks one of the three formats.

A `Provider` is data: the address of a model, its key and its timeouts. `open_upstream` makes a client of it
that can be asked many times, streamed or not. Every failure is an `UpstreamError` that says whether a smaller
window can help. Neither keys nor content are ever logged or put into an error.

    async with open_upstream(Provider("anthropic", "claude-sonnet-4-5")) as upstream:
        reply = await upstream.ask(Ask((user("Hello!"),)))

`provider` holds the settings and the key, `http` asks for replies and for vectors over one connection, and
`response_errors` classifies failures and retries.
"""

from __future__ import annotations

from refold.ports.models import Ask, StreamingUpstream, Upstream
from refold.upstreams.factory import open_embedder, open_upstream
from refold.upstreams.provider import KNOWN, Provider, Retries, Timeouts

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
