"""Streams of Anthropic Messages: blocks that are opened, filled and closed.

One idea: an opened block is the block of the reply with its text still empty, so filling it is all there is to do. The
arguments of a call come as pieces of JSON text and become its `input` when all are there.
"""

from __future__ import annotations

import msgspec
from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.wire.delta import CallDelta, Delta, Pieces, ReasoningDelta, TextDelta
from refold.wire.error import answer_error
from refold.wire.reading import FIELDS, NULL, read, text_of
from refold.wire.sse import Event

_GROWS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "compaction_delta": "content",
}
"""Kinds of delta, and the one field that each of them lets grow."""
_MALFORMED = "_malformed"
"""Holds arguments that are no JSON object, such as those of a call that was cut off: this wire has no other place."""

Block = dict[str, object]


class _Event(Struct, gc=False):
    """Events of kinds that are not known here are passed over, so nothing is read before its kind is."""

    type: str = ""
    index: int = 0
    message: Raw = NULL
    content_block: Raw = NULL
    delta: Raw = NULL
    usage: Raw = NULL


_EVENT = Decoder(_Event)
_OBJECT: Decoder[Block | None] = Decoder(Block | None)


class AnthropicFold:
    def __init__(self) -> None:
        self.is_whole = self.is_over = self.is_failed = False
        self._head: Block = {}
        self._usage: Block = {}
        self._blocks: dict[int, Block] = {}
        self._inputs: dict[int, Pieces] = {}
        self._calls: dict[int, int] = {}
        """Which call of the reply a block is."""

    def take(self, event: Event) -> list[Delta]:
        said = read(_EVENT, event.data)
        if said.type == "error" or (not said.type and answer_error(event.data).is_error):
            self.is_failed = True
        elif said.type == "message_start":
            self._start(_object(said.message, "message"))
        elif said.type == "content_block_start":
            return self._open(said.index, _object(said.content_block, "content_block"))
        elif said.type == "content_block_delta":
            return self._fill(said.index, _object(said.delta, "delta"))
        elif said.type == "message_delta":
            self._note(_object(said.delta, "delta"), _object(said.usage, "usage"))
        elif said.type == "message_stop":
            self.is_whole = self.is_over = True
        return []

    def _start(self, message: Block) -> None:
        self._head = {key: message.get(key) for key in ("id", "model", "stop_reason")}
        usage = message.get("usage")
        self._note({}, usage if isinstance(usage, dict) else {})

    def _note(self, delta: Block, usage: Block) -> None:
        """Counts grow towards the end; what is not said again stays as it was."""
        self._usage.update({key: value for key, value in usage.items() if value is not None})
        if delta.get("stop_reason") is not None:
            self._head["stop_reason"] = delta["stop_reason"]

    def _open(self, index: int, block: Block) -> list[Delta]:
        self._blocks[index] = block
        if block.get("type") == "tool_use":
            self._calls[index] = len(self._calls)
            return [CallDelta(self._calls[index], _text(block.get("id")), _text(block.get("name")))]
        return _shown(block)

    def _fill(self, index: int, delta: Block) -> list[Delta]:
        block, kind = self._blocks.setdefault(index, {"type": "text", "text": ""}), delta.get("type")
        if kind == "input_json_delta":
            written = _text(delta.get("partial_json"))
            self._inputs.setdefault(index, Pieces()).add(written)
            is_call = index in self._calls and written
            return [CallDelta(self._calls[index], arguments=written)] if is_call else []
        if kind == "citations_delta":
            cited = block.get("citations")
            block["citations"] = cited = cited if isinstance(cited, list) else []
            cited.append(delta.get("citation"))
        elif isinstance(kind, str) and kind in _GROWS:
            _grow(block, _GROWS[kind], _text(delta.get(_GROWS[kind])))
        if kind == "compaction_delta" and isinstance(sealed := delta.get("encrypted_content"), str):
            block["encrypted_content"] = sealed  # comes whole, and goes back with the block
        return _shown(delta)

    def body(self) -> bytes:
        content = []
        for index, block in sorted(self._blocks.items()):
            written = str(self._inputs.get(index, ""))
            content.append({**block, "input": _input(written)} if written.strip() else block)
        body = {**self._head, "content": content, "usage": self._usage}
        return msgspec.json.encode(body, enc_hook=str)


def _object(raw: Raw, place: str) -> Block:
    return read(_OBJECT, raw, place) or {}


def _shown(said: Block) -> list[Delta]:
    """What a new block or a delta says, if it says something."""
    text, thought = _text(said.get("text")), _text(said.get("thinking"))
    return [TextDelta(text)] if text else [ReasoningDelta(thought)] if thought else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _grow(block: Block, key: str, more: str) -> None:
    known = block.get(key)
    if isinstance(known, Pieces):
        known.add(more)
    else:
        block[key] = Pieces(_text(known), more)


def _input(written: str) -> Raw | dict[str, str]:
    raw = Raw(written.encode())
    try:
        FIELDS.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return {_MALFORMED: text_of(raw)}
    return raw
