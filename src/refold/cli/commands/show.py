"""`refold show`: the messages of a stored conversation, its calls, or the request that left with one call, and its reply.

The messages are the originals, all of them. The request of a call is rebuilt from the compaction that was in effect at that call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import structs

from refold.cli import output
from refold.cli.options import BranchId, Conv, JsonOption, StoreOptions, expanded
from refold.cli.output import INDENT, align, plain, plural, short, when
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import ConfigError, NotFound, WireError

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.model.message import Message
    from refold.ports.records import Call, Head, StoredMessage

_NUMBERS = frozenset({"call", "messages", "read", "cached", "written", "$"})
EXAMPLES = """\b
Examples:
  refold show support-42
  refold show support-42 --session 3f2a
  refold show support-42 --calls
  refold show support-42 --as-sent 7"""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(show))


def show(
    conv: Conv,
    *,
    as_sent: Annotated[
        str,
        typer.Option(
            "--as-sent",
            metavar="CALL",
            help="The request of this call, and its reply: its number or its id.",
            show_default=False,
        ),
    ] = "",
    session: Annotated[
        str,
        typer.Option(
            "--session", metavar="ID", help="Only the messages of this session.", show_default=False
        ),
    ] = "",
    calls: Annotated[bool, typer.Option("--calls", help="List the calls instead.")] = False,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Show every message as it came, also those that were compacted since.

    With --as-sent, show the request of one call as the provider got it, with its summaries and everything that was shortened,
    and the reply to it, also one that the reply to a repeated request has replaced in the list of messages.
    """
    from refold.cli import store_access

    if sum(map(bool, (as_sent, session, calls))) > 1:
        raise ConfigError("--as-sent, --session and --calls exclude each other", hint="give one of them")

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        if calls:
            return _list_calls(conv, await _calls(engine, conv), as_json=as_json)
        if as_sent:
            return await _show_sent(engine, conv, as_sent, as_json=as_json)
        return await _show_messages(engine, head, session, as_json=as_json)

    return store_access.look(place, act)


async def _show_messages(engine: Engine, head: Head, which: str, *, as_json: bool) -> int:
    """Show the messages of the session `which`, or of the whole branch where it is empty."""
    from refold.cli.store_access import (
        EVERYTHING,
        branch_text,
        fill_text,
        off_name,
        pages_of,
        row_by_prefix,
    )
    from refold.engine.recall import newest_reply
    from refold.engine.status import stored_fill_level

    first, last = 0, head.next_seq
    if which:
        known = await engine.sessions(head.conversation, limit=EVERYTHING)
        session = row_by_prefix(known, which, "session")
        head = await engine.store.head(engine.owner, head.conversation, session.branch) or head
        first, last = session.first, head.next_seq if session.last is None else session.last
    pages = pages_of(engine, head, first, last)
    reply = await newest_reply(engine.store, head) if last == head.next_seq else []
    off = await off_name(engine, head.conversation)
    if as_json:
        found = [_document(one, head) async for page in pages for one in page]
        summary = (await stored_fill_level(engine.store, head)).summary
        about = {
            "conversation": head.conversation,
            "format": head.format,
            "summary": summary,
            "off": bool(off),
        }
        output.write_json({**about, "messages": found, "reply": [_document(one, head) for one in reply]})
        return int(any("damage" in one for one in found))
    damaged = 0
    async for page in pages:
        for one in page:
            message, damage = _read(one, head)
            damaged += bool(damage)
            output.write(_entry(one, message, damage))
    for one in reply:
        output.write(_entry(one, *_read(one, head)))
    if damaged:
        output.note(
            f"{plural(damaged, 'message')} cannot be read\nhint: `refold doctor` says what is damaged"
        )
        return 1
    count = plural(max(0, last - first) + len(reply), "message")
    output.note(f"{count}; `refold recall` gives one of them by its handle")
    if reply:
        output.note(
            "the last is the newest reply: it is counted in the context when the client sends it back"
        )
    if others := await branch_text(engine, head):
        output.note(others)
    output.note(fill_text(await stored_fill_level(engine.store, head), off))
    return 0


def _read(one: StoredMessage, head: Head) -> tuple[Message | None, str]:
    """Return a message, or what is damaged about it: one damaged message must not hide the others."""
    from refold.model.errors import Damaged
    from refold.ports.records import read_stored

    try:
        return read_stored(one, head), ""
    except Damaged as error:
        return None, error.what


def _document(one: StoredMessage, head: Head) -> dict[str, object]:
    from refold.core.stage import handle_of

    message, damage = _read(one, head)
    return {
        "seq": one.seq,
        "handle": handle_of(one.seq),
        "role": one.role,
        "tokens": one.tokens,
        "at": one.at,
        "message": None if message is None else msgspec.json.decode(one.body),
        **({"damage": damage} if damage else {}),
    }


def _entry(one: StoredMessage, message: Message | None, damage: str) -> str:
    from refold.cli.output import indented_text
    from refold.core.stage import handle_of

    about = f"{handle_of(one.seq)}  {one.role}  {plural(one.tokens, 'token')}  {when(one.at)}"
    if message is None:
        return f"{about}\n{INDENT}[{damage or 'the content was not kept'}]\n\n"
    return f"{about}\n{indented_text(message)}\n"


async def _calls(engine: Engine, name: str) -> list[Call]:
    from refold.cli.store_access import EVERYTHING

    return await engine.store.calls(engine.owner, name, EVERYTHING)


