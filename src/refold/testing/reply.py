"""What a model says: the parts of a reply and why it ends, before any provider spells it.

One idea: a reply is the same in all protocols, so a script says it once, in the words of `refold.model.message`: text,
reasoning, tool calls, in the order in which the model writes them. Ids and signatures are the server's to give.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from refold.model.message import Reasoning, Text, ToolCall
from refold.model.tokens import Usage

Said: TypeAlias = Text | Reasoning | ToolCall
Finish: TypeAlias = Literal["stop", "length", "calls", "refusal", "filter", "window"]
"""Why a reply ends; each protocol has its own word for it. `window`: the model ran out of room while it wrote."""


class Say(Struct, frozen=True):
    """A reply. Without parts it says nothing at all."""

    parts: tuple[Said, ...] = ()
    finish: Finish = "stop"
    usage: Usage | None = None
    """What the bill says; None to count it."""


def say(*parts: str | Said, finish: Finish | None = None, usage: Usage | None = None) -> Say:
    """A reply of texts, thoughts and calls. Where no reason to end is given, its calls are one."""
    said = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    has_calls = any(isinstance(part, ToolCall) for part in said)
    return Say(said, finish or ("calls" if has_calls else "stop"), usage)


def as_say(answer: Say | str) -> Say:
    return say(answer) if isinstance(answer, str) else answer


def call(name: str, arguments: Mapping[str, object] | str = "{}", *, id: str = "") -> ToolCall:  # noqa: A002
    """A tool call. Arguments given as text leave as they are, also where they are no JSON."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(id, name, text)


def think(text: str, *, sealed: str = "") -> Reasoning:
    """A thought, which the server signs; or a sealed one, of which a client sees no word."""
    return Reasoning("" if sealed else text, sealed=sealed)


def sign(text: str, before: bytes = b"") -> str:
    """The signature that the server gives a thought. A history made up by a test needs it to be accepted.

    `before` is a hash of the conversation that the thought is bound to, if it is.
    """
    return f"sig_{blake2b(text.encode(), key=before, digest_size=24, person=b'refold-testing').hexdigest()}"


class Spoken(Struct, frozen=True):
    """A reply on its way: what a spelling needs to know to write it down."""

    number: int
    model: str
    parts: tuple[Said, ...]
    finish: Finish
    usage: Usage
    written_1h: int = 0
    """Of what was written to the cache, the tokens that were asked to live for an hour."""
    include_usage: bool = True
    """A client of Chat Completions has to ask for the usage of a stream."""
    include_sealed: bool = False
    """A client of Responses has to ask for what it needs to send its reasoning back."""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def thoughts(self) -> str:
        return "\n".join(part.text for part in self.parts if isinstance(part, Reasoning) and part.text)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))
