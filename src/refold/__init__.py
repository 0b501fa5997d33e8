"""Refold keeps LLM conversations inside the context window without losing anything.

`refold.Conversation` is one chat and its window; `refold.sync.Conversation` is the same without `await`; `refold.Engine` keeps
conversations in a store. This package stays light to import: what it offers is loaded when it is first named. Below these faces, `refold.wire` reads and writes requests,
`refold.core` decides, `refold.tokens` counts, `refold.model` holds the values they share.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from refold.model.errors import RefoldError

if TYPE_CHECKING:
    from refold import sync
    from refold.conversation import Conversation
    from refold.keeping import Engine

__all__ = ["Conversation", "Engine", "RefoldError", "__version__", "sync"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load a face when it is first asked for."""
    if name == "Conversation":
        return import_module("refold.conversation").Conversation
    if name == "Engine":
        return import_module("refold.keeping").Engine
    if name == "sync":
        return import_module("refold.sync")
    raise AttributeError(f"module 'refold' has no attribute {name!r}")
