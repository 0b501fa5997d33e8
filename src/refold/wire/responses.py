"""OpenAI Responses: a flat list of items, where a reply is several of them.

One idea: an item is a message of one kind of part. A `message` item says something, a call item is one call, an output
item is one result, a reasoning item is one piece of reasoning, and every other item (searches, MCP, compaction, references,
the unknown) is the provider's own and passes untouched.

Two things are no items but plain strings: `instructions`, which is a system prompt, and an `input` that is a single
message of the user's.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import Message, Opaque, Origin, Part, Reasoning, Role, Text, ToolCall, ToolResult
from refold.wire.patch import Fields, Json, misplaced, verbatim
from refold.wire.reading import ANY, FIELDS, each, read, within
from refold.wire.responses_content import decode_content, decode_output, spell_content, spell_output

_NAME = "a Responses item"
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}


class _Probe(Struct, gc=False):
    type: str = "message"


class _Said(Struct, gc=False):
    role: str
    content: str | list[Raw]


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


class _Action(Struct, gc=False):
    """A call of a tool the provider defines; what to do is an object under a name that depends on the tool."""

    type: str
    call_id: str
    action: Raw = Raw(b"")
    actions: Raw = Raw(b"")
    operation: Raw = Raw(b"")

    def call(self) -> ToolCall:
        kind = self.type.removesuffix("_call")
        todo = bytes(self.action) or bytes(self.actions) or bytes(self.operation)
        return ToolCall(self.call_id, kind, todo.decode(), kind)


class _Line(Struct, gc=False):
    text: str


class _Reasoning(Struct, gc=False):
    summary: list[_Line] | None = None
    content: list[_Line] | None = None
    encrypted_content: str | None = None

    def part(self, raw: Raw) -> Reasoning:
        lines = [*(self.summary or ()), *(self.content or ())]
        return Reasoning("\n".join(line.text for line in lines), sealed=self.encrypted_content or "", raw=raw)


class _Output(Struct, gc=False):
    type: str
    call_id: str | None = None
    id: str | None = None
    output: Raw = Raw(b"null")
    status: str | None = None


_PROBE = Decoder(_Probe)
_PROBES = Decoder(list[_Probe])
_SAID = Decoder(_Said)
_REASONING = Decoder(_Reasoning)
_OUTPUT = Decoder(_Output)
_FUNCTION = Decoder(_Function)
_CUSTOM = Decoder(_Custom)
_ACTION = Decoder(_Action)


def _action(raw: Raw) -> ToolCall:
    return read(_ACTION, raw).call()


_CALLS: dict[str, Callable[[Raw], ToolCall]] = {
    "function_call": lambda raw: read(_FUNCTION, raw).call(),
    "custom_tool_call": lambda raw: read(_CUSTOM, raw).call(),
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
ITEM_TYPES = frozenset({"message", "reasoning", *_CALLS, *_RESULTS})


def decode_items(raws: list[Raw], array: Raw | bytes) -> tuple[Message, ...]:
    """All items of an array; `raws` are its elements."""
    probes = read(_PROBES, array)
    return each(_message, zip(raws, probes, strict=True))


def decode_item(raw: Raw) -> Message:
    return _message((raw, read(_PROBE, raw)))


def decode_text(raw: Raw, role: Role) -> Message:
    """A plain string in the place of messages: `instructions`, or a whole `input`."""
    text = read(_STRING, raw)
    return Message(role, (Text(text),) if text else (), Origin("responses", raw))


_STRING = Decoder(str)


def _message(pair: tuple[Raw, _Probe]) -> Message:
    raw, kind, origin = pair[0], pair[1].type, Origin("responses", pair[0])
    if kind == "message":
        said = read(_SAID, raw)
        return Message(_role(said.role), decode_content(said.content), origin)
    if kind in _CALLS:
        return Message("assistant", (_CALLS[kind](raw),), origin)
    if kind in _RESULTS:
        return Message("tool", (_result(raw),), origin)
    if kind == "reasoning":
        return Message("assistant", (read(_REASONING, raw).part(raw),), origin)
    return Message("assistant", (Opaque(kind, raw=raw),), origin)


def _role(name: str) -> Role:
    role = _ROLES.get(name)
    if role is None:
        hint = "use system, developer, user or assistant; a tool's result is a function_call_output item"
        raise WireError("unknown role", place="role", hint=hint)
    return role


def _result(raw: Raw) -> ToolResult:
    item = read(_OUTPUT, raw)
    kind = _RESULTS[item.type]
    # A local shell's output names its call in `id` in one version of the format, in `call_id` in the other.
    call_id = item.id if item.call_id is None and kind == "local_shell" else item.call_id
    if call_id is None:
        raise WireError("is missing", place="call_id", hint="say which call this output answers")
    try:
        parts = decode_output(kind, item.output)
    except WireError as error:
        raise within(error, "output") from None
    return ToolResult(call_id, parts, kind == "apply_patch" and item.status == "failed", kind)


def spell(message: Message) -> Fields:
    part = message.parts[0] if len(message.parts) == 1 else None
    if isinstance(part, ToolCall):
        return _spell_call(part)
    if isinstance(part, ToolResult):
        return _spell_result(part)
    if part is not None and _is_item(part, message.origin):
        return _spell_untouched(part)
    if isinstance(part, Reasoning):
        return _spell_reasoning(part)
    if message.role == "tool":
        raise WireError("a tool item carries exactly one result", hint="send one item for each result")
    kind = "output_text" if message.role == "assistant" else "input_text"
    return {"type": "message", "role": message.role, "content": spell_content(message.parts, kind)}


def _is_item(part: Part, origin: Origin | None) -> bool:
    """Is the part an item of the provider's own, and not a block within a message?"""
    if not isinstance(part, Opaque | Reasoning) or part.raw is None:
        return False
    return origin is None or origin.raw == part.raw


def _spell_untouched(part: Part) -> Fields:
    assert part.raw is not None
    if decode_item(part.raw).parts != (part,):
        raise WireError("this item cannot be changed", hint="send it as it came, or leave it out")
    fields = read(FIELDS, part.raw)
    return {**fields}


def _spell_call(call: ToolCall) -> Fields:
    if call.kind == "function":
        return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    if call.kind == "custom":
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
    kind = f"{call.kind}_call"
    if kind not in _CALLS:
        raise misplaced(call, _NAME)
    todo = verbatim(call.arguments)
    read(ANY, todo, "action")
    key = "operation" if call.kind == "apply_patch" else "action"
    return {"type": kind, "call_id": call.id, "actions" if call.arguments.startswith("[") else key: todo}


def _spell_result(result: ToolResult) -> Fields:
    kind = "custom_tool_call_output" if result.kind == "custom" else f"{result.kind}_call_output"
    if kind not in _RESULTS:
        raise misplaced(result, _NAME)
    fields: Fields = {"type": kind, "call_id": result.call_id, "output": spell_output(result)}
    if result.kind == "apply_patch":
        fields["status"] = "failed" if result.is_error else "completed"
    return fields


def _spell_reasoning(part: Reasoning) -> Fields:
    if part.signature:
        raise misplaced(part, _NAME)
    lines: Json = [{"type": "summary_text", "text": part.text}] if part.text else []
    fields: Fields = {"type": "reasoning", "summary": lines}
    return {**fields, "encrypted_content": part.sealed} if part.sealed else fields