def _list_calls(name: str, calls: Sequence[Call], *, as_json: bool) -> int:
    if as_json:
        output.write_json(
            {"conversation": name, "calls": [_call(number, one) for number, one in _numbered(calls)]}
        )
    elif calls:
        head = ("call", "id", "kind", "messages", "read", "cached", "written", "$", "at", "model")
        rows = [_cells(number, one) for number, one in _numbered(calls)]
        output.write(align(head, rows, _NUMBERS, optional=("messages", "cached", "id"), cuts=("model",)))
        if any(one.is_estimated for one in calls):
            output.note("~ estimated: the provider reported no usage")
    else:
        output.note(
            "no calls were recorded in this conversation\nhint: a program records them with `talk.record(usage)`"
        )
    return 0


def _numbered(calls: Sequence[Call]) -> Iterator[tuple[int, Call]]:
    return enumerate(calls, 1)


def _call(number: int, one: Call) -> dict[str, object]:
    fields = {key: value for key, value in structs.asdict(one).items() if key != "receipt"}
    return {"number": number, **fields, "usage": structs.asdict(one.usage)}


def _cells(number: int, one: Call) -> tuple[str, ...]:
    usage, guess = one.usage, "~" if one.is_estimated else ""
    return (
        f"{number:,}",
        short(one.id),
        one.kind,
        f"{one.size:,}",
        f"{guess}{usage.prompt:,}",
        f"{usage.cache_read:,}",
        f"{guess}{usage.output:,}",
        f"{guess}{one.dollars:.4f}",
        when(one.at),
        plain(one.model),
    )


def _pick_call(calls: Sequence[Call], which: str) -> Call:
    """A call by its number in the list, counted from 1, or by its id."""
    from refold.cli.store_access import row_by_prefix

    if which.isdecimal() and 1 <= int(which) <= len(calls):
        return calls[int(which) - 1]
    if not calls:
        raise NotFound(
            "no calls were recorded in this conversation", hint="leave --as-sent out to see what was said"
        )
    try:
        return row_by_prefix(calls, which, "call")
    except NotFound as error:
        raise NotFound(
            error.message, hint="`refold show CONV --calls` lists them with their numbers"
        ) from None


async def _show_sent(engine: Engine, name: str, which: str, *, as_json: bool) -> int:
    from refold.cli.store_access import head_of
    from refold.core.budget import STAGE as LOWERED
    from refold.engine.history import edits_of, instructions_of
    from refold.ports.records import read_reply

    calls = await _calls(engine, name)
    call = _pick_call(calls, which)
    conversation = await engine.conversation(name, branch=call.branch)
    fields = await conversation.window_of(call)
    has_own = await instructions_of(conversation.journal, call) is not None
    head = await head_of(engine, name, call.branch)
    stored = read_reply(await engine.store.reply_to(engine.owner, call.id)) or ()
    reply = [msgspec.json.decode(one) for one in stored]
    if as_json:
        number = calls.index(call) + 1
        edits = [structs.asdict(edit) for edit in edits_of(call)]
        about = {"conversation": name, "call": _call(number, call)}
        which_prompt = "own" if has_own else "newest"
        output.write_json(
            {**about, "request": fields, "instructions": which_prompt, "edits": edits, "reply": reply}
        )
        return 0
    dialect = DIALECTS[head.format]  # type: ignore[index]
    output.write("".join(_sent(fields, dialect)))
    output.write("".join(_replied(reply, dialect)))
    output.note(_about(call, fields, dialect))
    if not has_own:
        output.note("its system prompt and tools are not stored: those of the newest request are shown")
    for edit in edits_of(call):
        if edit.stage == LOWERED:
            output.note(
                f"it asked for {edit.after:,} tokens of output instead of {edit.before:,}: {edit.reason}"
            )
    return 0


def _sent(fields: dict[str, object], dialect: Dialect) -> Iterator[str]:
    from refold.cli.output import indented_text
    from refold.wire.sdk import read_message

    for key in ("system", "instructions"):
        if text := fields.get(key):
            shown = text if isinstance(text, str) else msgspec.json.encode(text).decode()
            yield f"{key}\n{INDENT}{plain(shown, len(shown))}\n\n"
    messages = fields[dialect.messages_key]
    assert isinstance(messages, list)
    for one in messages:
        message = read_message(one, dialect)
        yield f"{message.role}\n{indented_text(message)}\n"


def _replied(reply: Sequence[object], dialect: Dialect) -> Iterator[str]:
    """The messages of the reply to a call that the gateway passed on."""
    from refold.cli.output import indented_text
    from refold.wire.sdk import read_message

    for one in reply:
        try:
            message = read_message(one, dialect)
        except WireError:  # it was answered in another format
            yield f"the reply\n{INDENT}{plain(msgspec.json.encode(one).decode())}\n\n"
        else:
            yield f"the reply\n{indented_text(message)}\n"


def _about(call: Call, fields: dict[str, object], dialect: Dialect) -> str:
    messages, tools = fields[dialect.messages_key], fields.get("tools") or []
    assert isinstance(messages, list)
    assert isinstance(tools, list)
    said = f"call {short(call.id)} of {when(call.at)}: {plural(len(messages), 'message')} for {call.size:,} that were there"
    return f"{said}, {plural(len(tools), 'tool')}; the prompt was {call.usage.prompt:,} tokens, as the provider says"
