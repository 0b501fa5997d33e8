"""What Responses items hold: the blocks of a message, and the outputs of the tools.

One idea: every tool has its own shape of output (a text, a list of blocks, a screenshot, chunks of a shell's streams), but
a result is always a list of parts. Each shape is read into parts and written back from them here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import File, Image, Opaque, Part, Text, ToolResult
from refold.wire.media import join_url, split_url
from refold.wire.patch import Fields, Json, misplaced, patch, write, write_block, write_content
from refold.wire.reading import each, kind_of, read, read_block, read_content

Content: TypeAlias = Text | Image | File | Opaque

_NAME = "a Responses item"


class _Text(Struct, gc=False):
    text: str

    def part(self, raw: Raw) -> Content:
        return Text(self.text, raw=raw)


class _InputText(_Text, gc=False, tag_field="type", tag="input_text"):
    pass


class _OutputText(_Text, gc=False, tag_field="type", tag="output_text"):
    pass


class _PlainText(_Text, gc=False, tag_field="type", tag="text"):
    pass


class _Refusal(Struct, gc=False, tag_field="type", tag="refusal"):
    refusal: str

    def part(self, raw: Raw) -> Content:
        return Text(self.refusal, raw=raw)


class _Picture(Struct, gc=False):
    image_url: str | None = None
    file_id: str | None = None

    def part(self, raw: Raw) -> Content:
        if self.image_url:
            return Image(raw=raw, **split_url(self.image_url))
        return Image(file_id=self.file_id or "", raw=raw)


class _InputImage(_Picture, gc=False, tag_field="type", tag="input_image"):
    pass


class _Screenshot(_Picture, gc=False, tag_field="type", tag="computer_screenshot"):
    pass


class _InputFile(Struct, gc=False, tag_field="type", tag="input_file"):
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None

    def part(self, raw: Raw) -> Content:
        name = self.filename or ""
        if self.file_data:
            place = split_url(self.file_data)
            data = place.get("data") or self.file_data
            return File(media_type=place.get("media_type", ""), data=data, name=name, raw=raw)
        return File(url=self.file_url or "", file_id=self.file_id or "", name=name, raw=raw)


class _Chunk(Struct, gc=False):
    """What one command of a shell call wrote."""

    stdout: str = ""
    stderr: str = ""

    def part(self, raw: Raw) -> Text:
        return Text("\n".join(filter(None, (self.stdout, self.stderr))), raw=raw)


_Block: TypeAlias = _InputText | _OutputText | _PlainText | _Refusal | _InputImage | _Screenshot | _InputFile
_BLOCK: Decoder[_Block] = Decoder(_Block)
_BLOCKS = frozenset(
    {"input_text", "output_text", "text", "refusal", "input_image", "computer_screenshot", "input_file"}
)
_CHUNK = Decoder(_Chunk)
_TEXT: Decoder[str | None] = Decoder(str | None)


def decode_content(raw: Raw, place: str = "content") -> tuple[Content, ...]:
    """A text or a list of blocks, at `place`."""
    return _parts(_given(raw, place), place)


def decode_output(kind: str, raw: Raw) -> tuple[Content, ...]:
    """The output of a tool, whatever its shape."""
    if kind == "computer":
        return (_block(raw),)
    if kind in ("local_shell", "apply_patch"):
        return _parts(read(_TEXT, raw) or "", "")
    output = _given(raw, "")
    return each(_chunk, output) if kind == "shell" and isinstance(output, list) else _parts(output, "")


def _given(raw: Raw, place: str) -> str | list[Raw]:
    content = read_content(raw, place)
    if content is None:
        raise WireError("is missing or null", place=place, hint="an empty text says nothing as well")
    return content


def _parts(content: str | list[Raw], place: str) -> tuple[Content, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return each(_block, content, place)


def spell_content(parts: Sequence[Part], text_kind: str, place: str = "content") -> Json:
    """The value of the field at `place`. New text is of the kind that suits its speaker."""

    def block(part: Part) -> Raw:
        return write_block(part, _block, lambda known: _spell_block(known, text_kind))

    return write_content(parts, block, place)


def spell_output(result: ToolResult) -> Json:
    if result.kind == "computer":
        return _spell_screenshot(result)
    if result.kind == "shell":
        return each(_write_chunk, result.parts, "output")
    if result.kind in ("local_shell", "apply_patch"):
        return "\n".join(_plain(part).text for part in result.parts)
    return spell_content(result.parts, "input_text", "output")


def _block(raw: Raw) -> Content:
    block = read_block(_BLOCK, _BLOCKS, raw)
    return Opaque(block, raw=raw) if isinstance(block, str) else block.part(raw)


def _chunk(raw: Raw) -> Text:
    return read(_CHUNK, raw).part(raw)


def _spell_block(part: Part, text_kind: str) -> Fields:
    kind = kind_of(part.raw) if part.raw is not None else ""
    if isinstance(part, Text):
        return _spell_text(part, kind or text_kind)
    if isinstance(part, Image):
        return _spell_image(part, kind or "input_image")
    if isinstance(part, File) and not part.text:
        return _spell_file(part)
    raise misplaced(part, _NAME)


def _spell_text(part: Text, kind: str) -> Fields:
    fields: Fields = {"type": kind, "refusal" if kind == "refusal" else "text": part.text}
    # A model's text has a list of annotations; a block that came without goes back without.
    return {**fields, "annotations": []} if kind == "output_text" and part.raw is None else fields


def _spell_image(image: Image, kind: str) -> Fields:
    if image.file_id:
        return {"type": kind, "file_id": image.file_id}
    return {"type": kind, "image_url": join_url(image)}


def _spell_file(file: File) -> Fields:
    fields: Fields = {"type": "input_file"}
    for key, value in (("file_id", file.file_id), ("file_url", file.url), ("filename", file.name)):
        if value:
            fields[key] = value
    return {**fields, "file_data": join_url(file)} if file.data else fields


def _spell_screenshot(result: ToolResult) -> Json:
    if len(result.parts) != 1 or not isinstance(result.parts[0], Image | Opaque):
        raise WireError(
            "a computer_call_output holds one screenshot",
            place="output",
            hint="leave out the call and its output",
        )
    return write_block(result.parts[0], _block, _spell_shot)


def _spell_shot(part: Part) -> Fields:
    if not isinstance(part, Image):
        raise misplaced(part, _NAME)
    return _spell_image(part, "computer_screenshot")


def _write_chunk(part: Part) -> Raw:
    text = _plain(part).text
    if part.raw is None:
        return write({"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}})
    chunk = read(_CHUNK, part.raw)
    if chunk.part(part.raw) == part:
        return part.raw
    return patch(part.raw, {"stdout": chunk.stdout, "stderr": chunk.stderr}, {"stdout": text, "stderr": ""})


def _plain(part: Part) -> Text:
    if not isinstance(part, Text):
        raise misplaced(part, "the output of a shell or a patch")
    return part
