"""Token counting in a replay, and the name of the counter.

A window of 8,000 tokens has a meaning only together with its counter. The reference counter is plain
arithmetic, so that a repeated measurement uses the same window; a model's own counter shows the sizes that
this model would see. A table names its counter.
"""

from __future__ import annotations

from msgspec import Struct

from refold.model.message import Message, Text, ToolResult
from refold.model.tokens import Source, TokenCounter

MESSAGE_TOKENS = 4
"""The frame of a message: OpenAI's documented size of a role and its markers."""
CALL_TOKENS = 8
"""The frame of a tool call: an id, a type and the markers of a name."""


def spoken_text(message: Message) -> str:
    """The text of a message and of the results in it; without reasoning and calls."""
    if len(message.parts) == 1 and type(part := message.parts[0]) is Text:
        return part.text
    return "\n".join(part.text for part in message.parts if isinstance(part, Text | ToolResult))


class ReferenceCounter:
    """Four characters per token, every text rounded up on its own. Reasoning and media count as nothing."""

    source: Source = "estimated"

    def text(self, text: str, /) -> int:
        return (len(text) + 3) // 4

    def message(self, message: Message, /) -> int:
        calls = sum(CALL_TOKENS + self.text(call.name) + self.text(call.arguments) for call in message.calls)
        return MESSAGE_TOKENS + self.text(spoken_text(message)) + calls


class Counting(Struct, frozen=True):
    """The choice of a counter, which can be sent to another process: a counter with a tokenizer cannot."""

    model: str = ""
    """Count with this model's counter; empty for the reference counter."""

    def counter(self) -> TokenCounter:
        if not self.model:
            return ReferenceCounter()
        from refold.tokens import counter_for

        return counter_for(self.model)

    @property
    def name(self) -> str:
        """The name that a table shows for its counter."""
        if not self.model:
            return "reference: (characters + 3) // 4 per text, 4 per message, 8 per call"
        counter = self.counter()
        by = getattr(counter, "vocabulary", "")
        return f"{self.model}: {f'counted with {by}' if by else counter.source}"


REFERENCE = Counting()
