"""`refold export`: writes a stored conversation as a transcript.

In its own format every message has the bytes it came with, and the fields around the messages (system prompt, tools, model) are
written again, so that a request stays a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Raw

from refold.cli import output
from refold.cli.options import BranchId, Conv, JsonOption, StoreOptions, expanded
from refold.cli.output import plain, plural
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import StoreError
from refold.model.message import Message

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.ports.records import Head

PIECE = 1 << 16
"""Bytes that are written at once."""


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold export support-42 > support-42.json")(expanded(export))


def export(
    conv: Conv,
    *,
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="chat, responses or anthropic. Default: its own.",
            show_default=False,
        ),
    ] = "",
    lines: Annotated[bool, typer.Option("--lines", help="One message to a line (JSONL).")] = False,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Write a conversation as a transcript to stdout.

    In its own format every message has the bytes it came with. In another one it is written anew from its text and
    its tool calls; thinking and parts that only one provider knows are left out. The newest reply is written too, although it joins
    the conversation only with the next request. The answer is JSON with or without --json.

    In the place of a damaged message stands a text that says so. It is named on stderr, and the exit code is 1.
    """
    from refold.cli import store_access
    from refold.cli.transcript import find_dialect
    from refold.engine.recall import newest_reply

    wanted = find_dialect(format_name)

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        own = DIALECTS[head.format]  # type: ignore[index]
        damaged = list[str]()
        fields = await _fields(engine, head, damaged)
        bodies: AsyncIterator[bytes] = (body async for _, body in _messages(engine, head, damaged))
        if wanted is not None and wanted is not own:
            fields, bodies = _translated(fields, own, wanted), _foreign(engine, head, wanted, damaged)
        make = _as_lines if lines and not as_json else _as_document
        await _write_parts(make(fields, bodies, wanted or own))
        reply = await newest_reply(engine.store, head)
        count = plural(head.next_seq + len(reply), "message")
        output.note(f"{count} of {plain(conv)!r}{', the last is the newest reply' if reply else ''}")
        if others := await store_access.branch_text(engine, head):
            output.note(others.replace("shows", "writes"))
        if damaged:
            output.note(
                "\n".join((*damaged, "hint: `refold doctor` says what is damaged; restore it from a backup"))
            )
        return int(bool(damaged))

    return store_access.look(place, act)


async def _write_parts(parts: AsyncIterator[bytes]) -> None:
    """Write in large pieces: every write is flushed."""
    waiting = bytearray()
    async for part in parts:
        waiting += part
        if len(waiting) >= PIECE:
            output.write_bytes(bytes(waiting))
            waiting.clear()
    output.write_bytes(bytes(waiting))


async def _fields(engine: Engine, head: Head, damaged: list[str]) -> dict[str, Raw]:
    """The fields around the messages."""
    from refold.engine.journal import fields_of
    from refold.model.errors import Damaged
    from refold.wire.json_codec import FIELDS, read

    try:
        around = await fields_of(engine.store, head)
    except Damaged as error:
        damaged.append(f"{error.what}: the system prompt and the tools are left out")
        return {}
    return read(FIELDS, around) if around else {}


async def _messages(engine: Engine, head: Head, damaged: list[str]) -> AsyncIterator[tuple[Message, bytes]]:
    """The messages of a branch, each with its bytes, and the newest reply, which is not one of them yet. In the place of a damaged
    message stands a placeholder; what is wrong with it is added to `damaged`.
    """
    from refold.cli.store_access import pages_of
    from refold.engine.damage import read_one
    from refold.engine.recall import newest_reply
    from refold.model.errors import Damaged
    from refold.ports.records import read_stored
    from refold.wire.request import encode_item

    dialect = DIALECTS[head.format]  # type: ignore[index]
    async for page in pages_of(engine, head, 0, head.next_seq):
        for one in page:
            try:
                message = read_stored(one, head)
            except Damaged as error:
                found = await read_one(engine.store, head, one.seq)
                assert found is not None
                damaged.append(f"{error.what}: a placeholder stands for it")
                yield found.message, bytes(encode_item(found.message, dialect))
                continue
            if message is None:
                raise StoreError(
                    "the content of this conversation was not kept",
                    hint="`refold show` lists what is known of its messages",
                )
            yield message, one.body
    for reply in await newest_reply(engine.store, head):
        message = read_stored(reply, head)
        assert message is not None
        yield message, reply.body


async def _foreign(engine: Engine, head: Head, wanted: Dialect, damaged: list[str]) -> AsyncIterator[bytes]:
    """The messages in another format. One reply may be several items there, so all of them are looked at together."""
    from refold.core.pairs import repair
    from refold.wire.request import encode_item
    from refold.wire.translate import translate_messages

    messages: list[Message] = [message async for message, _ in _messages(engine, head, damaged)]
    for message in repair(translate_messages(messages, wanted), wanted).messages:
        yield bytes(encode_item(message, wanted))


def _translated(fields: dict[str, Raw], own: Dialect, wanted: Dialect) -> dict[str, Raw]:
    """System prompt and tools in another format; other fields mean something to their provider only."""
    from refold.wire.json_codec import write
    from refold.wire.request import fixed_of
    from refold.wire.translate import translate_tools

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
    from refold.wire.json_codec import read_list

    raw = fields.get(dialect.messages_key)
    return [bytes(item) for item in read_list(raw)] if raw is not None else []


async def _as_document(
    fields: dict[str, Raw], bodies: AsyncIterator[bytes], dialect: Dialect
) -> AsyncIterator[bytes]:
    """A request where there are fields around the messages, else a list."""
    from refold.wire.json_codec import write

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
    """One message to a line; the fields around them are left out."""
    for body in _prompt(fields, dialect):
        yield _one_line(body)
    async for body in bodies:
        yield _one_line(body)


def _one_line(body: bytes) -> bytes:
    return (msgspec.json.format(body, indent=-1) if b"\n" in body else body) + b"\n"
