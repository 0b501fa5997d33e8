"""Decodes and encodes request bodies: the messages, one by one or as a list, and the fields sent with every call.

A body is its top-level fields in their order, each as raw JSON. Decoding reads a few of them; encoding
replaces the list of messages and leaves the other fields as they came, byte for byte. If nothing changed,
the body itself is sent.

    Chat         messages: [system… | the rest]         the leading system and developer messages are `system`
    Responses    instructions, input: [system… | …]     the same, after the instructions
    Anthropic    system, messages: [all]

A Responses request may continue a conversation that the provider stores; then it need not contain
messages.

An unchanged message is sent as the bytes it came as. Otherwise the codec of its format spells it, and the spelling is patched into
those bytes, or stands alone for a message that Refold made. A message can only be encoded in the format it came from: signatures and
blocks of one provider have no meaning in another format, so `translate` must convert the message first.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec import Raw, Struct, structs
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import DialectName, Message, Opaque, Origin, Part, Text, holds_compaction
from refold.model.window import Breakpoint, FixedFields, Tool, Ttl, Window
from refold.wire import anthropic, chat, responses
from refold.wire.anthropic import decode_block, encode_block
from refold.wire.json_codec import (
    FIELDS,
    MAX_BODY_BYTES,
    MAX_MESSAGES,
    NULL,
    Data,
    Fields,
    Json,
    check_body,
    each,
    is_null,
    is_object,
    misplaced,
    patch,
    read,
    read_list,
    strip,
    text_of,
    too_many,
    within,
    write,
)

# One message, in any of the three formats


class Codec(Protocol):
    """The codec of one format's items."""

    def decode_items(self, raws: list[Raw], array: Data) -> tuple[Message, ...]: ...

    def decode_item(self, raw: Raw) -> Message: ...

    def spell(self, message: Message) -> Fields: ...


MAX_AT_ONCE = 1024 * 1024
"""Bytes that are decoded in one call, in which no other thread runs. The items of a larger list are decoded one by one."""
_CODECS: dict[DialectName, Codec] = {"chat": chat, "responses": responses, "anthropic": anthropic}


def decode_message(raw: Raw | bytes, dialect: Dialect) -> Message:
    """One element of a request's list of messages.

    Raises:
        WireError: with a place relative to the message, such as `content[0]`.
    """
    return _CODECS[dialect.name].decode_item(strip(raw))


def decode_messages(array: Data, dialect: Dialect) -> tuple[Message, ...]:
    """A whole list of messages; places are relative to the list, such as `[3].content[0]`."""
    raws = read_list(array)
    if len(array) > MAX_AT_ONCE:
        return decode_each(raws, dialect)
    _check_number(raws)
    return _CODECS[dialect.name].decode_items(raws, array)


def decode_each(raws: list[Raw], dialect: Dialect) -> tuple[Message, ...]:
    """The elements of a large list of messages."""
    _check_number(raws)
    return each(_CODECS[dialect.name].decode_item, raws)


def _check_number(raws: list[Raw]) -> None:
    if len(raws) > MAX_MESSAGES:
        raise too_many("messages", MAX_MESSAGES)


def encode_message(message: Message, dialect: Dialect) -> Raw:
    """The JSON of one message: an element of the list of messages, or the value of the field that it came from.

    Raises:
        WireError: the format cannot carry the message, or the message came from another format.
    """
    origin = _own_origin(message, dialect)
    if origin is None:
        return write(_CODECS[dialect.name].spell(message))
    return _rebuild(message, origin, dialect) if origin.edited else origin.raw


def encode_item(message: Message, dialect: Dialect, original: Message | None = None) -> Raw:
    """The JSON of one message as an element of the list of messages, even if it came as a plain string. `original` is the message
    before it was changed, if that is known: otherwise its JSON is decoded again.
    """
    origin = _own_origin(message, dialect)
    if origin is None:
        return write(_CODECS[dialect.name].spell(message))
    if not is_object(origin.raw):
        return write(_CODECS[dialect.name].spell(structs.replace(message, origin=None)))
    return _rebuild(message, origin, dialect, original) if origin.edited else origin.raw


