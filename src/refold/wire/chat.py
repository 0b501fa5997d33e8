"""OpenAI Chat Completions: messages with a `content` and, beside it, `tool_calls`, `refusal` and reasoning.

One idea: what stands beside the content becomes parts around it, in the order in which a model writes them: reasoning,
content, refusal, calls. Reasoning is no field of OpenAI's own; servers that send it call it `reasoning_content` or
`reasoning`, so a changed message keeps the name it came with.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Raw, Struct
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
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from refold.wire.media import join_url, split_url
from refold.wire.patch import Fields, Json, misplaced, write, write_block, write_content
from refold.wire.reading import FIELDS, each, kind_of, read, read_block

_ROLES: dict[str, Role] = {"system": "system", "developer": "developer", "user": "user"}
_REASONING = ("reasoning_content", "reasoning")


class _Item(Struct, gc=False):
    role: str
    content: str | list[Raw] | None = None
    tool_calls: list[Raw] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: object = None
    reasoning: object = None
    function_call: object = None


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
    image_url: _Url

    def part(self, raw: Raw) -> Part:
        return Image(raw=raw, **split_url(self.image_url.url))


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
    arguments: str = ""


class _Custom(Struct, gc=False):
    name: str
    input: str = ""


class _Call(Struct, gc=False):
    id: str
    function: _Function | None = None
    custom: _Custom | None = None


_ITEM = Decoder(_Item)
_ALL_ITEMS = Decoder(list[_Item])
_Block: TypeAlias = _Text | _Refusal | _Image | _Audio | _File
_BLOCK: Decoder[_Block] = Decoder(_Block)
_BLOCKS = frozenset({"text", "refusal", "image_url", "input_audio", "file"})
_CALL = Decoder(_Call)


def decode_items(raws: list[Raw], array: Raw | bytes) -> tuple[Message, ...]:
    """All messages of an array, read in one pass; `raws` are its elements."""
    items = read(_ALL_ITEMS, array)
    return each(_message, zip(raws, items, strict=True))


def decode_item(raw: Raw) -> Message:
    return _message((raw, read(_ITEM, raw)))


def _message(pair: tuple[Raw, _Item]) -> Message:
    raw, item = pair
    content, origin = item.content, Origin("chat", raw)
    if item.role == "assistant":
        return Message("assistant", _said(item), origin)
    if item.role == "tool":
        if item.tool_call_id is None:
            raise WireError("is missing", place="tool_call_id", hint="say which call this result answers")
        return Message("tool", (ToolResult(item.tool_call_id, _given(content)),), origin)  # type: ignore[arg-type]
    role = _ROLES.get(item.role)
    if role is None:
        raise _unknown_role(item.role)
    return Message(role, _given(content), origin)


def _unknown_role(role: str) -> WireError:
    if role == "function":
        return WireError(
            "`function` messages are no longer in use",
            place="role",
            hint="send a `tool` message with a tool_call_id",
        )
    return WireError("unknown role", place="role", hint="use system, developer, user, assistant or tool")


def _given(content: str | list[Raw] | None) -> tuple[Part, ...]:
    """The parts of a content that has to be there."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    if content is None:
        raise WireError(
            "is missing or null", place="content", hint="only an assistant message may go without"
        )
    return each(_block, content, "content")


def _said(item: _Item) -> tuple[Part, ...]:
    """The parts of an assistant message."""
    if item.function_call is not None:
        raise WireError("`function_call` is no longer in use", place="function_call", hint="send tool_calls")
    parts: list[Part] = []
    thought = item.reasoning_content or item.reasoning
    if isinstance(thought, str) and thought:
        parts.append(Reasoning(thought))
    if item.content is not None:
        parts += _given(item.content)
    if item.refusal:
        parts.append(_refusal(item.refusal))
    if item.tool_calls:
        parts += each(_call, item.tool_calls, "tool_calls")
    return tuple(parts)


def _refusal(text: str) -> Text:
    """A refusal beside the content reads as the block that it would be inside."""
    return Text(text, raw=write({"type": "refusal", "refusal": text}))


def _block(raw: Raw) -> Part:
    block = read_block(_BLOCK, _BLOCKS, raw)
    return Opaque(block, raw=raw) if isinstance(block, str) else block.part(raw)


def _call(raw: Raw) -> ToolCall:
    call = read(_CALL, raw)
    if call.function is not None:
        return ToolCall(call.id, call.function.name, call.function.arguments, raw=raw)
    if call.custom is not None:
        return ToolCall(call.id, call.custom.name, call.custom.input, "custom", raw=raw)
    raise WireError("is missing", place="function", hint="a call has a `function` or a `custom` object")


def spell(message: Message) -> Fields:
    """The fields of a message, in the words of its origin where it has one."""
    if message.role == "tool":
        return _spell_result(message)
    if message.role == "assistant":
        return _spell_said(message)
    return {"role": message.role, "content": write_content(message.parts, _write_block)}


def _spell_result(message: Message) -> Fields:
    if len(message.parts) != 1 or not isinstance(message.parts[0], ToolResult):
        raise WireError("a tool message carries exactly one result", hint="send one message for each result")
    result = message.parts[0]
    return {
        "role": "tool",
        "tool_call_id": result.call_id,
        "content": write_content(result.parts, _write_block),
    }


def _spell_said(message: Message) -> Fields:
    origin = message.origin
    keys = read(FIELDS, origin.raw) if origin else {}
    refusals = [part for part in message.parts if _is_refusal(part)] if "refusal" in keys else []
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    rest = [
        part for part in message.parts if part not in refusals and not isinstance(part, ToolCall | Reasoning)
    ]
    fields: Fields = {"role": "assistant", "content": write_content(rest, _write_block, empty=None)}
    if refusals:
        fields["refusal"] = "\n".join(part.text for part in refusals if isinstance(part, Text))
    elif "refusal" in keys:
        fields["refusal"] = None
    if calls:
        fields["tool_calls"] = each(_write_call, calls, "tool_calls")
    return {**fields, **_spell_thoughts(thoughts, keys)}


def _spell_thoughts(thoughts: list[Reasoning], keys: dict[str, Raw]) -> Fields:
    if any(thought.sealed or thought.signature for thought in thoughts):
        raise misplaced(thoughts[0], "Chat Completions")
    text = "\n".join(thought.text for thought in thoughts)
    names = [name for name in _REASONING if name in keys] or _REASONING[:1]
    return dict.fromkeys(names, text) if thoughts else {}


def _is_refusal(part: Part) -> bool:
    return isinstance(part, Text) and part.raw is not None and kind_of(part.raw) == "refusal"


def _write_block(part: Part) -> Raw:
    return write_block(part, _block, _spell_block)


def _write_call(part: Part) -> Raw:
    return write_block(part, _call, _spell_call)


def _spell_block(part: Part) -> Fields:
    if isinstance(part, Text):
        key = "refusal" if _is_refusal(part) else "text"
        return {"type": key, key: part.text}
    if isinstance(part, Image) and not part.file_id:
        return {"type": "image_url", "image_url": {"url": join_url(part)}}
    if isinstance(part, File) and not (part.url or part.text):
        return _spell_file(part)
    raise misplaced(part, "Chat Completions")


def _spell_call(call: Part) -> Fields:
    if not isinstance(call, ToolCall) or call.kind not in ("function", "custom"):
        raise misplaced(call, "Chat Completions")
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
