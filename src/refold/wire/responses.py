"""OpenAI Responses: a flat list of items, where a reply is several of them.

One idea: an item is a message of one kind of part. A `message` item says something, a call item is one call, an output
item is one result, a reasoning item is one piece of reasoning, and every other item (searches, compaction, references,
the unknown) is the provider's own and passes untouched: as the assistant's, or as the developer's where only a client
can have written it.

Two things are no items but plain strings: `instructions`, which is a system prompt, and an `input` that is a single
message of the user's.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import Message, Opaque, Origin, Part, Reasoning, Role, Text, ToolCall, ToolResult
from refold.wire.patch import Fields, Json, misplaced
from refold.wire.reading import FIELDS, NULL, each, is_null, read
from refold.wire.responses_content import decode_content, spell_content
from refold.wire.responses_tools import TOOL_TYPES, decode_tool, spell_call, spell_result

_NAME = "a Responses item"
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
_STRING = Decoder(str)


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


def _message(pair: tuple[Raw, _Probe]) -> Message:
    raw, kind, origin = pair[0], pair[1].type, Origin("responses", pair[0])
    if kind is None or kind == "message":
        return _said(raw, origin, has_type=kind is not None)
    if kind == "reasoning":
        return Message("assistant", (read(_REASONING, raw).part(raw),), origin)
    tool = decode_tool(kind, raw)
    if tool is not None:
        return Message("assistant" if isinstance(tool, ToolCall) else "tool", (tool,), origin)
    role: Role = "developer" if kind in _CLIENT_TYPES else "assistant"
    return Message(role, (Opaque(kind, raw=raw),), origin)


def _said(raw: Raw, origin: Origin, *, has_type: bool) -> Message:
    said = read(_SAID, raw)
    if said.role is None:
        if has_type or is_null(said.id) or not is_null(said.content):
            raise WireError("is missing", place="role")
        # A reference to an item that the provider keeps may go without its type.
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


def _spell_reasoning(part: Reasoning) -> Fields:
    if part.signature:
        raise misplaced(part, _NAME)
    lines: Json = [{"type": "summary_text", "text": part.text}] if part.text else []
    fields: Fields = {"type": "reasoning", "summary": lines}
    return {**fields, "encrypted_content": part.sealed} if part.sealed else fields