def with_own_json(message: Message, dialect: Dialect, original: Message | None = None) -> Message:
    """A changed message with the JSON that it is sent as for its origin, so that it is written only once. Others, and
    those that cannot be written, are returned as they are. `original` is as for `encode_item`.
    """
    origin = message.origin
    if origin is None or not origin.edited or not is_object(origin.raw):
        return message
    try:
        return structs.replace(message, origin=Origin(dialect.name, encode_item(message, dialect, original)))
    except WireError:
        return message


def encode_prompt(message: Message, dialect: Dialect) -> Raw:
    """The JSON of a system message as the value of `system` or `instructions`."""
    origin = _own_origin(message, dialect)
    return origin.raw if origin is not None and not origin.edited else write(_value(message, dialect))


def _own_origin(message: Message, dialect: Dialect) -> Origin | None:
    origin = message.origin
    if origin is not None and origin.dialect != dialect.name:
        raise WireError(
            f"a message of the {origin.dialect} format cannot leave as {dialect.name}",
            hint="rebuild it from its text with refold.model.message",
        )
    return origin


def _rebuild(message: Message, origin: Origin, dialect: Dialect, original: Message | None = None) -> Raw:
    if not is_object(origin.raw):
        return write(_value(message, dialect))
    codec = _CODECS[dialect.name]
    if original is None or not _is_as_decoded(original, origin.raw):
        original = codec.decode_item(origin.raw)
    before, after = codec.spell(original), codec.spell(message)
    if before.get("type") != after.get("type"):
        raise WireError("the type of an item cannot change", hint="leave it out and build a new message")
    return patch(origin.raw, before, after)


def _is_as_decoded(message: Message, raw: Raw) -> bool:
    """True if the message is what this JSON was decoded to."""
    return message.origin is not None and message.origin.raw is raw and not message.origin.edited


def _value(message: Message, dialect: Dialect) -> Json:
    """The value of a field that holds a message outside of the list."""
    if dialect.name == "anthropic":
        return anthropic.spell_system(message)
    strange = next((part for part in message.parts if not isinstance(part, Text)), None)
    if strange is not None:
        raise misplaced(strange, "a plain string")
    return message.text


# Writes cache breakpoints into the blocks of a window. A breakpoint is one more field of a block.
# The block is encoded, given the field and decoded again; all other values of the window stay the
# same, so every encoder of windows writes breakpoints too.


def write_breakpoints(window: Window) -> Window:
    """The window with its breakpoints on its blocks. The same window if it has none.

    Raises:
        WireError: the format has no breakpoints, or a block that should carry one cannot be written.
    """
    if not window.breakpoints:
        return window
    dialect = window.fixed.dialect
    if dialect.name != "anthropic":
        raise WireError(f"{dialect.name} has no cache breakpoints", hint="place none for this format")
    prompt, sent = [*window.system], [*window.sent]
    for mark in window.breakpoints:
        if mark.index is None:
            prompt[0] = _marked(prompt[0], mark, "system")
        else:
            place = f"{dialect.messages_key}[{mark.index}].content"
            sent[mark.index] = _marked(sent[mark.index], mark, place)
    marked = structs.replace(
        window, fixed=structs.replace(window.fixed, system=tuple(prompt)), block="", breakpoints=()
    )
    first, last = len(window.before), len(window.before) + window.opening
    return structs.replace(
        marked,
        messages=tuple(sent[window.place(index)] for index in range(len(window.messages))),
        summaries=tuple(sent[last : last + len(window.summaries)]),
        before=tuple(sent[:first]),
    )


def _marked(message: Message, mark: Breakpoint, place: str) -> Message:
    parts = list(message.parts)
    try:
        parts[mark.part] = _with_mark(parts[mark.part], mark.ttl, _only_string(message))
    except WireError as error:
        raise within(error, f"{place}[{mark.part}]") from None
    return message.with_parts(tuple(parts))


def _with_mark(part: Part, ttl: Ttl, spelled: Raw | None) -> Part:
    """The part with a breakpoint. Five minutes is the default and is not written. A string that becomes a block
    keeps its spelling.
    """
    control: Fields = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    block = read(FIELDS, encode_block(part))
    text: Fields = {} if spelled is None else {"text": spelled}
    fields: Fields = {**block, **text, "cache_control": control}
    return decode_block(write(fields))


