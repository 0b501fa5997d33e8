"""The assembler: the one place where a window is put together.

One idea: history holds neither system prompt nor summaries; both are added here, in the order the dialect wants, so that
every request is built the same way whoever asks for it.
"""

from __future__ import annotations

from refold.model.message import Message, user
from refold.model.window import Fixed, Window

BRIDGE = "Continue from the context below."
"""Stands first where a dialect wants the user to speak first and the conversation does not begin that way."""


def assemble(fixed: Fixed, messages: tuple[Message, ...], *, summaries: tuple[Message, ...] = ()) -> Window:
    """System and tools as the client sent them, then summaries, then messages."""
    first = next(iter((*summaries, *messages)), None)
    if fixed.dialect.starts_with_user and first is not None and first.role != "user":
        summaries = (user(BRIDGE), *summaries)
    return Window(fixed, messages, summaries)
