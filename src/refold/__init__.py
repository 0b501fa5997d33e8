"""Refold keeps LLM conversations inside the context window without losing anything.

    async with refold.Engine("sqlite:///chats.db", model="gpt-4o") as engine:
        chat = await engine.conversation("support-42")
        await chat.add("Where is my order 7421?")
        reply = await client.chat.completions.create(model="gpt-4o", **await chat.context())
        await chat.record(reply)
        await chat.add(reply.choices[0].message)

`Engine` keeps conversations in a store. `Conversation` is one chat and its window; one that is made directly
lives in memory. `sync` has both without `await`. Everything that a program needs to import is here, except
for four modules with a subject of their own: `refold.policies` (the parts of a policy), `refold.testing`,
`refold.integrations` and `refold.local`. The package is light to import: an exported name is loaded when it
is first used.
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
        ChatEvents,
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
    from refold.core.overflow import classify, classify_finish
    from refold.core.policy import Policy
    from refold.core.stages.tool_results import ToolRule
    from refold.engine.conversation import Conversation
    from refold.engine.doctor import Finding
    from refold.engine.effect import Savings, Stats
    from refold.engine.engine import ConversationPage, Engine, FoundMessage, InstalledEmbedder
    from refold.engine.events import (
        CompactionEnd,
        CompactionStart,
        Event,
        EventReader,
        Listener,
        MessagesDamaged,
        Pruned,
        Recovered,
        SummaryDiscarded,
        SummaryFailed,
        SummarySwitched,
        SummaryWritten,
        Undone,
        UsageRecorded,
        notice,
    )
    from refold.engine.history import Difference, MessageTokens
    from refold.engine.journal import LearnedWindow
    from refold.engine.recall import answer_recall, recall_tool
    from refold.engine.retention import HeldBack
    from refold.engine.sessions import OpenedSession
    from refold.engine.settings import ConversationSettings, open_summariser, summariser_for, with_block
    from refold.engine.state import Bill, Receipt
    from refold.engine.status import Preview, Status
    from refold.integrations.sdk_clients import wrap
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
        Overflow,
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
    from refold.model.message import Message, Text, ToolCall, ToolResult
    from refold.model.summary import Summary
    from refold.model.tokens import Budget, Measurement, TokenCount, TokenCounter, Usage
    from refold.plugins.plugin import Plugin
    from refold.plugins.registry import load_plugins
    from refold.ports.models import (
        Ask,
        CountingUpstream,
        Embedder,
        StreamingUpstream,
        Summariser,
        SummaryCache,
        SummaryFunction,
        Upstream,
    )
    from refold.ports.records import Call, CommandEntry, Compaction, Listed, Session, StoredSummary
    from refold.ports.store import Store
    from refold.summarisers import ModelSummariser, SummaryWriter
    from refold.tokens.catalog import WindowSize
    from refold.tokens.counters import counter_for
    from refold.upstreams import open_embedder, open_upstream
    from refold.upstreams.provider import Provider
    from refold.wire.reply import Reply
    from refold.wire.sse import CallDelta, Delta, ReasoningDelta, TextDelta

__all__ = [
    "AccessError",
    "Ask",
    "Bill",
    "BodyEncoded",
    "BodyTooLarge",
    "BodyTooSlow",
    "Budget",
    "BudgetError",
    "Busy",
    "Call",
    "CallDelta",
    "CallUsage",
    "Chat",
    "ChatEvent",
    "ChatEvents",
    "ChatTool",
    "Command",
    "CommandCall",
    "CommandEntry",
    "CommandReply",
    "Compaction",
    "CompactionEnd",
    "CompactionStart",
    "ConfigError",
    "Conflict",
    "ContextOverflow",
    "Conversation",
    "ConversationPage",
    "ConversationSettings",
    "CountingUpstream",
    "Damaged",
    "Delta",
    "Difference",
    "DoesNotFit",
    "Done",
    "Embedder",
    "Engine",
    "Event",
    "EventReader",
    "Finding",
    "FoundMessage",
    "HeldBack",
    "HeldElsewhere",
    "InstalledEmbedder",
    "InvalidWindow",
    "KeyRefused",
    "LearnedWindow",
    "Listed",
    "Listener",
    "MalformedHistory",
    "Measurement",
    "Message",
    "MessageTokens",
    "MessagesDamaged",
    "MissingExtra",
    "ModelSummariser",
    "NotAnOverflow",
    "NotFound",
    "Notice",
    "OpenedSession",
    "OutputCapExceeded",
    "Overflow",
    "Plugin",
    "PluginError",
    "PluginRefused",
    "Policy",
    "Preview",
    "Provider",
    "Pruned",
    "Queued",
    "RateLimited",
    "ReasoningDelta",
    "Receipt",
    "Recovered",
    "RecoverySpent",
    "RefoldError",
    "Reply",
    "Savings",
    "Session",
    "SettingError",
    "SettingFixed",
    "SettingLocked",
    "Stats",
    "Status",
    "Stopping",
    "Store",
    "StoreError",
    "StoredSummary",
    "StreamingUpstream",
    "Summariser",
    "Summary",
    "SummaryCache",
    "SummaryDiscarded",
    "SummaryError",
    "SummaryFailed",
    "SummaryFunction",
    "SummarySwitched",
    "SummaryWriter",
    "SummaryWritten",
    "Text",
    "TextDelta",
    "TokenCount",
    "TokenCounter",
    "TooManyRequests",
    "ToolCall",
    "ToolEnded",
    "ToolResult",
    "ToolRule",
    "ToolStarted",
    "Undone",
    "Upstream",
    "UpstreamError",
    "UpstreamUnavailable",
    "Usage",
    "UsageRecorded",
    "WebSocketRefused",
    "WindowError",
    "WindowSize",
    "WireError",
    "__version__",
    "answer_recall",
    "classify",
    "classify_finish",
    "counter_for",
    "load_plugins",
    "notice",
    "open_embedder",
    "open_summariser",
    "open_upstream",
    "plugins",
    "presets",
    "recall_tool",
    "run_command",
    "summariser_for",
    "sync",
    "tool",
    "with_block",
    "wrap",
]

__version__ = "0.1.0"

_MODULES = {"plugins": "refold.plugins", "presets": "refold.core.presets", "sync": "refold.sync"}
_NAMES = {
    "refold.chat.chat": "CallUsage Chat ChatEvent ChatEvents CommandReply Done Notice Queued ToolEnded ToolStarted",
    "refold.chat.commands": "Command CommandCall run_command",
    "refold.chat.tools": "ChatTool tool",
    "refold.core.overflow": "classify classify_finish",
    "refold.core.policy": "Policy",
    "refold.core.stages.tool_results": "ToolRule",
    "refold.engine.conversation": "Conversation",
    "refold.engine.doctor": "Finding",
    "refold.engine.effect": "Savings Stats",
    "refold.engine.engine": "ConversationPage Engine FoundMessage InstalledEmbedder",
    "refold.engine.events": """
        CompactionEnd CompactionStart Event EventReader Listener MessagesDamaged Pruned Recovered SummaryDiscarded
        SummaryFailed SummarySwitched SummaryWritten Undone UsageRecorded notice
    """,
    "refold.engine.history": "Difference MessageTokens",
    "refold.engine.journal": "LearnedWindow",
    "refold.engine.recall": "answer_recall recall_tool",
    "refold.engine.retention": "HeldBack",
    "refold.engine.sessions": "OpenedSession",
    "refold.engine.settings": "ConversationSettings open_summariser summariser_for with_block",
    "refold.engine.state": "Bill Receipt",
    "refold.engine.status": "Preview Status",
    "refold.integrations.sdk_clients": "wrap",
    "refold.model.errors": "Overflow",
    "refold.model.message": "Message Text ToolCall ToolResult",
    "refold.model.summary": "Summary",
    "refold.model.tokens": "Budget Measurement TokenCount TokenCounter Usage",
    "refold.plugins.plugin": "Plugin",
    "refold.plugins.registry": "load_plugins",
    "refold.ports.models": "Ask CountingUpstream Embedder StreamingUpstream Summariser SummaryCache SummaryFunction Upstream",
    "refold.ports.records": "Call CommandEntry Compaction Listed Session StoredSummary",
    "refold.ports.store": "Store",
    "refold.summarisers": "ModelSummariser SummaryWriter",
    "refold.tokens.catalog": "WindowSize",
    "refold.tokens.counters": "counter_for",
    "refold.upstreams": "open_embedder open_upstream",
    "refold.upstreams.provider": "Provider",
    "refold.wire.reply": "Reply",
    "refold.wire.sse": "CallDelta Delta ReasoningDelta TextDelta",
}
"""The exported names by their modules; the other exported names are errors."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "refold.model.errors")), name)
    raise AttributeError(f"module 'refold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
