"""What a window is in plain values: the fields of a request, ready for an SDK.

One idea: between two calls most messages stay what they were. Each is spelled once and given out again as the same
dictionary, so a call costs what is new in it.
"""

from __future__ import annotations

from refold.model.message import Message
from refold.model.window import Window
from refold.wire.cache_breakpoints import write_breakpoints
from refold.wire.sdk import plain_message, plain_prompt, prompt_messages


class Spelling:
    """Remembers the dictionaries of the messages that were sent last."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Message, dict[str, object]]] = {}

    def fields(self, window: Window) -> dict[str, object]:
        """The fields of a request: messages, and the system prompt where it has a field of its own."""
        window, dialect = write_breakpoints(window), window.fixed.dialect
        sent = (*prompt_messages(window), *window.sent)
        known = {id(message): self._spelled(message, window) for message in sent}
        self._known = known
        messages = [known[id(message)][1] for message in sent]
        return {**plain_prompt(window), dialect.messages_key: messages}

    def _spelled(self, message: Message, window: Window) -> tuple[Message, dict[str, object]]:
        found = self._known.get(id(message))
        return found or (message, plain_message(message, window.fixed.dialect))