def _only_string(message: Message) -> Raw | None:
    """The JSON string that is the whole content of a message, if it is unchanged."""
    origin = message.origin
    if origin is None or origin.edited or origin.dialect != "anthropic":
        return None
    raw = read(FIELDS, origin.raw).get("content", NULL) if is_object(origin.raw) else origin.raw
    return raw if bytes(memoryview(raw)[:1]) == b'"' else None


# Tool definitions of the three formats

_NONE = Raw(b"")


class _Inner(Struct, gc=False):
    name: str
    description: str | None = None
    parameters: Raw = _NONE


class _Definition(Struct, gc=False):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: Raw = _NONE
    input_schema: Raw = _NONE
    function: _Inner | None = None
    custom: _Inner | None = None


_DEFINITION = Decoder(_Definition)


def decode_tools(array: Raw) -> tuple[Tool, ...]:
    """The value of a request's `tools`; places are relative to it."""
    return () if is_null(array) else each(_tool, read_list(array))


def _tool(raw: Raw) -> Tool:
    tool = read(_DEFINITION, raw)
    inner = tool.function or tool.custom
    if inner is not None:
        return Tool(inner.name, inner.description or "", text_of(inner.parameters), raw)
    name = tool.name or tool.type
    if not name:
        raise WireError("is missing", place="name", hint="a tool has a name, or the type of a provider's own")
    schema = text_of(tool.input_schema) or text_of(tool.parameters)
    return Tool(name, tool.description or "", schema, raw)


T = TypeVar("T")

