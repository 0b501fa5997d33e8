"""The ledger of some messages, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from refold.core.digest.ledger import EMPTY, Ledger, entries, merge
from refold.core.tool_use import COMMON_TOOLS, ToolKinds
from refold.model.message import Message, ToolCall


def ledger_of(messages: Iterable[Message], tools: ToolKinds = COMMON_TOOLS) -> Ledger:
    """Return the entries that some messages add to the ledger, one after the other."""
    found, calls = EMPTY, dict[str, ToolCall]()
    for message in messages:
        found = merge(found, entries(message, tools, calls=calls))
        calls |= {call.id: call for call in message.calls}
    return found
