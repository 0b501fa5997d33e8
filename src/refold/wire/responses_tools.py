"""Calls and their outputs among Responses items, for the tools of clients and those that OpenAI defines.

One idea: whatever names a call and whatever answers it by that name is a call and a result, also where the tool is not
known here, so that no cut can separate them. Of an unknown tool the id can be changed, and an output that is a text; the
rest of such an item goes back as it came.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import Opaque, Origin, Text, ToolCall, ToolResult
from refold.wire.patch import Fields, misplaced, verbatim
from refold.wire.reading import ANY, FIELDS, NULL, kind_of, read, text_of, within
from refold.wire.responses_content import decode_output, spell_output

_NAME = "a Responses item"
_TODO = ("action", "actions", "operation", "arguments", "input")
"""Where an item says what its tool is to do."""


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
    """The model asks whether it may use a tool of an MCP server; the item's own id names the question."""

    id: str
    name: str
    arguments: str = ""

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, self.arguments, "mcp_approval")


class _Approved(Struct, gc=False):
    approval_request_id: str


class _Action(Struct, gc=False):
    """A call of a tool the provider defines."""

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
    """The call or the result that an item is, if it is one."""
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
    # A local shell's output names its call in `id` in one version of the format, in `call_id` in the other.
    call_id = item.id if item.call_id is None and kind == "local_shell" else item.call_id
    if call_id is None:
        # OpenAI's types let a function's output go without; nothing could tell what it belongs to.
        raise WireError("is missing", place="call_id", hint="say which call this output answers")
    try:
        parts = decode_output(kind, item.output)
    except WireError as error:
        raise within(error, "output") from None
    return ToolResult(call_id, parts, kind == "apply_patch" and item.status == "failed", kind)


def _own_tool(kind: str, raw: Raw) -> ToolCall | ToolResult | None:
    """A call or result of a tool that is not known here, told by its type and its `call_id`."""
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
    """The output of an unknown tool: a text may change, anything else may not."""
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
