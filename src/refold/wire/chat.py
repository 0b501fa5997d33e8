"""OpenAI Chat Completions: messages with a `content` and, beside it, `tool_calls`, `refusal` and reasoning.

One idea: what stands beside the content becomes parts around it, in the order in which a model writes them: reasoning,
content, refusal, calls. The block of such a part is an object of its one field (`{"refusal": …}`); it has no `type`, so it
cannot be taken for a block of the content and goes back to where it was.

`function_call`, the forerunner of tool calls, has no id that a result could name: it is opaque, and passes untouched.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.json import Decoder

from refold.model.errors import WireError
from refold.model.message import Message, Opaque, Origin, Part, Reasoning, Role, Text, ToolCall, ToolResult
from refold.wire.chat_content import decode_block, decode_call, encode_block, encode_call
from refold.wire.chat_reasoning import Thoughts, spell_thoughts
from refold.wire.patch import Fields, write, write_content
from refold.wire.reading import FIELDS, NULL, each, is_null, read, read_said

_ROLES: dict[str, Role] = {"system": "system", "developer": "developer", "user": "user"}


class _Item(Thoughts, gc=False, kw_only=True):
    role: str
    content: str | list[Raw] | None = None
    tool_calls: list[Raw] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    function_call: Raw = NULL


_ITEM = Decoder(_Item)
_ALL_ITEMS = Decoder(list[_Item])


def decode_items(raws: list[Raw], array: Raw | bytes) -> tuple[Message, ...]:
    """All messages of an array, read in one pass; `raws` are its elements."""
    items = read_said(_ALL_ITEMS, array)
    return each(_message, zip(raws, items, strict=True))


def decode_item(raw: Raw) -> Message:
    return _message((raw, read_said(_ITEM, raw)))


def _message(pair: tuple[Raw, _Item]) -> Message:
    raw, item = pair
    origin = Origin("chat", raw)
    if item.role == "assistant":
        return Message("assistant", _said(item), origin)
    if item.role == "tool":
        if item.tool_call_id is None:
            raise WireError("is missing", place="tool_call_id", hint="say which call this result answers")
        return Message("tool", (ToolResult(item.tool_call_id, _given(item.content)),), origin)  # type: ignore[arg-type]
    role = _ROLES.get(item.role)
    if role is None:
        raise _unknown_role(item.role)
    return Message(role, _given(item.content), origin)


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
        hint = "only an assistant message may go without"
        raise WireError("is missing or null", place="content", hint=hint)
    return each(decode_block, content, "content")


def _said(item: _Item) -> tuple[Part, ...]:
    """The parts of an assistant message."""
    parts: list[Part] = [*item.thoughts()]
    if item.content is not None:
        parts += _given(item.content)
    if item.refusal:
        parts.append(Text(item.refusal, raw=write({"refusal": item.refusal})))
    if not is_null(item.function_call):
        parts.append(Opaque("function_call", raw=write({"function_call": item.function_call})))
    if item.tool_calls:
        parts += each(decode_call, item.tool_calls, "tool_calls")
    return tuple(parts)


def spell(message: Message) -> Fields:
    """The fields of a message, in the words of its origin where it has one."""
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
    fields: Fields = {"role": "assistant", "content": write_content(content, encode_block, empty=None)}
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
    """Did the part stand in a field of its own, and not in the content?"""
    fields = _fields_of(part) if isinstance(part, Text | Opaque) else {}
    return "type" not in fields and ("refusal" in fields or "function_call" in fields)


def _fields_of(part: Part) -> dict[str, Raw]:
    return read(FIELDS, part.raw) if part.raw is not None else {}