_STRING: Decoder[str | None] = Decoder(str | None)
_COUNT: Decoder[int | float | None] = Decoder(int | float | None)
_FLAG: Decoder[bool | None] = Decoder(bool | None)
OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""The fields for the output limit; the first one that a request has counts."""
_PROMPTS = {"anthropic": "system", "responses": "instructions"}
_ONE_HOUR = Raw(b'"1h"')
_CONTINUES = ("previous_response_id", "conversation", "prompt")
"""Fields by which a Responses request continues stored messages."""


class Request(Struct, frozen=True):
    dialect: Dialect
    messages: tuple[Message, ...]
    """The conversation after the system prompt."""
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    model: str = ""
    max_output: int | None = None
    stream: bool = False
    fields: dict[str, Raw] = {}
    """All top-level fields, in their order."""
    body: bytes = b""

    @property
    def offset(self) -> int:
        """Number of system messages in the list: `messages[i]` is number `offset + i` on the wire."""
        return len(self.system) - (_prompt_key(self.fields, self.dialect) is not None)

    @property
    def fixed(self) -> FixedFields:
        return FixedFields(self.dialect, self.system, self.tools, _automatic(self.fields, self.dialect))

    @property
    def continues(self) -> bool:
        """True if the provider stores messages that are not in the request. A result may answer a call of those."""
        if self.dialect.name != "responses":
            return False
        parts = (part for message in self.messages for part in message.parts)
        references = (isinstance(part, Opaque) and part.kind == "item_reference" for part in parts)
        return any(not is_null(self.fields.get(key, NULL)) for key in _CONTINUES) or any(references)


def decode_request(body: bytes, dialect: Dialect, *, max_body_bytes: int = MAX_BODY_BYTES) -> Request:
    """Read a request body.

    Raises:
        WireError: the body is not a request of this format; `place` says where.
    """
    check_body(body, max_body_bytes)
    return request_of(read(FIELDS, body), dialect, body)


def request_of(fields: dict[str, Raw], dialect: Dialect, body: bytes) -> Request:
    prompt, items = _prompt_of(fields, dialect), _items_of(fields, dialect)
    first = 0 if dialect.name == "anthropic" else _leading(items)
    counts = (_count(fields, key) for key in OUTPUT_FIELDS)
    return Request(
        dialect=dialect,
        messages=items[first:],
        system=prompt + items[:first],
        tools=_tools_of(fields),
        model=_field(fields, "model", _STRING) or "",
        max_output=next((count for count in counts if count is not None), None),
        stream=_field(fields, "stream", _FLAG) or False,
        fields=fields,
        body=body,
    )


def fixed_of(fields: dict[str, Raw], dialect: Dialect) -> FixedFields:
    """The parts of a request besides the conversation. Of its list of messages only the leading system messages are read.

    Raises:
        WireError: it is not a request of this format.
    """
    raw = fields.get(dialect.messages_key, NULL)
    items = () if is_null(raw) or dialect.name == "anthropic" else decode_messages(raw, dialect)
    system = _prompt_of(fields, dialect) + items[: _leading(items)]
    return FixedFields(dialect, system, _tools_of(fields), _automatic(fields, dialect))


def encode_fixed(fixed: FixedFields) -> bytes:
    """A request without messages: its system prompt and its tools.

    Raises:
        WireError: a system message cannot be written in this format; `place` names it.
    """
    tools = [tool.raw for tool in fixed.tools if tool.raw is not None]
    fields: dict[str, Raw] = {"tools": write(tools)} if tools else {}
    if not fixed.system:
        return bytes(write({**fields}))
    return encode_request(Request(fixed.dialect, (), fields=fields), (), system=fixed.system)


def encode_request(
    request: Request, messages: Sequence[Message] | None = None, *, system: Sequence[Message] | None = None
) -> bytes:
    """The body to send, with other messages or another system prompt if given.

    Raises:
        WireError: a message cannot be written in this format; `place` names it.
    """
    system = request.system if system is None else system
    messages = request.messages if messages is None else messages
    if _are_same(request.system, system) and _are_same(request.messages, messages):
        return request.body
    fields: Fields = {**request.fields}
    prompt, prompt_key, items = leading_prompt(system, request.dialect)
    if prompt is not None:
        fields[prompt_key] = encode_prompt(prompt, request.dialect)
    elif (key := _prompt_key(request.fields, request.dialect)) is not None:
        del fields[key]
    if items or messages or request.dialect.messages_key in fields:
        fields[request.dialect.messages_key] = _write_items([*items, *messages], request.dialect)
    return bytes(write(fields))


def with_output(request: Request, output: int | None) -> Request:
    """The request with a lower output limit, in the fields that it uses itself; None leaves it unchanged."""
    counts = {key: _count(request.fields, key) for key in OUTPUT_FIELDS}
    lower = {
        key: write(output)
        for key, count in counts.items()
        if output is not None and count is not None and count > output
    }
    if not lower:
        return request
    fields, end = {**request.fields, **lower}, b"\n" if request.body.endswith(b"\n") else b""
    return structs.replace(request, fields=fields, max_output=output, body=bytes(write({**fields})) + end)


def encode_window(request: Request, window: Window) -> bytes:
    """The body to send, with a window in place of the request's own messages and system prompt.

    Raises:
        WireError: a message cannot be written in this format; `place` names it.
    """
    window = write_breakpoints(window)
    return encode_request(request, window.sent, system=window.system)


def _prompt_key(fields: dict[str, Raw], dialect: Dialect) -> str | None:
    """The field with the first system message, if that is no item of the list."""
    key = _PROMPTS.get(dialect.name)
    return key if key and not is_null(fields.get(key, NULL)) else None


def _prompt_of(fields: dict[str, Raw], dialect: Dialect) -> tuple[Message, ...]:
    key = _prompt_key(fields, dialect)
    if key is None:
        return ()
    try:
        if dialect.name == "anthropic":
            return (anthropic.decode_system(fields[key]),)
        return (responses.decode_text(fields[key], "system"),)
    except WireError as error:
        raise within(error, key) from None


def _items_of(fields: dict[str, Raw], dialect: Dialect) -> tuple[Message, ...]:
    key = dialect.messages_key
    raw = fields.get(key, NULL)
    if is_null(raw):
        return _none_of(fields, dialect, "is missing")
    try:
        if dialect.name == "responses" and bytes(memoryview(raw)[:1]) == b'"':
            return (responses.decode_text(raw, "user"),)
        items = decode_messages(raw, dialect)
    except WireError as error:
        raise within(error, key) from None
    return items or _none_of(fields, dialect, "holds no message")


def _none_of(fields: dict[str, Raw], dialect: Dialect, problem: str) -> tuple[Message, ...]:
    """No messages, if the request may have none."""
    if dialect.name == "responses" and any(not is_null(fields.get(key, NULL)) for key in _CONTINUES):
        return ()
    hint = f"a {dialect.name} request has its messages there, at least one of the user's"
    raise WireError(problem, place=dialect.messages_key, hint=hint)


def _leading(items: tuple[Message, ...]) -> int:
    """The number of system messages at the head of the list."""
    later = (index for index, item in enumerate(items) if item.role not in ("system", "developer"))
    return next(later, len(items))


def _tools_of(fields: dict[str, Raw]) -> tuple[Tool, ...]:
    try:
        return decode_tools(fields.get("tools", NULL))
    except WireError as error:
        raise within(error, "tools") from None


def _automatic(fields: dict[str, Raw], dialect: Dialect) -> Ttl | None:
    """The lifetime of the automatic cache breakpoint, if the client sets one for the whole request."""
    raw = fields.get("cache_control", NULL)
    if not dialect.max_breakpoints or is_null(raw):
        return None
    return "1h" if is_object(raw) and read(FIELDS, raw).get("ttl") == _ONE_HOUR else "5m"


def _field(fields: dict[str, Raw], key: str, decoder: Decoder[T]) -> T:
    return read(decoder, fields.get(key, NULL), key)


def _count(fields: dict[str, Raw], key: str) -> int | None:
    """A number of tokens; some clients write it as a float."""
    count = _field(fields, key, _COUNT)
    if count is None:
        return None
    if count < 0 or count != int(count):
        raise WireError("expected a whole number of tokens", place=key)
    return int(count)


def _are_same(old: Sequence[Message], new: Sequence[Message]) -> bool:
    return len(old) == len(new) and all(map(_is_same, old, new))


def _is_same(old: Message, new: Message) -> bool:
    if old is new:
        return True
    if old.origin is None or new.origin is None or new.origin.edited:
        return False
    return old.origin.raw == new.origin.raw


def leading_prompt(
    system: Sequence[Message], dialect: Dialect
) -> tuple[Message | None, str, Sequence[Message]]:
    """The system message that has a field of its own, the name of that field, and the system messages in the list."""
    key = _PROMPTS.get(dialect.name, "")
    if not key or not system:
        return None, key, system
    first, *rest = system
    if dialect.name == "responses":
        return (first, key, rest) if _is_prompt(first) else (None, key, system)
    if rest or not _is_prompt(first):
        raise WireError("has one value", place="system", hint="add a part to the system message instead")
    return first, key, ()


def _is_prompt(message: Message) -> bool:
    """True if the message is the value of a field, or a new one that can be. A developer message has no such field."""
    if message.origin is None:
        return message.role == "system"
    return not is_object(message.origin.raw)


def _write_items(messages: Sequence[Message], dialect: Dialect) -> Json:
    only = messages[0] if len(messages) == 1 and messages[0].role == "user" else None
    if only and only.origin and not is_object(only.origin.raw):
        return encode_message(only, dialect)
    return each(lambda message: encode_item(message, dialect), messages, dialect.messages_key)


# The header of a request that holds a compaction, or asks for one
BETA = "anthropic-beta"
COMPACTION_BETA = "compact-2026-09-04"
"""The value of the header that a request for a compaction needs, and every request that holds such a compaction."""


def beta_for(messages: Iterable[Message], dialect: Dialect, *, compacts: bool = False) -> str:
    """The beta feature that a request needs: for compactions on request; empty for none."""
    is_needed = dialect.name == "anthropic" and (compacts or any(map(holds_compaction, messages)))
    return COMPACTION_BETA if is_needed else ""


def with_beta(headers: Mapping[str, str], beta: str) -> dict[str, str]:
    """The headers with one more beta feature, besides those that they name."""
    known = [one.strip() for one in headers.get(BETA, "").split(",") if one.strip()]
    return {**headers, BETA: ",".join(known if beta in known else [*known, beta])}


# History that a client resends with every request, decoded incrementally

_BLANKS = re.compile(rb"[ \t\r\n]*+")
_BETWEEN = re.compile(rb"[ \t\r\n,\[]*+")
_PIECE = 256 * 1024
"""Bytes of a view that are copied at a time to be compared."""


class History(Struct, frozen=True):
    """The list of messages of one request: its bytes, and the end of each item in them."""

    array: bytes | memoryview
    """A view of the request's body, if the list is most of a large body: a copy would take as much memory again."""
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ends)

    def item(self, index: int) -> Raw:
        """A copy of the bytes of one item."""
        start = self.ends[index - 1] if index else 0
        return Raw(bytes(self.array[_begin(self.array, start) : self.ends[index]]))


