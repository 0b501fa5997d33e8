"""`refold import` and `refold export`: conversations in and out of a store.

One idea: what comes in goes out again, message by message the same bytes. The fields around the messages (system prompt, tools,
model) are kept beside them, so that a request stays a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from msgspec import Raw, Struct

from refold.cli import output, reading, stored
from refold.cli.output import plain, plural
from refold.cli.stored import Place
from refold.cli.telling import PAGE
from refold.core.pairs import repair
from refold.engine.engine import Engine
from refold.engine.journal import fields_of, read_stored
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import ConfigError, StoreError
from refold.model.message import Message
from refold.ports.store import Head
from refold.wire import Request
from refold.wire.json_codec import FIELDS, read, read_list, write
from refold.wire.message import decode_message, encode_item
from refold.wire.request import fixed_of
from refold.wire.translate import translate_messages, translate_tools

RECORDED = ("times", "usage")
"""What a log says of each message: it is no field of a request."""

PIECE = 1 << 16


class Order(Struct, frozen=True, kw_only=True):
    """What to import, and as what."""

    name: str
    title: str = ""
    format_name: str = ""
    max_body_bytes: int
    append: bool = False
    as_json: bool = False


def bring_in(place: Place, path: str, order: Order) -> int:
    data = reading.read_bytes(path, limit=order.max_body_bytes)
    with output.busy("importing", len(data)):
        request = reading.decode(data, path, format_name=order.format_name, limit=order.max_body_bytes)
        if request.continues:
            raise ConfigError(
                "the request goes on from messages that the provider keeps",
                hint="give the whole conversation",
            )

        async def act(engine: Engine) -> int:
            before = await _import(engine, request, order)
            _tell_import(order, before, len(request.messages))
            return 0

        return stored.change(place, act, begins=True)


async def _import(engine: Engine, request: Request, order: Order) -> int:
    """Add the messages, all in one transaction. How many there were before."""
    head = await engine.store.head(engine.owner, order.name)
    before = head.next_seq if head else 0
    if head is not None:
        _check_append(head, request, order)
    talk = await engine.conversation(
        order.name, model=request.model, format=request.dialect.name, title=order.title
    )
    fields = _around(request)
    if fields and not before:
        await talk.set_instructions(bytes(write({**fields})))
    elif fields:
        output.note("only the messages are added; what stands around them in the file is left out")
    await talk.add(*request.messages)
    return before


def _check_append(head: Head, request: Request, order: Order) -> None:
    if head.next_seq and not order.append:
        raise StoreError(
            f"the conversation {plain(order.name)!r} has {plural(head.next_seq, 'message')} already",
            hint="choose another name with --as, or add to it with --append",
        )
    if head.format != request.dialect.name:
        raise StoreError(
            f"the conversation is in the {head.format} format, the file in {request.dialect.name}",
            hint="import it under another name",
        )


def _around(request: Request) -> dict[str, Raw]:
    """The fields of a request; of its messages only the system prompt at the head of the list."""
    key = request.dialect.messages_key
    fields = {name: raw for name, raw in request.fields.items() if name not in (key, *RECORDED)}
    if request.offset:
        # Chat and Responses have the prompt in the list.
        prompt = request.system[len(request.system) - request.offset :]
        fields[key] = write([encode_item(message, request.dialect) for message in prompt])
    return fields


def _tell_import(order: Order, before: int, count: int) -> None:
    if order.as_json:
        output.write_json(
            {"conversation": order.name, "before": before, "added": count, "messages": before + count}
        )
    else:
        output.note(f"{plural(count, 'message')} kept as {plain(order.name)!r}, {before + count:,} in all")


def take_out(place: Place, name: str, *, branch: str, format_name: str, lines: bool) -> int:
    wanted = reading.find_dialect(format_name)

    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, branch)
        own = DIALECTS[head.format]  # type: ignore[index]
        around = await fields_of(engine.store, head)
        fields = read(FIELDS, around) if around else {}
        bodies = _bodies(engine, head)
        if wanted is not None and wanted is not own:
            fields, bodies = _translated(fields, own, wanted), _foreign(engine, head, own, wanted)
        parts = (
            _as_lines(fields, bodies, wanted or own) if lines else _as_document(fields, bodies, wanted or own)
        )
        await _pour(parts)
        output.note(f"{plural(head.next_seq, 'message')} of {plain(name)!r}")
        return 0

    return stored.look(place, act)


async def _pour(parts: AsyncIterator[bytes]) -> None:
    """Write in large pieces: each is flushed."""
    waiting = bytearray()
    async for part in parts:
        waiting += part
        if len(waiting) >= PIECE:
            output.write_bytes(bytes(waiting))
            waiting.clear()
    output.write_bytes(bytes(waiting))


async def _bodies(engine: Engine, head: Head) -> AsyncIterator[bytes]:
    first = 0
    while page := await engine.store.messages(head, first, head.next_seq, PAGE):
        for one in page:
            if read_stored(one, head) is None:
                raise StoreError(
                    "what was said in this conversation was not kept", hint="it was stored without content"
                )
            yield one.body
        first = page[-1].seq + 1


async def _foreign(engine: Engine, head: Head, own: Dialect, wanted: Dialect) -> AsyncIterator[bytes]:
    """The messages in another format. One reply may be several items there, so all of them are looked at together."""
    messages: list[Message] = [decode_message(body, own) async for body in _bodies(engine, head)]
    for message in repair(translate_messages(messages, wanted), wanted).messages:
        yield bytes(encode_item(message, wanted))


def _translated(fields: dict[str, Raw], own: Dialect, wanted: Dialect) -> dict[str, Raw]:
    """System prompt and tools in another format; other fields mean something to their provider only."""
    fixed = fixed_of(fields, own)
    found: dict[str, Raw] = {}
    text = "\n\n".join(message.text for message in fixed.system)
    if text and wanted.name == "chat":
        found["messages"] = write([{"role": "system", "content": text}])
    elif text:
        found["system" if wanted.name == "anthropic" else "instructions"] = write(text)
    if fixed.tools:
        found["tools"] = write(translate_tools(fixed.tools, wanted))
    return found


def _prompt(fields: dict[str, Raw], dialect: Dialect) -> list[bytes]:
    raw = fields.get(dialect.messages_key)
    return [bytes(item) for item in read_list(raw)] if raw is not None else []


async def _as_document(
    fields: dict[str, Raw], bodies: AsyncIterator[bytes], dialect: Dialect
) -> AsyncIterator[bytes]:
    """A request where there is something around the messages, else a list."""
    key = dialect.messages_key
    around = {name: raw for name, raw in fields.items() if name != key}
    head, tail = (
        (bytes(write({**around}))[:-1] + b',"' + key.encode() + b'":[', b"]}\n") if around else (b"[", b"]\n")
    )
    yield head
    before = b""
    for body in _prompt(fields, dialect):
        yield before + body
        before = b",\n"
    async for body in bodies:
        yield before + body
        before = b",\n"
    yield tail


async def _as_lines(
    fields: dict[str, Raw], bodies: AsyncIterator[bytes], dialect: Dialect
) -> AsyncIterator[bytes]:
    """One message to a line; there is no place for what stands around them."""
    for body in _prompt(fields, dialect):
        yield _one_line(body)
    async for body in bodies:
        yield _one_line(body)


def _one_line(body: bytes) -> bytes:
    return (msgspec.json.format(body, indent=-1) if b"\n" in body else body) + b"\n"
