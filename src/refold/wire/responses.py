"""Codec of OpenAI Responses: a flat list of items, in which one reply is several items.

An item is a message with one kind of part. A `message` item has content, a call item is one call, an
output item one result, a reasoning item one piece of reasoning. Every other item (searches, compaction,
references, unknown kinds) is the provider's own and passes unchanged: as the assistant's, or as the
developer's if only a client can have written it.

Two values are no items but plain strings: `instructions`, which is a system prompt, and an `input` that is
a single user message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from refold.wire.chat import join_url, split_url
from refold.wire.error import answer_error
from refold.wire.json_codec import (
    ANY,
    FIELDS,
    NULL,
    Data,
    Fields,
    Json,
    each,
    is_null,
    kind_of,
    misplaced,
    patch,
    read,
    read_block,
    read_content,
    text_of,
    verbatim,
    within,
    write,
    write_block,
    write_content,
)
from refold.wire.sse import CallDelta, Delta, ReasoningDelta, ServerSentEvent, TextDelta

# Blocks of a message, and the outputs of tools

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
    """Output of one command of a shell call."""

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
    return _parts(_required_content(raw, place), place)


def decode_output(kind: str, raw: Raw) -> tuple[Content, ...]:
    """The output of a tool, in any of its shapes."""
    if kind == "computer":
        return (_block(raw),)
    if kind in ("local_shell", "apply_patch"):
        return _parts(read(_TEXT, raw) or "", "")
    output = _required_content(raw, "")
    return each(_chunk, output) if kind == "shell" and isinstance(output, list) else _parts(output, "")


def _required_content(raw: Raw, place: str) -> str | list[Raw]:
    content = read_content(raw, place)
    if content is None:
        raise WireError("is missing or null", place=place, hint="an empty text is allowed")
    return content


def _parts(content: str | list[Raw], place: str) -> tuple[Content, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return each(_block, content, place)


def spell_content(parts: Sequence[Part], text_kind: str, place: str = "content") -> Json:
    """The value of the field at `place`. New text gets the kind of its role."""

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
    # A model's text has a list of annotations; a block that came without one goes back without one.
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


# Calls and outputs, for the tools of clients and those that OpenAI defines

_TODO = ("action", "actions", "operation", "arguments", "input")
"""Fields that hold the arguments of a call."""


class _Function(Struct, gc=False):
    call_id: str
    name: str
    arguments: str = ""

    def call(self) -> ToolCall:
        return ToolCall(self.call_id, self.name, self.arguments)


class _Custom(Struct, gc=False):
    call_id: str
    name: str
    input: str = ""

    def call(self) -> ToolCall:
        return ToolCall(self.call_id, self.name, self.input, "custom")


class _Approval(Struct, gc=False):
    """A request to approve the use of an MCP server's tool; the item's own id names the request."""

    id: str
    name: str
    arguments: str = ""

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, self.arguments, "mcp_approval")


class _Approved(Struct, gc=False):
    approval_request_id: str


class _Action(Struct, gc=False):
    """A call of a tool that the provider defines."""

    type: str
    call_id: str


class _Output(Struct, gc=False):
    type: str
    call_id: str | None = None
    id: str | None = None
    output: Raw = NULL
    status: str | None = None


class _Named(Struct, gc=False):
    call_id: Raw = NULL


_FUNCTION = Decoder(_Function)
_CUSTOM = Decoder(_Custom)
_APPROVAL = Decoder(_Approval)
_APPROVED = Decoder(_Approved)
_ACTION = Decoder(_Action)
_OUTPUT = Decoder(_Output)
_NAMED = Decoder(_Named)


def _action(raw: Raw) -> ToolCall:
    item = read(_ACTION, raw)
    return _own_call(item.type.removesuffix("_call"), item.call_id, raw)


_CALLS: dict[str, Callable[[Raw], ToolCall]] = {
    "function_call": lambda raw: read(_FUNCTION, raw).call(),
    "custom_tool_call": lambda raw: read(_CUSTOM, raw).call(),
    "mcp_approval_request": lambda raw: read(_APPROVAL, raw).call(),
    "computer_call": _action,
    "local_shell_call": _action,
    "shell_call": _action,
    "apply_patch_call": _action,
}
_RESULTS = {
    "function_call_output": "function",
    "custom_tool_call_output": "custom",
    "computer_call_output": "computer",
    "local_shell_call_output": "local_shell",
    "shell_call_output": "shell",
    "apply_patch_call_output": "apply_patch",
}
_APPROVED_TYPE = "mcp_approval_response"
TOOL_TYPES = frozenset({*_CALLS, *_RESULTS, _APPROVED_TYPE})


def decode_tool(kind: str, raw: Raw) -> ToolCall | ToolResult | None:
    """The call or the result in an item; None if it is neither."""
    if kind in _CALLS:
        return _CALLS[kind](raw)
    if kind in _RESULTS:
        return _result(raw)
    if kind == _APPROVED_TYPE:
        return ToolResult(read(_APPROVED, raw).approval_request_id, kind="mcp_approval")
    return _own_tool(kind, raw)


def _result(raw: Raw) -> ToolResult:
    item = read(_OUTPUT, raw)
    kind = _RESULTS[item.type]
    # In one version of the format a local shell's output names its call in `id`, in the other in
    # `call_id`.
    call_id = item.id if item.call_id is None and kind == "local_shell" else item.call_id
    if call_id is None:
        # OpenAI's types let a function's output omit it, but then its call cannot be found.
        raise WireError("is missing", place="call_id", hint="say which call this output answers")
    try:
        parts = decode_output(kind, item.output)
    except WireError as error:
        raise within(error, "output") from None
    return ToolResult(call_id, parts, kind == "apply_patch" and item.status == "failed", kind)


def _own_tool(kind: str, raw: Raw) -> ToolCall | ToolResult | None:
    """A call or result of an unknown tool, recognised by its type and its `call_id`."""
    is_result = kind.endswith("_call_output") or kind == "tool_search_output"
    if not is_result and not kind.endswith("_call"):
        return None
    call_id = _string(read(_NAMED, raw).call_id)
    if not call_id:
        return None  # the provider ran it and keeps call and result together
    if not is_result:
        return _own_call(kind.removesuffix("_call"), call_id, raw)
    text = _string(read(FIELDS, raw).get("output", NULL))
    part = Opaque(kind, raw=raw) if text is None else Text(text)
    return ToolResult(call_id, (part,), kind=kind.removesuffix("_output").removesuffix("_call"))


def _own_call(kind: str, call_id: str, raw: Raw) -> ToolCall:
    fields = read(FIELDS, raw)
    todo = next((fields[key] for key in _TODO if key in fields), None)
    return ToolCall(call_id, kind, text_of(todo) if todo is not None else "", kind)


def _string(raw: Raw) -> str | None:
    return read(_STRING, raw) if bytes(memoryview(raw)[:1]) == b'"' else None


_STRING = Decoder(str)


def spell_call(call: ToolCall, origin: Origin | None) -> Fields:
    if call.kind == "function":
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    if call.kind == "custom":
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
    if call.kind == "mcp_approval":
        fields: Fields = {"type": "mcp_approval_request", "id": call.id, "name": call.name}
        return {**fields, "arguments": call.arguments}
    fields = {"type": f"{call.kind}_call", "call_id": call.id}
    if origin is None and fields["type"] not in _CALLS:
        raise misplaced(call, _NAME)
    if not call.arguments:
        return fields
    todo = verbatim(call.arguments)
    read(ANY, todo, "action")
    return {**fields, _todo_key(call, origin): todo}


def _todo_key(call: ToolCall, origin: Origin | None) -> str:
    if call.kind == "computer":
        return "actions" if call.arguments.startswith("[") else "action"
    if f"{call.kind}_call" in _CALLS:
        return "operation" if call.kind == "apply_patch" else "action"
    came = read(FIELDS, origin.raw) if origin else {}
    key = next((key for key in _TODO if key in came), None)
    if key is None:
        raise misplaced(call, _NAME)
    return key


def spell_result(result: ToolResult, origin: Origin | None) -> Fields:
    if result.kind == "mcp_approval":
        if result.parts:
            raise misplaced(result.parts[0], "an approval")
        return {"type": _APPROVED_TYPE, "approval_request_id": result.call_id}
    kind = "custom_tool_call_output" if result.kind == "custom" else f"{result.kind}_call_output"
    if kind not in _RESULTS:
        return _spell_own_result(result, origin)
    fields: Fields = {"type": kind, "call_id": result.call_id, "output": spell_output(result)}
    if result.kind == "apply_patch":
        fields["status"] = "failed" if result.is_error else "completed"
    return fields


def _spell_own_result(result: ToolResult, origin: Origin | None) -> Fields:
    """The output of an unknown tool: a text may change, other outputs may not."""
    kind = kind_of(origin.raw) if origin else ""
    known = decode_tool(kind, origin.raw) if origin else None
    if not isinstance(known, ToolResult) or known.kind != result.kind:
        raise misplaced(result, _NAME)
    fields: Fields = {"type": kind, "call_id": result.call_id}
    if result.parts == known.parts:
        return fields
    if any(not isinstance(part, Text) for part in (*known.parts, *result.parts)):
        raise WireError("this output cannot be changed", hint="leave out the call and its output")
    return {**fields, "output": result.text}


_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_CLIENT_TYPES = frozenset({"additional_tools", "compaction_trigger", "configuration_update"})
ITEM_TYPES = frozenset({"message", "reasoning", *TOOL_TYPES, *_CLIENT_TYPES})


class _Probe(Struct, gc=False):
    type: str | None = None


class _Said(Struct, gc=False):
    role: str | None = None
    content: Raw = NULL
    id: Raw = NULL


class _Line(Struct, gc=False):
    text: str


class _Reasoning(Struct, gc=False):
    summary: list[_Line] | None = None
    content: list[_Line] | None = None
    encrypted_content: str | None = None

    def part(self, raw: Raw) -> Reasoning:
        lines = [*(self.summary or ()), *(self.content or ())]
        return Reasoning("\n".join(line.text for line in lines), sealed=self.encrypted_content or "", raw=raw)


_PROBE = Decoder(_Probe)
_PROBES = Decoder(list[_Probe])
_SAID = Decoder(_Said)
_REASONING = Decoder(_Reasoning)


def decode_items(raws: list[Raw], array: Data) -> tuple[Message, ...]:
    """All items of an array; `raws` are its elements."""
    probes = read(_PROBES, array)
    return each(_message, zip(raws, probes, strict=True))


def decode_item(raw: Raw) -> Message:
    return _message((raw, read(_PROBE, raw)))


def decode_text(raw: Raw, role: Role) -> Message:
    """A plain string instead of messages: `instructions`, or a whole `input`."""
    text = read(_STRING, raw)
    return Message(role, (Text(text),) if text else (), Origin("responses", raw))


def _message(pair: tuple[Raw, _Probe]) -> Message:
    raw, kind, origin = pair[0], pair[1].type, Origin("responses", pair[0])
    if kind is None or kind == "message":
        return _message_item(raw, origin, has_type=kind is not None)
    if kind == "reasoning":
        return Message("assistant", (read(_REASONING, raw).part(raw),), origin)
    tool = decode_tool(kind, raw)
    if tool is not None:
        return Message("assistant" if isinstance(tool, ToolCall) else "tool", (tool,), origin)
    role: Role = "developer" if kind in _CLIENT_TYPES else "assistant"
    return Message(role, (Opaque(kind, raw=raw),), origin)


def _message_item(raw: Raw, origin: Origin, *, has_type: bool) -> Message:
    said = read(_SAID, raw)
    if said.role is None:
        if has_type or is_null(said.id) or not is_null(said.content):
            raise WireError("is missing", place="role")
        # A reference to an item that the provider stores may omit its type.
        return Message("assistant", (Opaque("item_reference", raw=raw),), origin)
    return Message(_role(said.role), decode_content(said.content), origin)


def _role(name: str) -> Role:
    role = _ROLES.get(name)
    if role is None:
        hint = "use system, developer, user or assistant; a tool's result is a function_call_output item"
        raise WireError("unknown role", place="role", hint=hint)
    return role


def spell(message: Message) -> Fields:
    part = message.parts[0] if len(message.parts) == 1 else None
    if isinstance(part, ToolCall):
        return spell_call(part, message.origin)
    if isinstance(part, ToolResult):
        return spell_result(part, message.origin)
    if part is not None and _is_item(part, message.origin):
        return _spell_untouched(part)
    if isinstance(part, Reasoning):
        return _spell_reasoning(part)
    if message.role == "tool":
        raise WireError("a tool item carries exactly one result", hint="send one item for each result")
    kind = "output_text" if message.role == "assistant" else "input_text"
    return {"type": "message", "role": message.role, "content": spell_content(message.parts, kind)}


def _is_item(part: Part, origin: Origin | None) -> bool:
    """True if the part is an item of the provider's own, not a block within a message."""
    if not isinstance(part, Opaque | Reasoning) or part.raw is None:
        return False
    return origin is None or origin.raw == part.raw


