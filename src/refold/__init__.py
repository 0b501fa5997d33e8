"""Refold keeps LLM conversations inside the context window without losing anything.

    async with refold.Engine("sqlite:///chats.db", model="gpt-4o") as engine:
        chat = await engine.conversation("support-42")
        await chat.add("Where is my order 7421?")
        reply = await client.chat.completions.create(model="gpt-4o", **await chat.context())
        await chat.record(reply)
        await chat.add(reply.choices[0].message)

`Engine` keeps conversations in a store. `Conversation` is one chat and its window; one that is made directly
lives in memory. `sync` has both without `await`. Everything that a program needs to import is here. The
package is light to import: an exported name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold import sync
    from refold.core import presets
    from refold.core.policy import Policy
    from refold.engine.conversation import Conversation
    from refold.engine.engine import Engine
    from refold.engine.events import (
        CompactionEnd,
        CompactionStart,
        Event,
        Pruned,
        Recovered,
        SummaryDiscarded,
        SummaryFailed,
        SummarySwitched,
        SummaryWritten,
        Undone,
        UsageRecorded,
    )
    from refold.engine.state import Receipt
    from refold.model.budget import Budget
    from refold.model.errors import (
        AccessError,
        BodyEncoded,
        BodyTooLarge,
        BodyTooSlow,
        BudgetError,
        ConfigError,
        Conflict,
        ContextOverflow,
        Damaged,
        DoesNotFit,
        HeldElsewhere,
        InvalidWindow,
        KeyRefused,
        MalformedHistory,
        MissingExtra,
        NotAnOverflow,
        NotFound,
        OutputCapExceeded,
        RateLimited,
        RecoverySpent,
        RefoldError,
        SettingError,
        SettingFixed,
        SettingLocked,
        StoreError,
        SummaryError,
        UpstreamError,
        UpstreamUnavailable,
        WebSocketRefused,
        WindowError,
        WireError,
    )
    from refold.ports.models import Summariser, Upstream
    from refold.ports.store import Store
    from refold.recall import answer_recall, recall_tool

__all__ = [
    "AccessError",
    "BodyEncoded",
    "BodyTooLarge",
    "BodyTooSlow",
    "Budget",
    "BudgetError",
    "CompactionEnd",
    "CompactionStart",
    "ConfigError",
    "Conflict",
    "ContextOverflow",
    "Conversation",
    "Damaged",
    "DoesNotFit",
    "Engine",
    "Event",
    "HeldElsewhere",
    "InvalidWindow",
    "KeyRefused",
    "MalformedHistory",
    "MissingExtra",
    "NotAnOverflow",
    "NotFound",
    "OutputCapExceeded",
    "Policy",
    "Pruned",
    "RateLimited",
    "Receipt",
    "Recovered",
    "RecoverySpent",
    "RefoldError",
    "SettingError",
    "SettingFixed",
    "SettingLocked",
    "Store",
    "StoreError",
    "Summariser",
    "SummaryDiscarded",
    "SummaryError",
    "SummaryFailed",
    "SummarySwitched",
    "SummaryWritten",
    "Undone",
    "Upstream",
    "UpstreamError",
    "UpstreamUnavailable",
    "UsageRecorded",
    "WebSocketRefused",
    "WindowError",
    "WireError",
    "__version__",
    "answer_recall",
    "presets",
    "recall_tool",
    "sync",
]

__version__ = "0.1.0"

_MODULES = {"presets": "refold.core.presets", "sync": "refold.sync"}
_EVENTS = """
    CompactionEnd CompactionStart Event Pruned Recovered SummaryDiscarded SummaryFailed SummarySwitched SummaryWritten
    Undone UsageRecorded
"""
_NAMES = {
    "Budget": "refold.model.budget",
    "Conversation": "refold.engine.conversation",
    "Engine": "refold.engine.engine",
    "Policy": "refold.core.policy",
    "Receipt": "refold.engine.state",
    "Store": "refold.ports.store",
    "Summariser": "refold.ports.models",
    "Upstream": "refold.ports.models",
    "answer_recall": "refold.recall",
    "recall_tool": "refold.recall",
    **dict.fromkeys(_EVENTS.split(), "refold.engine.events"),
}
"""The module of each name; the other exported names are errors."""


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in __all__:
        return getattr(import_module(_NAMES.get(name, "refold.model.errors")), name)
    raise AttributeError(f"module 'refold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
