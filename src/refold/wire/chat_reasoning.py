"""Reasoning in Chat messages, which OpenAI's own format has no field for.

One idea: servers send the same thought under several names at once, as text (`reasoning_content`, `reasoning`) and as signed
or sealed pieces (OpenRouter's `reasoning_details`, LiteLLM's `thinking_blocks`). All of them together are one part, so they
stay together or go together, and a signature never outlives its text.
"""

from __future__ import annotations

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import Message, Reasoning
from refold.wire.patch import Fields, misplaced
from refold.wire.reading import NULL, is_null, read

_PLAIN = ("reasoning_content", "reasoning")
_SIGNED = ("reasoning_details", "thinking_blocks")


class Thoughts(Struct, gc=False):
    """The fields that hold reasoning."""

    reasoning_content: Raw = NULL
    reasoning: Raw = NULL
    reasoning_details: Raw = NULL
    thinking_blocks: Raw = NULL

    def fields(self) -> dict[str, Raw]:
        """Those that are there, in the order in which they are believed."""
        all_fields = {name: getattr(self, name) for name in (*_PLAIN, *_SIGNED)}
        return {name: raw for name, raw in all_fields.items() if raw is not NULL}

    def thoughts(self) -> tuple[Reasoning, ...]:
        """What the fields say: one part, or none."""
        if self.reasoning_content is self.reasoning is self.reasoning_details is self.thinking_blocks is NULL:
            return ()
        fields = self.fields()
        texts = [text for name in _PLAIN if (text := _string(fields.get(name, NULL)))]
        pieces = [_pieces(fields.get(name, NULL)) for name in _SIGNED]
        texts += ["\n".join(filter(None, (piece.said for piece in listed))) for listed in pieces]
        flat = [piece for listed in pieces for piece in listed]
        text = next(filter(None, texts), "")
        signature = next((piece.signature for piece in flat if piece.signature), "")
        sealed = next((piece.data for piece in flat if piece.data), "")
        return (Reasoning(text, signature, sealed),) if text or flat else ()


class _Piece(Struct, gc=False):
    """One element of a signed list, in the words of either server."""

    text: str | None = None
    summary: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None

    @property
    def said(self) -> str:
        return self.text or self.summary or self.thinking or ""


_FIELDS = Decoder(Thoughts)
_STRING = Decoder(str)
_PIECES: Decoder[list[_Piece] | None] = Decoder(list[_Piece] | None)


def _string(raw: Raw) -> str:
    try:
        return _STRING.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _pieces(raw: Raw) -> list[_Piece]:
    """What cannot be read is a piece that says nothing, so that it can still be left out."""
    try:
        return _PIECES.decode(raw) or []
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return [_Piece()]


def spell_thoughts(message: Message) -> Fields:
    """The fields of a message's reasoning: as they came, or without it none of them."""
    thoughts = tuple(part for part in message.parts if isinstance(part, Reasoning))
    came = read(_FIELDS, message.origin.raw) if message.origin else Thoughts()
    fields, known = came.fields(), came.thoughts()
    if thoughts == known:
        return {**fields}
    if not thoughts:
        return {}
    if any(thought.sealed or thought.signature for thought in thoughts):
        raise misplaced(thoughts[0], "Chat Completions")
    if any(not is_null(fields.get(name, NULL)) for name in _SIGNED):
        raise WireError("this reasoning cannot be changed", hint="send it as it came, or leave it out")
    text = "\n".join(thought.text for thought in thoughts)
    return {**fields, **dict.fromkeys(_names(fields, known), text)}


def _names(fields: dict[str, Raw], known: tuple[Reasoning, ...]) -> list[str]:
    """The fields that say what was read: another thought under the other name stays."""
    said = {name: _string(raw) for name, raw in fields.items() if name in _PLAIN}
    read_from = [name for name, text in said.items() if known and text == known[0].text]
    return read_from or [*said][:1] or [*_PLAIN[:1]]
