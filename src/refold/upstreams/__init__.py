"""Models behind HTTP, at any provider that speaks one of the three formats.

The idea: a `Provider` is data (where a model is, and how patiently it is asked); `open_upstream` makes something of it that
can be asked, once or many times, streamed or not. Whatever goes wrong is one of the `UpstreamError`s and says whether a
smaller window is the remedy. Neither keys nor anything of a conversation is ever logged or put into an error.

    async with open_upstream(Provider("anthropic", "claude-sonnet-4-5")) as upstream:
        reply = await upstream.ask(Ask((user("Hello!"),)))

`provider` holds the settings, `key` the key, `body` writes a question, `http` asks it over a `connection`, `retry` asks
again, `refusal` and `reach` say what went wrong. `embeddings` asks for vectors over the same connection.
"""

from __future__ import annotations

from refold.ports.upstream import Ask, StreamingUpstream, Upstream
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
