"""Request bodies: what the client sends with every call, and the messages.

One idea: a body is its top-level fields in their order, each as raw JSON. Reading looks into a few of them; writing replaces
the list of messages and leaves the other fields, byte for byte, as they came. If nothing changed, the body itself leaves.

    Chat         messages: [system… | the rest]         the leading system and developer messages are `system`
    Responses    instructions, input: [system… | …]     so they are here, after the instructions
    Anthropic    system, messages: [all]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder

from refold.model.dialect import Dialect
from refold.model.errors import WireError
from refold.model.message import Message
from refold.model.window import Fixed, Tool
from refold.wire import anthropic, responses
from refold.wire.message import decode_messages, encode_item, encode_message
from refold.wire.patch import Fields, Json, write
from refold.wire.reading import FIELDS, MAX_BODY_BYTES, check_body, each, is_object, read, within
from refold.wire.tools import decode_tools

T = TypeVar("T")

_STRING: Decoder[str | None] = Decoder(str | None)
_COUNT: Decoder[int | None] = Decoder(int | None)
_FLAG: Decoder[bool | None] = Decoder(bool | None)
_MAX_OUTPUT = ("max_completion_tokens", "max_tokens", "max_output_tokens")


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
        """How many of the system messages stand in the list: `messages[i]` is number `offset + i` on the wire."""
        return len(self.system) - (_prompt_key(self.fields, self.dialect) is not None)

    @property
    def fixed(self) -> Fixed:
        return Fixed(self.dialect, self.system, self.tools)


def decode_request(body: bytes, dialect: Dialect, *, max_body_bytes: int = MAX_BODY_BYTES) -> Request:
    """Read a request body.

    Raises:
        WireError: the body is not a request of this format; its `place` says where.
    """
    check_body(body, max_body_bytes)
    return request_of(read(FIELDS, body), dialect, body)


def request_of(fields: dict[str, Raw], dialect: Dialect, body: bytes) -> Request:
    prompt, items = _prompt_of(fields, dialect), _items_of(fields, dialect)
    first = 0 if dialect.name == "anthropic" else _leading(items)
    counts = (_field(fields, key, _COUNT) for key in _MAX_OUTPUT)
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


def encode_request(
    request: Request, messages: Sequence[Message] | None = None, *, system: Sequence[Message] | None = None
) -> bytes:
    """The body that leaves, with other messages or another system prompt where given.

    Raises:
        WireError: a message cannot be written in this format; its `place` says which.
    """
    system = request.system if system is None else system
    messages = request.messages if messages is None else messages
    if _are_same(request.system, system) and _are_same(request.messages, messages):
        return request.body
    fields: Fields = {**request.fields}
    prompt, items = _split_prompt(request, system)
    if prompt is not None:
        fields[_PROMPTS[request.dialect.name]] = encode_message(prompt, request.dialect)
    fields[request.dialect.messages_key] = _write_items([*items, *messages], request.dialect)
    return bytes(write(fields))


def _prompt_key(fields: dict[str, Raw], dialect: Dialect) -> str | None:
    """The field that holds the first system message where that is no item of the list."""
    key = _PROMPTS.get(dialect.name)
    return key if key and bytes(fields.get(key, _NULL)) != b"null" else None


_PROMPTS = {"anthropic": "system", "responses": "instructions"}
_NULL = Raw(b"null")


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
    raw = fields.get(key)
    if raw is None:
        raise WireError("is missing", place=key, hint=f"a {dialect.name} request has its messages there")
    try:
        if dialect.name == "responses" and bytes(memoryview(raw)[:1]) == b'"':
            return (responses.decode_text(raw, "user"),)
        items = decode_messages(raw, dialect)
    except WireError as error:
        raise within(error, key) from None
    if not items:
        raise WireError("holds no message", place=key, hint="send at least one message of the user's")
    return items


def _leading(items: tuple[Message, ...]) -> int:
    """The length of the system prompt at the head of the list."""
    later = (index for index, item in enumerate(items) if item.role not in ("system", "developer"))
    return next(later, len(items))


def _tools_of(fields: dict[str, Raw]) -> tuple[Tool, ...]:
    try:
        return decode_tools(fields.get("tools", _NULL))
    except WireError as error:
        raise within(error, "tools") from None


def _field(fields: dict[str, Raw], key: str, decoder: Decoder[T]) -> T:
    return read(decoder, fields.get(key, _NULL), key)


def _are_same(old: Sequence[Message], new: Sequence[Message]) -> bool:
    return len(old) == len(new) and all(map(_is_same, old, new))


def _is_same(old: Message, new: Message) -> bool:
    if old is new:
        return True
    if old.origin is None or new.origin is None or new.origin.edited:
        return False
    return old.origin.raw == new.origin.raw


def _split_prompt(request: Request, system: Sequence[Message]) -> tuple[Message | None, Sequence[Message]]:
    """The system message that has a field of its own, and those that are items of the list."""
    if request.dialect.name == "anthropic":
        if len(system) > 1:
            raise WireError("has one value", place="system", hint="add a part to the system message instead")
        return (system[0] if system else None), ()
    if system and _prompt_key(request.fields, request.dialect):
        return system[0], system[1:]
    return None, system


def _write_items(messages: Sequence[Message], dialect: Dialect) -> Json:
    only = messages[0].origin if len(messages) == 1 else None
    if only is not None and not is_object(only.raw):
        return encode_message(messages[0], dialect)
    return each(lambda message: encode_item(message, dialect), messages, dialect.messages_key)