def _spell_untouched(part: Part) -> Fields:
    assert part.raw is not None
    if decode_item(part.raw).parts != (part,):
        raise WireError("this item cannot be changed", hint="send it as it came, or leave it out")
    fields = read(FIELDS, part.raw)
    return {**fields}


def _spell_reasoning(part: Reasoning) -> Fields:
    if part.signature:
        raise misplaced(part, _NAME)
    lines: Json = [{"type": "summary_text", "text": part.text}] if part.text else []
    fields: Fields = {"type": "reasoning", "summary": lines}
    return {**fields, "encrypted_content": part.sealed} if part.sealed else fields


# Streams: every change is an event, and the last event holds the whole reply

_LAST = ("response.completed", "response.incomplete", "response.cancelled", "response.done")
_FAILED = ("error", "response.failed")
_TEXT_EVENTS = ("response.output_text.delta", "response.refusal.delta")
_THOUGHT = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_ARGUMENTS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
_CALL_ITEMS = ("function_call", "custom_tool_call")
_NO_ITEMS = (b"[]", b"null")


class _Event(Struct, gc=False):
    type: str = ""
    output_index: int = 0
    response: Raw = NULL
    item: Raw = NULL
    delta: Raw = NULL


class _Item(Struct, gc=False):
    type: str | None = None
    call_id: str | None = None
    name: str | None = None


