"""Codec of Anthropic Messages: all content of a message is a list of blocks.

A block is a part, so the two lists match one to one. A user message with tool results is a `tool` message
here.

The system prompt is no message on this wire but the value of the request's `system`: a string, or a list
of text blocks. Later instructions are messages of the role `system`. One that only sets an option has no
content, or an empty list; it is opaque.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Origin,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from refold.wire.error import answer_error
from refold.wire.json_codec import (
    FIELDS,
    NULL,
    Data,
    Fields,
    Json,
    each,
    is_object,
    kind_of,
    misplaced,
    read,
    read_block,
    read_content,
    read_messages,
    text_of,
    verbatim,
    within,
    write_block,
    write_content,
)
from refold.wire.sse import CallDelta, Delta, Pieces, ReasoningDelta, ServerSentEvent, TextDelta

# Blocks, and the sources of media

_NAME = "Anthropic Messages"


class _Text(Struct, gc=False, tag_field="type", tag="text"):
    text: str

    def part(self, raw: Raw) -> Part:
        return Text(self.text, raw=raw)


class _Thinking(Struct, gc=False, tag_field="type", tag="thinking"):
    thinking: str
    signature: str | None = None

    def part(self, raw: Raw) -> Part:
        return Reasoning(self.thinking, self.signature or "", raw=raw)


class _Redacted(Struct, gc=False, tag_field="type", tag="redacted_thinking"):
    data: str

    def part(self, raw: Raw) -> Part:
        return Reasoning("", sealed=self.data, raw=raw)


class _Call(Struct, gc=False, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw

    def part(self, raw: Raw) -> Part:
        if not is_object(self.input):
            raise WireError("expected `object`", place="input", hint="a call without arguments has {}")
        return ToolCall(self.id, self.name, text_of(self.input), raw=raw)


class _Result(Struct, gc=False, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: Raw = NULL
    is_error: bool | None = None

    def part(self, raw: Raw) -> Part:
        return ToolResult(self.tool_use_id, _inner_parts(self.content), bool(self.is_error), raw=raw)


class _Base64(Struct, gc=False, tag_field="type", tag="base64"):
    data: str
    media_type: str = ""


class _Plain(Struct, gc=False, tag_field="type", tag="text"):
    data: str
    media_type: str = ""


class _Url(Struct, gc=False, tag_field="type", tag="url"):
    url: str


class _FileId(Struct, gc=False, tag_field="type", tag="file"):
    file_id: str


class _Blocks(Struct, gc=False, tag_field="type", tag="content"):
    content: Raw


_Source: TypeAlias = _Base64 | _Plain | _Url | _FileId | _Blocks
_SOURCE: Decoder[_Source] = Decoder(_Source)
_SOURCES = frozenset({"base64", "text", "url", "file", "content"})


class _Image(Struct, gc=False, tag_field="type", tag="image"):
    source: Raw

    def part(self, raw: Raw) -> Part:
        source = _source(self.source)
        if isinstance(source, _Base64):
            return Image(media_type=source.media_type, data=source.data, raw=raw)
        if isinstance(source, _Url):
            return Image(url=source.url, raw=raw)
        return (
            Image(file_id=source.file_id, raw=raw)
            if isinstance(source, _FileId)
            else Opaque("image", raw=raw)
        )


class _Document(Struct, gc=False, tag_field="type", tag="document"):
    source: Raw
    title: str | None = None

    def part(self, raw: Raw) -> Part:
        source, name = _source(self.source), self.title or ""
        if isinstance(source, _Base64):
            return File(media_type=source.media_type, data=source.data, name=name, raw=raw)
        if isinstance(source, _Url):
            return File(url=source.url, name=name, raw=raw)
        if isinstance(source, _FileId):
            return File(file_id=source.file_id, name=name, raw=raw)
        if isinstance(source, _Plain):
            return File(media_type=source.media_type, text=source.data, name=name, raw=raw)
        text = _source_text(source) if isinstance(source, _Blocks) else ""
        return File(text=text, name=name, raw=raw) if text else Opaque("document", raw=raw)


_Block: TypeAlias = _Text | _Thinking | _Redacted | _Call | _Result | _Image | _Document
_BLOCK: Decoder[_Block] = Decoder(_Block)
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"})


def decode_block(raw: Raw) -> Part:
    block = read_block(_BLOCK, _BLOCKS, raw)
    return Opaque(block, raw=raw) if isinstance(block, str) else block.part(raw)


def _inner_parts(raw: Raw) -> tuple[Text | Image | File | Opaque, ...]:
    content = read_content(raw)
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return each(_inner, content or (), "content")


def _inner(raw: Raw) -> Text | Image | File | Opaque:
    """A block inside a tool result. Kinds that do not belong there are opaque, and not read any deeper."""
    block = read_block(_BLOCK, _BLOCKS, raw)
    if isinstance(block, str):
        return Opaque(block, raw=raw)
    part = block.part(raw) if isinstance(block, _Text | _Image | _Document) else None
    return part if isinstance(part, Text | Image | File | Opaque) else Opaque(kind_of(raw), raw=raw)


def _source(raw: Raw) -> _Source | None:
    try:
        source = read_block(_SOURCE, _SOURCES, raw)
    except WireError as error:
        raise within(error, "source") from None
    return None if isinstance(source, str) else source


def _source_text(source: _Blocks) -> str:
    content = read_content(source.content, "source.content") or ""
    if isinstance(content, str):
        return content
    blocks = each(lambda raw: read_block(_BLOCK, _BLOCKS, raw), content, "source.content")
    return "\n".join(block.text for block in blocks if isinstance(block, _Text))


def encode_block(part: Part) -> Raw:
    return write_block(part, decode_block, _spell_block)


def _write_inner(part: Part) -> Raw:
    return write_block(part, _inner, _spell_block)


def _spell_block(part: Part) -> Fields:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, ToolCall) and part.kind == "function":
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.arguments)}
    if isinstance(part, ToolResult):
        return _spell_result(part)
    if isinstance(part, Image):
        return {"type": "image", "source": _spell_source(part)}
    if isinstance(part, File):
        title: Fields = {"title": part.name} if part.name else {}
        return {"type": "document", "source": _spell_source(part), **title}
    if isinstance(part, Reasoning):
        return _spell_reasoning(part)
    raise misplaced(part, _NAME)


def _input(arguments: str) -> Json:
    """Call arguments as the object that this wire requires; models write an empty text for no arguments."""
    if not arguments.strip():
        return {}
    raw = verbatim(arguments)
    read(FIELDS, raw, "input")
    return raw


def _spell_result(result: ToolResult) -> Fields:
    fields: Fields = {"type": "tool_result", "tool_use_id": result.call_id}
    if result.parts:
        fields["content"] = write_content(result.parts, _write_inner)
    return {**fields, "is_error": True} if result.is_error else fields


def _spell_reasoning(part: Reasoning) -> Fields:
    if part.sealed:
        return {"type": "redacted_thinking", "data": part.sealed}
    if not part.signature:
        raise WireError("thinking without its signature is refused", hint="leave it out, or send it as text")
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _spell_source(part: Image | File) -> Fields:
    if isinstance(part, File) and part.text:
        return _spell_text(part)
    if part.data:
        return {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "file", "file_id": part.file_id} if part.file_id else {"type": "url", "url": part.url}


def _spell_text(file: File) -> Fields:
    """Plain text. A document made of blocks has no type of its own and stays one."""
    if file.raw is not None and not file.media_type:
        return {"type": "content", "content": file.text}
    return {"type": "text", "media_type": "text/plain", "data": file.text}


_ROLES = ("user", "assistant", "system")


class _Item(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None


_ITEM = Decoder(_Item)
_ALL_ITEMS = Decoder(list[_Item])


def decode_items(raws: list[Raw], array: Data) -> tuple[Message, ...]:
    """All messages of an array, read in one pass; `raws` are its elements."""
    items = read_messages(_ALL_ITEMS, array)
    return each(_message, zip(raws, items, strict=True))


def decode_item(raw: Raw) -> Message:
    return _message((raw, read_messages(_ITEM, raw)))


def decode_system(raw: Raw) -> Message:
    """The value of `system` as one message."""
    return Message("system", _parts(read_content(raw, "") or "", ""), Origin("anthropic", raw))


def _message(pair: tuple[Raw, _Item]) -> Message:
    raw, item = pair
    role, content, origin = item.role, item.content, Origin("anthropic", raw)
    if role not in _ROLES:
        hint = "use user, assistant or system; tool results are blocks"
        raise WireError("unknown role", place="role", hint=hint)
    if content is None or (role == "system" and not content and _sets_something(raw)):
        if role != "system":
            raise WireError("is missing or null", place="content", hint="an empty list is allowed")
        return Message("system", (Opaque("system", raw=raw),), origin)
    parts = _parts(content, "content")
    if role == "user":
        answers = any(isinstance(part, ToolResult) for part in parts)
        return Message("tool" if answers else "user", parts, origin)
    return Message("assistant" if role == "assistant" else "system", parts, origin)


def _sets_something(raw: Raw) -> bool:
    """True if a message without content has another field."""
    return bool(read(FIELDS, raw).keys() - {"role", "content"})


def _parts(content: str | list[Raw], place: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return each(decode_block, content, place)


def spell(message: Message) -> Fields:
    role = message.role if message.role in ("assistant", "system") else "user"
    said = [part for part in message.parts if message.origin is None or part.raw != message.origin.raw]
    if role == "system" and not said:
        return {"role": role}
    return {"role": role, "content": write_content(said, encode_block)}


def spell_system(message: Message) -> Json:
    """The value of `system`."""
    return write_content(message.parts, encode_block, "system")


# Streams: blocks that are opened, filled and closed

_GROWS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "compaction_delta": "content",
}
"""Kinds of delta, and the one field that each of them appends to."""
_MALFORMED = "_malformed"
"""Holds arguments that are no JSON object, such as those of a call that was cut off: this wire has no other
field for them."""

Block = dict[str, object]


class _Event(Struct, gc=False):
    """Any event. Events of unknown kinds are ignored, so no field is decoded before the kind is known."""

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
        """The number of the reply's call that a block is."""

    def take(self, event: ServerSentEvent) -> list[Delta]:
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
            self._update_head(_object(said.delta, "delta"), _object(said.usage, "usage"))
        elif said.type == "message_stop":
            self.is_whole = self.is_over = True
        return []

    def _start(self, message: Block) -> None:
        self._head = {key: message.get(key) for key in ("id", "model", "stop_reason")}
        usage = message.get("usage")
        self._update_head({}, usage if isinstance(usage, dict) else {})

    def _update_head(self, delta: Block, usage: Block) -> None:
        """Update usage and stop reason. Counts grow towards the end; fields that are not repeated keep their value."""
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
            content.append({**block, "input": _streamed_input(written)} if written.strip() else block)
        body = {**self._head, "content": content, "usage": self._usage}
        return msgspec.json.encode(body, enc_hook=str)


def _object(raw: Raw, place: str) -> Block:
    return read(_OBJECT, raw, place) or {}


def _shown(said: Block) -> list[Delta]:
    """The delta of a new block or a delta event, if it has text."""
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


def _streamed_input(written: str) -> Raw | dict[str, str]:
    raw = Raw(written.encode())
    try:
        FIELDS.decode(raw)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return {_MALFORMED: text_of(raw)}
    return raw