class Reading(Struct, frozen=True):
    """A history and its decoded items, from number `known` on."""

    history: History
    known: int
    messages: tuple[Message, ...]


def read_history(array: bytes | memoryview, dialect: Dialect, before: History | None = None) -> Reading:
    """Read a list of messages, given an earlier version of it. Only items after the common prefix are decoded.

    Raises:
        WireError: an item is no message of this format; the place is relative to the decoded items.
    """
    known = same_items(before, array) if before else 0
    start = before.ends[known - 1] if before and known else 0
    tail = _as_list(array, start) if known else array
    earlier = before.ends[:known] if before else ()
    if not known or len(tail) <= MAX_AT_ONCE:
        messages = decode_messages(tail, dialect)
        return Reading(History(array, (*earlier, *_ends(array, read_list(tail), start))), known, messages)
    raws = read_list(tail)
    ends = _ends(array, raws, start)
    # Views of the request, which is kept anyway, and not of a copy of its end.
    views = [Raw(memoryview(array)[end - len(raw) : end]) for raw, end in zip(raws, ends, strict=True)]
    del raws, tail
    return Reading(History(array, (*earlier, *ends)), known, decode_each(views, dialect))


def same_items(before: History, array: bytes | memoryview) -> int:
    """Number of items at the beginning of a list with the same bytes as before."""
    return bisect_right(before.ends, _same_bytes(before.array, array))


