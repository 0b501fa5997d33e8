"""What Anthropic messages hold: blocks, and the sources of media.

One idea: a block is a part. Call arguments are an object on this wire; they are kept as the JSON text they came as.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import File, Image, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from refold.wire.patch import Fields, Json, misplaced, verbatim, write_block, write_content
from refold.wire.reading import (
    FIELDS,
    NULL,
    each,
    is_object,
    kind_of,
    read,
    read_block,
    read_content,
    text_of,
    within,
)

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
    """A block inside a tool result; what has no business there is passed on untouched, and not read any deeper."""
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
    """Call arguments as the object this wire wants; models write an empty text for no arguments."""
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
    """Plain text; a document made of blocks has no type of its own and stays one."""
    if file.raw is not None and not file.media_type:
        return {"type": "content", "content": file.text}
    return {"type": "text", "media_type": "text/plain", "data": file.text}
