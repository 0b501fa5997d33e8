"""Codec of OpenAI Chat Completions: messages with `content`, and beside it `tool_calls`, `refusal` and reasoning.

The fields beside the content become parts around it, in the order in which a model writes them: reasoning,
content, refusal, calls. The block of such a part is an object of its one field (`{"refusal": …}`). It has
no `type`, so it cannot be mistaken for a block of the content, and goes back into its field.

`function_call`, the predecessor of tool calls, has no id that a result could name: it is opaque and passes
unchanged.

Both OpenAI formats carry bytes as a data URL in an address field; `split_url` and `join_url` read and write it.
"""

from __future__ import annotations

from typing import TypeAlias, TypedDict

import msgspec
from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import (
    File,
    Image,
    Media,
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
from refold.wire.error import answer_error
from refold.wire.json_codec import (
    FIELDS,
    LONG_TEXT,
    NULL,
    Data,
    Fields,
    Json,
    each,
    is_null,
    kind_of,
    misplaced,
    read,
    read_block,
    read_long_text,
    read_messages,
    text_of,
    too_many,
    word,
    write,
    write_block,
    write_content,
)
from refold.wire.sse import CallDelta, Delta, Pieces, ReasoningDelta, ServerSentEvent, TextDelta

_BASE64 = ";base64"


class MediaLocation(TypedDict, total=False):
    """The fields of `Media` that locate the bytes."""

    media_type: str
    data: str
    url: str
    file_id: str


def split_url(url: str) -> MediaLocation:
    """The bytes of a base64 data URL; any other address stays an address."""
    head, comma, data = url.removeprefix("data:").partition(",")
    if comma and url.startswith("data:") and head.endswith(_BASE64):
        return {"media_type": head.removesuffix(_BASE64), "data": data}
    return {"url": url}


def join_url(media: Media) -> str:
    """The address, or a data URL of the bytes (the bytes alone if their type is unknown)."""
    if media.data and media.media_type:
        return f"data:{media.media_type}{_BASE64},{media.data}"
    return media.data or media.url


# Blocks of a content, and tool calls

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
    """Mistral accepts the address alone."""

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
    """An address in an object, or alone if it came alone."""
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


# Reasoning: OpenAI's own format has no field for it, so other servers' fields are read

_PLAIN = ("reasoning_content", "reasoning")
_SIGNED = ("reasoning_details", "thinking_blocks")


class Thoughts(Struct, gc=False):
    """The fields that hold reasoning."""

    reasoning_content: Raw = NULL
    reasoning: Raw = NULL
    reasoning_details: Raw = NULL
    thinking_blocks: Raw = NULL

    def fields(self) -> dict[str, Raw]:
        """The fields that are present, in order of precedence."""
        all_fields = {name: getattr(self, name) for name in (*_PLAIN, *_SIGNED)}
        return {name: raw for name, raw in all_fields.items() if raw is not NULL}

    def thoughts(self) -> tuple[Reasoning, ...]:
        """The reasoning in the fields: one part, or none."""
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
    """One element of a signed list, with the field names of either server."""

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
    """An unreadable value is an empty piece, so that the field can still be left out."""
    try:
        return _PIECES.decode(raw) or []
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return [_Piece()]


def spell_thoughts(message: Message) -> Fields:
    """The fields of a message's reasoning: unchanged, or none of them if the reasoning was removed."""
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
    """The fields with the text that was read. A different text under the other name stays."""
    said = {name: _string(raw) for name, raw in fields.items() if name in _PLAIN}
    read_from = [name for name, text in said.items() if known and text == known[0].text]
    return read_from or [*said][:1] or [*_PLAIN[:1]]


_ROLES: dict[str, Role] = {"system": "system", "developer": "developer", "user": "user"}


class _Item(Thoughts, gc=False, kw_only=True):
    role: str
    content: str | list[Raw] | None = None
    tool_calls: list[Raw] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    function_call: Raw = NULL


class _LongItem(_Item, gc=False, kw_only=True):
    content: Raw = NULL  # type: ignore[assignment]


_ITEM = Decoder(_Item)
_LONG_ITEM = Decoder(_LongItem)
_ALL_ITEMS = Decoder(list[_Item])


def decode_items(raws: list[Raw], array: Data) -> tuple[Message, ...]:
    """All messages of an array, read in one pass; `raws` are its elements."""
    items = read_messages(_ALL_ITEMS, array)
    return each(_message, zip(raws, items, strict=True))


def decode_item(raw: Raw) -> Message:
    item = _read_long_item(raw) if len(raw) > LONG_TEXT else None
    return _message((raw, item or read_messages(_ITEM, raw)))


def _read_long_item(raw: Raw) -> _Item | None:
    """An item whose content is a long text; None for any other."""
    try:
        item = read_messages(_LONG_ITEM, raw)
    except WireError:
        return None
    text = read_long_text(item.content)
    item.content = text  # type: ignore[assignment]
    return item if text is not None else None


def _message(pair: tuple[Raw, _Item]) -> Message:
    raw, item = pair
    origin = Origin("chat", raw)
    if item.role == "assistant":
        return Message("assistant", _assistant_parts(item), origin)
    if item.role == "tool":
        if item.tool_call_id is None:
            raise WireError("is missing", place="tool_call_id", hint="say which call this result answers")
        return Message("tool", (ToolResult(item.tool_call_id, _required_parts(item.content)),), origin)  # type: ignore[arg-type]
    role = _ROLES.get(item.role)
    if role is None:
        raise _unknown_role(item.role)
    return Message(role, _required_parts(item.content), origin)


def _unknown_role(role: str) -> WireError:
    if role == "function":
        return WireError(
            "`function` messages are no longer in use",
            place="role",
            hint="send a `tool` message with a tool_call_id",
        )
    return WireError("unknown role", place="role", hint="use system, developer, user, assistant or tool")


def _required_parts(content: str | list[Raw] | None) -> tuple[Part, ...]:
    """The parts of a required content."""
    if isinstance(content, str):
        return (Text(content),) if content else ()
    if content is None:
        hint = "only an assistant message may have no content"
        raise WireError("is missing or null", place="content", hint=hint)
    return each(decode_block, content, "content")


def _assistant_parts(item: _Item) -> tuple[Part, ...]:
    """The parts of an assistant message."""
    parts: list[Part] = [*item.thoughts()]
    if item.content is not None:
        parts += _required_parts(item.content)
    if item.refusal:
        parts.append(Text(item.refusal, raw=write({"refusal": item.refusal})))
    if not is_null(item.function_call):
        parts.append(Opaque("function_call", raw=write({"function_call": item.function_call})))
    if item.tool_calls:
        parts += each(decode_call, item.tool_calls, "tool_calls")
    return tuple(parts)


def spell(message: Message) -> Fields:
    """The fields of a message, with the spelling of its origin if it has one."""
    if message.role == "tool":
        return _spell_result(message)
    if message.role == "assistant":
        return _spell_said(message)
    return {"role": message.role, "content": write_content(message.parts, encode_block)}


def _spell_result(message: Message) -> Fields:
    if len(message.parts) != 1 or not isinstance(message.parts[0], ToolResult):
        raise WireError("a tool message carries exactly one result", hint="send one message for each result")
    result = message.parts[0]
    return {
        "role": "tool",
        "tool_call_id": result.call_id,
        "content": write_content(result.parts, encode_block),
    }


def _spell_said(message: Message) -> Fields:
    rest = [part for part in message.parts if not isinstance(part, ToolCall | Reasoning)]
    content = [part for part in rest if not _is_beside(part)]
    # Without calls or a refusal beside it, a missing content is refused, and an empty one is not.
    empty = None if message.calls or len(content) < len(rest) else ""
    fields: Fields = {"role": "assistant", "content": write_content(content, encode_block, empty=empty)}
    if message.calls:
        fields["tool_calls"] = each(encode_call, message.calls, "tool_calls")
    return {**fields, **_spell_beside(message), **spell_thoughts(message)}


def _spell_beside(message: Message) -> Fields:
    beside = [part for part in message.parts if _is_beside(part)]
    fields: Fields = {}
    for part in beside:
        fields |= _fields_of(part)
    refusals = [part.text for part in beside if isinstance(part, Text)]
    if refusals or (message.origin is not None and "refusal" in read(FIELDS, message.origin.raw)):
        fields["refusal"] = "\n".join(refusals) or None
    return fields


def _is_beside(part: Part) -> bool:
    """True if the part stood in a field of its own, not in the content."""
    fields = _fields_of(part) if isinstance(part, Text | Opaque) else {}
    return "type" not in fields and ("refusal" in fields or "function_call" in fields)


def _fields_of(part: Part) -> dict[str, Raw]:
    return read(FIELDS, part.raw) if part.raw is not None else {}


# Streams: every chunk holds the new pieces of one message

_DONE = b"[DONE]"
_WHOLE = frozenset({"id", "type", "role", "name", "format", "signature"})
"""Texts that come in one piece; some servers repeat them in every chunk."""
_LISTS = ("reasoning_details", "thinking_blocks")
_THOUGHTS = ("reasoning_content", "reasoning")
_REASONED = frozenset((*_THOUGHTS, *_LISTS))
_SAID = ("text", "summary", "thinking")
_MAX_DEPTH = 6
"""Deeper than any field that grows: `tool_calls[0].function.arguments`."""

MAX_ELEMENTS = 512
"""Calls of one reply, or pieces of its reasoning: several times the number in any tool loop."""

Growing = dict[str, object]


class _Choice(Struct, gc=False):
    index: int | None = None
    delta: dict[str, object] | None = None
    finish_reason: Raw = NULL
    error: Raw = NULL


class _Chunk(Struct, gc=False):
    id: Raw = NULL
    model: Raw = NULL
    usage: Raw = NULL
    error: Raw = NULL
    choices: list[_Choice] | None = None


_CHUNK = Decoder(_Chunk)


class ChatFold:
    def __init__(self) -> None:
        self.is_whole = self.is_over = self.is_failed = False
        self._head: Fields = {}
        self._message: Growing = {"role": "assistant"}
        self._calls: list[Growing] = []
        self._finish = ""

    def take(self, event: ServerSentEvent) -> list[Delta]:
        if event.data.strip() == _DONE:
            self.is_whole = self.is_over = True
            return []
        chunk = read(_CHUNK, event.data)
        choices = chunk.choices or ()
        choice = choices[0] if len(choices) == 1 else None
        if choice is None or choice.index:
            choice = next((choice for choice in choices if not choice.index), None)
        if chunk.error != NULL or (choice is not None and choice.error != NULL):
            self.is_failed = True
        elif choice is None and chunk.usage == NULL:
            self.is_failed = answer_error(event.data).is_error
        if self.is_failed:
            return []
        self._update_head(chunk)
        return self._take_choice(choice) if choice is not None else []

    def _update_head(self, chunk: _Chunk) -> None:
        """Update the fields of the whole reply. The last of several usage reports is complete."""
        for key, raw in (("id", chunk.id), ("model", chunk.model), ("usage", chunk.usage)):
            if raw != NULL:
                self._head[key] = raw

    def _take_choice(self, choice: _Choice) -> list[Delta]:
        if choice.finish_reason != NULL and (finish := word(choice.finish_reason)):
            self._finish, self.is_whole = finish, True
        delta = choice.delta or {}
        deltas = _text_deltas(delta)
        if not _REASONED.isdisjoint(delta):
            deltas = [*_reasoning_deltas(delta), *deltas]
        calls = delta.pop("tool_calls", None)
        if isinstance(calls, list):
            deltas += [self._call(call) for call in calls if isinstance(call, dict)]
        delta.pop("role", None)
        _merge_delta(self._message, delta)
        return deltas

    def _call(self, call: Growing) -> CallDelta:
        slot = _slot(self._calls, call)
        _merge_delta(slot, call)
        spoken = call.get("function") or call.get("custom")
        spoken = spoken if isinstance(spoken, dict) else {}
        written = spoken.get("arguments", spoken.get("input"))
        if isinstance(written, dict):  # some servers send the object itself
            written = msgspec.json.encode(written).decode()
        at = next(index for index, known in enumerate(self._calls) if known is slot)
        return CallDelta(
            at, _text_or_empty(call.get("id")), _text_or_empty(spoken.get("name")), _text_or_empty(written)
        )

    def body(self) -> bytes:
        calls = [{key: call[key] for key in call if key != "index"} for call in self._calls]
        message = {**self._message, "tool_calls": calls} if calls else self._message
        choice = {"index": 0, "message": message, "finish_reason": self._finish or None}
        return msgspec.json.encode({**self._head, "choices": [choice]}, enc_hook=str)


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def _reasoning_deltas(delta: Growing) -> list[Delta]:
    """The new reasoning text. Servers may send one text under several names at once."""
    texts = [_text_or_empty(delta.get(name)) for name in _THOUGHTS]
    for name in _LISTS:
        listed = delta.get(name)
        pieces = [piece for piece in listed if isinstance(piece, dict)] if isinstance(listed, list) else []
        texts.append("".join(_text_or_empty(piece.get(key)) for piece in pieces for key in _SAID))
    text = next(filter(None, texts), "")
    return [ReasoningDelta(text)] if text else []


def _text_deltas(delta: Growing) -> list[Delta]:
    content = delta.get("content")
    if isinstance(content, list):  # a list of blocks: their text counts
        blocks = [block for block in content if isinstance(block, dict)]
        content = delta["content"] = "".join(_text_or_empty(block.get("text")) for block in blocks)
        refused = "".join(_text_or_empty(block.get("refusal")) for block in blocks)
        delta |= {"refusal": refused} if refused else {}
    texts = (content, delta.get("refusal"))
    return [TextDelta(text) for text in texts if text and isinstance(text, str)]


def _merge_delta(held: Growing, delta: Growing, depth: int = _MAX_DEPTH) -> None:
    for key, value in delta.items():
        known = held.get(key)
        if value is None:
            held.setdefault(key, None)
        elif isinstance(value, str):
            _merge_text(held, key, value)
        elif isinstance(value, list) and key in _LISTS:
            held[key] = _merge_list(known if isinstance(known, list) else [], value, depth)
        elif isinstance(value, list) and isinstance(known, list):
            known.extend(value)
        elif isinstance(value, dict) and depth:
            held[key] = known = known if isinstance(known, dict) else {}
            _merge_delta(known, value, depth - 1)
        else:
            held[key] = value


def _merge_text(held: Growing, key: str, value: str) -> None:
    known = held.get(key)
    if key in _WHOLE:
        held[key] = known or value if key != "signature" else value or known
    elif isinstance(known, Pieces):
        known.add(value)
    else:
        held[key] = Pieces(value)


def _merge_list(held: list[Growing], delta: list[object], depth: int) -> list[Growing]:
    for item in delta:
        if isinstance(item, dict):
            _merge_delta(_slot(held, item), item, depth - 1)
    return held


def _slot(held: list[Growing], item: Growing) -> Growing:
    """The element that an item continues, or a new one."""
    index = item.get("index")
    for known in reversed(held):
        if known.get("index") == index and _continues(known, item):
            return known
        if index is None and not item.get("id"):
            break  # without a number it continues the last one
    if len(held) >= MAX_ELEMENTS:
        raise too_many("calls or thoughts", MAX_ELEMENTS)
    new: Growing = {}
    held.append(new)
    return new


def _continues(known: Growing, item: Growing) -> bool:
    """True if it is the same element. A signature ends a piece of reasoning that has no number."""
    if item.get("index") is None and known.get("signature"):
        return False
    return all(not item.get(key) or known.get(key) in (None, "", item[key]) for key in ("id", "type"))