def have_same_start(one: bytes | memoryview, other: bytes | memoryview, size: int) -> bool:
    """True if the first `size` bytes of both are the same."""
    if isinstance(one, bytes) and isinstance(other, bytes):
        return other.startswith(memoryview(one)[:size])
    return _same_bytes(memoryview(one)[:size], other) == size


def _same_bytes(one: bytes | memoryview, other: bytes | memoryview) -> int:
    """Length of the common prefix. A piece at a time, because views cannot be compared fast without a copy."""
    if isinstance(one, bytes) and isinstance(other, bytes):
        return _same_start(one, other)
    most = min(len(one), len(other))
    for at in range(0, most, _PIECE):
        stop = min(at + _PIECE, most)
        same = _same_start(bytes(one[at:stop]), bytes(other[at:stop]))
        if same < stop - at:
            return at + same
    return most


def _same_start(one: bytes, other: bytes) -> int:
    """Length of the common prefix, by bisection, so that each byte is compared about once, and none copied."""
    low, high = 0, min(len(one), len(other))
    view = memoryview(one)
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(view[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _as_list(array: bytes | memoryview, start: int) -> bytes:
    """The rest of a list after one of its items, as a list."""
    start = _end_of(_BLANKS, array, start)
    if array[start : start + 1] == b",":
        return b"".join((b"[", memoryview(array)[start + 1 :]))
    rest = bytes(array[start:])
    return b"[" + rest if rest.startswith(b"]") else rest


def _ends(array: bytes | memoryview, raws: Sequence[Raw], start: int) -> list[int]:
    ends = []
    for raw in raws:
        between = _BETWEEN.match(array, start)
        start = (between.end() if between else start) + len(raw)
        ends.append(start)
    return ends


def _begin(array: bytes | memoryview, start: int) -> int:
    return _end_of(_BETWEEN, array, start)


def _end_of(pattern: re.Pattern[bytes], array: bytes | memoryview, start: int) -> int:
    """Where the characters of a pattern end: there may be megabytes of blanks."""
    found = pattern.match(array, start)
    return found.end() if found else start
