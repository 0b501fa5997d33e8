"""A scripted provider for tests of an application: real HTTP, the three protocols, and their failures.

    async with ScriptedUpstream("Hello.", say(call("read_file", {"path": "a.py"})), rate_limited(2)) as server:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any")

`server` listens and writes answers to the connection; `provider` reads, refuses, answers and bills; `script`
holds the next answers, with replies and faults. `replies` encodes them in the three formats, as a body or as the events of a
stream, and `compactions` those that a client asks for. `rules` are a provider's checks, with the wordings of many providers for
requests that are too long.

`EvaluationAdapter` is for evaluations: a conversation behind four functions, `start`, `add`, `context` and
`recall`, whose signatures stay. It needs no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.model.errors import MissingExtra

try:
    import aiohttp as _  # noqa: F401
except ImportError:
    raise MissingExtra("testing", "a scripted upstream") from None

from refold.testing.rules import SILENT, WORDINGS, overflow
from refold.testing.script import (
    Body,
    Broken,
    LateSummaries,
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

if TYPE_CHECKING:
    from refold.testing.evaluation import EvaluationAdapter

__all__ = [
    "SILENT",
    "WORDINGS",
    "Body",
    "Broken",
    "EvaluationAdapter",
    "LateSummaries",
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


def __getattr__(name: str) -> object:
    """Load the adapter on first use: it needs the engine, which the scripted provider does not."""
    if name == "EvaluationAdapter":
        from refold.testing.evaluation import EvaluationAdapter

        return EvaluationAdapter
    raise AttributeError(f"module 'refold.testing' has no attribute {name!r}")
