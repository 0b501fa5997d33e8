"""Plugins: code of others at the points that Refold offers. See docs/plugins.md.

plugin.py     Plugin, a frozen value, and the protocols of its functions
registry.py   load_plugins: entry points and files; active: the plugins in use; PluginGuard calls one with a deadline, and counts
filters.py    the chain of request and response filters, and the check of what they return
"""

from __future__ import annotations

from refold.core.plugin_points import StageFunction, TriggerFunction, map_texts
from refold.core.stage import Item, Room, ShownMessages
from refold.core.triggers import TriggerFacts
from refold.model.message import Message, Text, ToolCall, ToolResult
from refold.model.tokens import TokenCounter
from refold.plugins.plugin import (
    API,
    FilterRequest,
    FilterResponse,
    Plugin,
    RequestChange,
    RequestFilter,
    ResponseFilter,
    StoreOpener,
    replace_texts,
)
from refold.plugins.registry import Plugins, active, find_plugins, load_plugins, use
from refold.ports.models import SummaryFunction

__all__ = [
    "API",
    "FilterRequest",
    "FilterResponse",
    "Item",
    "Message",
    "Plugin",
    "Plugins",
    "RequestChange",
    "RequestFilter",
    "ResponseFilter",
    "Room",
    "ShownMessages",
    "StageFunction",
    "StoreOpener",
    "SummaryFunction",
    "Text",
    "TokenCounter",
    "ToolCall",
    "ToolResult",
    "TriggerFacts",
    "TriggerFunction",
    "active",
    "find_plugins",
    "load_plugins",
    "map_texts",
    "replace_texts",
    "use",
]
