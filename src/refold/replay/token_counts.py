"""How tokens are counted in a replay, and what that way of counting is called.

One idea: a window of 8,000 tokens means something only together with the counter. The reference counter is plain
arithmetic, so that everybody who repeats a measurement means the same window; a model's own counter says what that model
would see. A table names the one it was made with.
"""

from __future__ import annotations

from msgspec import Struct

from refold.model.message import Message, Text, ToolResult
from refold.model.tokens import Source, TokenCounter

MESSAGE_TOKENS = 4
"""The frame of a message: what OpenAI documents for a role and its markers."""
CALL_TOKENS = 8
"""The frame of a tool call: an id, a type and a name's markers."""


def said(message: Message) -> str:
    """The words of a message and of the results it carries; neither reasoning nor calls."""
    if len(message.parts) == 1 and type(part := message.parts[0]) is Text:
        return part.text
    return "\n".join(part.text for part in message.parts if isinstance(part, Text | ToolResult))


class ReferenceCounter:
    """Four characters to a token, every text rounded up on its own. Reasoning and media cost nothing here."""

    source: Source = "estimated"

    def text(self, text: str, /) -> int:
        return (len(text) + 3) // 4

    def message(self, message: Message, /) -> int:
        calls = sum(CALL_TOKENS + self.text(call.name) + self.text(call.arguments) for call in message.calls)
        return MESSAGE_TOKENS + self.text(said(message)) + calls


class Counting(Struct, frozen=True):
    """A way of counting that can travel to another process: counters with a tokenizer inside cannot."""

    model: str = ""
    """Count as this model does; empty for the reference counter."""

    def counter(self) -> TokenCounter:
        if not self.model:
            return ReferenceCounter()
        from refold.tokens import counter_for

        return counter_for(self.model)

    @property
    def name(self) -> str:
        """What a table says about its numbers."""
        if not self.model:
            return "reference: (characters + 3) // 4 per text, 4 per message, 8 per call"
        counter = self.counter()
        by = getattr(counter, "vocabulary", "")
        return f"{self.model}: {f'counted with {by}' if by else counter.source}"


REFERENCE = Counting()
