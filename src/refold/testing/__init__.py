"""A scripted provider to test against: real HTTP, the three protocols, and everything that goes wrong with them.

    async with ScriptedUpstream("Hello.", say(call("read_file", {"path": "a.py"})), rate_limited(2)) as server:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any")

`server` listens; `provider` reads, refuses, answers and bills; `script` is what it answers next. `reply` and `faults` are the
answers; `chat`, `responses` and `anthropic` spell them, whole and as `events`; `sending` puts them on the connection. `rules`
is what a provider refuses, `overflows` everybody's words for too much, `prompt` the count and the cache, `models` what is
told of the window, `received` what came.
"""

from __future__ import annotations

from refold.model.errors import MissingExtra

try:
    import aiohttp as _  # noqa: F401
except ImportError:
    raise MissingExtra("testing", "a scripted upstream") from None

from refold.testing.overflows import SILENT, WORDINGS, overflow
from refold.testing.script import (
    Body,
    Broken,
    Received,
    Refuse,
    Reset,
    Say,
    Slow,
    call,
    echo,
    garbage,
    overloaded,
    rate_limited,
    say,
    sign,
    think,
)
from refold.testing.server import ScriptedUpstream

__all__ = [
    "SILENT",
    "WORDINGS",
    "Body",
    "Broken",
    "Received",
    "Refuse",
    "Reset",
    "Say",
    "ScriptedUpstream",
    "Slow",
    "call",
    "echo",
    "garbage",
    "overflow",
    "overloaded",
    "rate_limited",
    "say",
    "sign",
    "think",
]