_EVENT = Decoder(_Event)
_ITEM = Decoder(_Item)


class ResponsesFold:
    def __init__(self) -> None:
        self.is_whole = self.is_over = self.is_failed = False
        self._last: dict[str, Raw] = {}
        self._items: dict[int, Raw] = {}
        self._calls: dict[int, int] = {}
        """The number of the reply's call that an item is."""

    def take(self, event: ServerSentEvent) -> list[Delta]:
        said = read(_EVENT, event.data) if event.data.strip() != b"[DONE]" else _Event()
        if said.type in _FAILED:
            self.is_failed = True
        elif said.type in _LAST:
            self._last = read(FIELDS, said.response, "response")
            self.is_whole = self.is_over = True
            if not is_null(self._last.get("error", NULL)):
                self.is_failed = answer_error(self.body()).is_error
        elif said.type == "response.output_item.added":
            return self._open(said)
        elif said.type == "response.output_item.done" and not is_null(said.item):
            self._items[said.output_index] = said.item.copy()
        elif not said.type:
            self.is_failed = answer_error(event.data).is_error
        return self._piece(said)

    def _open(self, said: _Event) -> list[Delta]:
        item = read(_ITEM, said.item, "item")
        if item.type not in _CALL_ITEMS:
            return []
        at = self._calls[said.output_index] = len(self._calls)
        return [CallDelta(at, item.call_id or "", item.name or "")]

    def _piece(self, said: _Event) -> list[Delta]:
        is_said, is_thought = said.type in _TEXT_EVENTS, said.type in _THOUGHT
        if not (is_said or is_thought or said.type in _ARGUMENTS):
            return []
        text = read(_STRING, said.delta, "delta")
        if not text:
            return []
        if is_said or is_thought:
            return [TextDelta(text) if is_said else ReasoningDelta(text)]
        call = self._calls.setdefault(said.output_index, len(self._calls))
        return [CallDelta(call, arguments=text)]

    def body(self) -> bytes:
        fields: Fields = {**self._last}
        if bytes(self._last.get("output", NULL)) in _NO_ITEMS:
            fields["output"] = [self._items[index] for index in sorted(self._items)]
        return bytes(write(fields))
