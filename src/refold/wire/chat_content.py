"""What Chat messages hold: the blocks of a content, and tool calls.

One idea: a block is a part. The servers that speak this format differ in small things (an address that is no object,
arguments that are no text); they are read alike, and what nobody changed goes back in the server's own way.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import File, Image, Opaque, Part, Text, ToolCall
from refold.wire.media import join_url, split_url
from refold.wire.patch import Fields, Json, misplaced, write, write_block
from refold.wire.reading import kind_of, read, read_block, text_of

_NAME = "Chat Completions"


class _Text(Struct, gc=False, tag_field="type", tag="text"):
    text: str

    def part(self, raw: Raw) -> Part:
        return Text(self.text, raw=raw)


class _Refusal(Struct, gc=False, tag_field="type", tag="refusal"):
    refusal: str

    def part(self, raw: Raw) -> Part:
        return Text(self.refusal, raw=raw)


class _Url(Struct, gc=False):
    url: str


class _Image(Struct, gc=False, tag_field="type", tag="image_url"):
    image_url: _Url | str
    """Mistral takes the address alone."""

    def part(self, raw: Raw) -> Part:
        place = self.image_url
        return Image(raw=raw, **split_url(place if isinstance(place, str) else place.url))


class _Sound(Struct, gc=False):
    data: str
    format: str = ""


class _Audio(Struct, gc=False, tag_field="type", tag="input_audio"):
    input_audio: _Sound

    def part(self, raw: Raw) -> Part:
        return File(media_type=f"audio/{self.input_audio.format}", data=self.input_audio.data, raw=raw)


class _Document(Struct, gc=False):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _File(Struct, gc=False, tag_field="type", tag="file"):
    file: _Document

    def part(self, raw: Raw) -> Part:
        name = self.file.filename or ""
        if self.file.file_id:
            return File(file_id=self.file.file_id, name=name, raw=raw)
        place = split_url(self.file.file_data or "")
        return File(
            media_type=place.get("media_type", ""),
            data=place.get("data") or place.get("url", ""),
            name=name,
            raw=raw,
        )


class _Function(Struct, gc=False):
    name: str
    arguments: str | dict[str, Raw] | None = ""
    """Some servers send the object itself, or null for none."""


class _Custom(Struct, gc=False):
    name: str
    input: str = ""


class _Call(Struct, gc=False):
    id: str
    function: _Function | None = None
    custom: _Custom | None = None


_Block: TypeAlias = _Text | _Refusal | _Image | _Audio | _File
_BLOCK: Decoder[_Block] = Decoder(_Block)
_BLOCKS = frozenset({"text", "refusal", "image_url", "input_audio", "file"})
_CALL = Decoder(_Call)


def decode_block(raw: Raw) -> Part:
    block = read_block(_BLOCK, _BLOCKS, raw)
    return Opaque(block, raw=raw) if isinstance(block, str) else block.part(raw)


def decode_call(raw: Raw) -> ToolCall:
    call = read(_CALL, raw)
    if call.function is not None:
        return ToolCall(call.id, call.function.name, _text(call.function.arguments), raw=raw)
    if call.custom is not None:
        return ToolCall(call.id, call.custom.name, call.custom.input, "custom", raw=raw)
    raise WireError("is missing", place="function", hint="a call has a `function` or a `custom` object")


def _text(arguments: str | dict[str, Raw] | None) -> str:
    if isinstance(arguments, dict):
        return text_of(write(arguments))
    return arguments or ""


def encode_block(part: Part) -> Raw:
    return write_block(part, decode_block, _spell_block)


def encode_call(part: Part) -> Raw:
    return write_block(part, decode_call, _spell_call)


def _spell_block(part: Part) -> Fields:
    if isinstance(part, Text):
        key = "refusal" if part.raw is not None and kind_of(part.raw) == "refusal" else "text"
        return {"type": key, key: part.text}
    if isinstance(part, Image) and not part.file_id:
        return {"type": "image_url", "image_url": _spell_url(part)}
    if isinstance(part, File) and not (part.url or part.text):
        return _spell_file(part)
    raise misplaced(part, _NAME)


def _spell_url(image: Image) -> Json:
    """An address in an object, or alone where it came alone."""
    came = read(_BLOCK, image.raw) if image.raw is not None else None
    url = join_url(image)
    return url if isinstance(came, _Image) and isinstance(came.image_url, str) else {"url": url}


def _spell_call(call: Part) -> Fields:
    if not isinstance(call, ToolCall) or call.kind not in ("function", "custom"):
        raise misplaced(call, _NAME)
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _spell_file(file: File) -> Fields:
    if file.media_type.startswith("audio/"):
        sound: Json = {"data": file.data, "format": file.media_type.removeprefix("audio/")}
        return {"type": "input_audio", "input_audio": sound}
    document: Fields = {"file_id": file.file_id} if file.file_id else {"file_data": join_url(file)}
    if file.name:
        document["filename"] = file.name
    return {"type": "file", "file": document}
