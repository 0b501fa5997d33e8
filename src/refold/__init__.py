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
    from refold import plugins, sync
    from refold.chat.chat import (
        CallUsage,
        Chat,
        ChatEvent,
        CommandReply,
        Done,
        Notice,
        Queued,
        ToolEnded,
        ToolStarted,
    )
    from refold.chat.commands import Command, CommandCall, run_command
    from refold.chat.tools import ChatTool, tool
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
    from refold.integrations.sdk_clients import wrap
    from refold.model.budget import Budget
    from refold.model.errors import (
        AccessError,
        BodyEncoded,
        BodyTooLarge,
        BodyTooSlow,
        BudgetError,
        Busy,
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
        PluginError,
        PluginRefused,
        RateLimited,
        RecoverySpent,
        RefoldError,
        SettingError,
        SettingFixed,
        SettingLocked,
        Stopping,
        StoreError,
        SummaryError,
        TooManyRequests,
        UpstreamError,
        UpstreamUnavailable,
        WebSocketRefused,
        WindowError,
        WireError,
    )
    from refold.model.message import ToolCall
    from refold.plugins.plugin import Plugin
    from refold.plugins.registry import load_plugins
    from refold.ports.models import Summariser, Upstream
    from refold.ports.store import Store
    from refold.recall import answer_recall, recall_tool
    from refold.upstreams.provider import Provider
    from refold.wire.sse import ReasoningDelta, TextDelta

__all__ = [
    "AccessError",
    "BodyEncoded",
    "BodyTooLarge",
    "BodyTooSlow",
    "Budget",
    "BudgetError",
    "Busy",
    "CallUsage",
    "Chat",
    "ChatEvent",
    "ChatTool",
    "Command",
    "CommandCall",
    "CommandReply",
    "CompactionEnd",
    "CompactionStart",
    "ConfigError",
    "Conflict",
    "ContextOverflow",
    "Conversation",
    "Damaged",
    "DoesNotFit",
    "Done",
    "Engine",
    "Event",
    "HeldElsewhere",
    "InvalidWindow",
    "KeyRefused",
    "MalformedHistory",
    "MissingExtra",
    "NotAnOverflow",
    "NotFound",
    "Notice",
    "OutputCapExceeded",
    "Plugin",
    "PluginError",
    "PluginRefused",
    "Policy",
    "Provider",
    "Pruned",
    "Queued",
    "RateLimited",
    "ReasoningDelta",
    "Receipt",
    "Recovered",
    "RecoverySpent",
    "RefoldError",
    "SettingError",
    "SettingFixed",
    "SettingLocked",
    "Stopping",
    "Store",
    "StoreError",
    "Summariser",
    "SummaryDiscarded",
    "SummaryError",
    "SummaryFailed",
    "SummarySwitched",
    "SummaryWritten",
    "TextDelta",
    "TooManyRequests",
    "ToolCall",
    "ToolEnded",
    "ToolStarted",
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
    "load_plugins",
    "plugins",
    "presets",
    "recall_tool",
    "run_command",
    "sync",
    "tool",
    "wrap",
]

__version__ = "0.1.0"

_MODULES = {"plugins": "refold.plugins", "presets": "refold.core.presets", "sync": "refold.sync"}
_EVENTS = """
    CompactionEnd CompactionStart Event Pruned Recovered SummaryDiscarded SummaryFailed SummarySwitched SummaryWritten
    Undone UsageRecorded
"""
_CHAT = "CallUsage Chat ChatEvent CommandReply Done Notice Queued ToolEnded ToolStarted"
_NAMES = {
    "Budget": "refold.model.budget",
    "ChatTool": "refold.chat.tools",
    "Command": "refold.chat.commands",
    "CommandCall": "refold.chat.commands",
    "Conversation": "refold.engine.conversation",
    "Engine": "refold.engine.engine",
    "Plugin": "refold.plugins.plugin",
    "Policy": "refold.core.policy",
    "Provider": "refold.upstreams.provider",
    "ReasoningDelta": "refold.wire.sse",
    "Receipt": "refold.engine.state",
    "Store": "refold.ports.store",
    "Summariser": "refold.ports.models",
    "TextDelta": "refold.wire.sse",
    "ToolCall": "refold.model.message",
    "Upstream": "refold.ports.models",
    "answer_recall": "refold.recall",
    "load_plugins": "refold.plugins.registry",
    "recall_tool": "refold.recall",
    "run_command": "refold.chat.commands",
    "tool": "refold.chat.tools",
    "wrap": "refold.integrations.sdk_clients",
    **dict.fromkeys(_CHAT.split(), "refold.chat.chat"),
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
