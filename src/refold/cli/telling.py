"""`refold show`: what was said in a stored conversation, and what left with one of its calls.

One idea: two questions that are easily mixed up. What was said is the originals, all of them, as they came. What was sent is the
window of one call, put together again from the change that was in effect then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
from msgspec import Struct, structs

from refold.cli import output, stored
from refold.cli.columns import align, short, when
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.core.budget import STAGE as LOWERED
from refold.core.shown import handle_of
from refold.engine.engine import Engine
from refold.engine.history import edits_of
from refold.engine.journal import read_stored
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import ConfigError, NotFound
from refold.model.message import Message, Opaque, Part, Reasoning, Text, ToolCall, ToolResult, readable_text
from refold.ports.store import Call, Head, Stored
from refold.wire.sdk import read_message

PAGE = 500
"""Messages that are read at once: a long conversation is shown without being held."""
INDENT = "  "
_NUMBERS = frozenset({"call", "messages", "read", "cached", "written", "$"})


class Order(Struct, frozen=True, kw_only=True):
    """What of a conversation to show."""

    as_sent: str = ""
    session: str = ""
    branch: str = ""
    calls: bool = False
    as_json: bool = False


def show(place: Place, name: str, order: Order) -> int:
    if sum(map(bool, (order.as_sent, order.session, order.calls))) > 1:
        raise ConfigError("--as-sent, --session and --calls exclude each other", hint="give one of them")

    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, order.branch)
        if order.calls:
            return _list_calls(name, await _calls(engine, name), as_json=order.as_json)
        if order.as_sent:
            return await _show_sent(engine, name, order)
        return await _show_said(engine, head, order)

    return stored.look(place, act)


async def _show_said(engine: Engine, head: Head, order: Order) -> int:
    first, last = 0, head.next_seq
    if order.session:
        known = await engine.sessions(head.conversation, limit=EVERYTHING)
        session = stored.the_one(known, order.session, "session")
        head = await engine.store.head(engine.owner, head.conversation, session.branch) or head
        first, last = session.first, head.next_seq if session.last is None else session.last
    pages = _pages(engine, head, first, last)
    if order.as_json:
        found = [_document(one, head) async for page in pages for one in page]
        output.write_json({"conversation": head.conversation, "format": head.format, "messages": found})
        return 0
    async for page in pages:
        output.write("".join(_entry(one, head) for one in page))
    output.note(f"{plural(max(0, last - first), 'message')}; `refold recall` gives one of them by its handle")
    return 0


async def _pages(engine: Engine, head: Head, first: int, last: int) -> AsyncIterator[list[Stored]]:
    while page := await engine.store.messages(head, first, last, PAGE):
        yield page
        first = page[-1].seq + 1


def _document(one: Stored, head: Head) -> dict[str, object]:
    message = read_stored(one, head)
    return {
        "seq": one.seq,
        "handle": handle_of(one.seq),
        "role": one.role,
        "tokens": one.tokens,
        "at": one.at,
        "message": None if message is None else msgspec.json.decode(one.body),
    }


def _entry(one: Stored, head: Head) -> str:
    message = read_stored(one, head)
    about = f"{handle_of(one.seq)}  {one.role}  {plural(one.tokens, 'token')}  {when(one.at)}"
    if message is None:
        return f"{about}\n{INDENT}[the content was not kept]\n\n"
    return f"{about}\n{told(message)}\n"


def told(message: Message) -> str:
    """What a message says, line by line, harmless in a terminal."""
    lines = [line for part in message.parts for line in _lines(part)]
    return "".join(f"{INDENT}{plain(line.expandtabs(4), len(line) * 4)}".rstrip() + "\n" for line in lines)


def _lines(part: Part) -> Iterator[str]:
    match part:
        case Text():
            yield from part.text.splitlines()
        case Reasoning():
            yield from (f"(thinking) {line}" for line in part.text.splitlines() or [""])
        case ToolCall():
            yield f"-> {part.name} {part.arguments}"
        case ToolResult():
            for inner in part.parts:
                yield from _lines(inner)
        case Opaque():
            yield f"[{part.kind}]"
            yield from readable_text(part).splitlines()
        case _:
            yield f"[{type(part).__name__.lower()}]"


async def _calls(engine: Engine, name: str) -> list[Call]:
    return await engine.store.calls(engine.owner, name, EVERYTHING)


def _list_calls(name: str, calls: Sequence[Call], *, as_json: bool) -> int:
    if as_json:
        output.write_json(
            {"conversation": name, "calls": [_call(number, one) for number, one in _numbered(calls)]}
        )
    elif calls:
        head = ("call", "id", "kind", "messages", "read", "cached", "written", "$", "at", "model")
        output.write(align(head, [_cells(number, one) for number, one in _numbered(calls)], _NUMBERS))
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
    usage = one.usage
    return (
        f"{number:,}",
        short(one.id),
        one.kind,
        f"{one.size:,}",
        f"{usage.prompt:,}",
        f"{usage.cache_read:,}",
        f"{usage.output:,}",
        f"{one.dollars:.4f}",
        when(one.at),
        plain(one.model),
    )


def _pick_call(calls: Sequence[Call], which: str) -> Call:
    """A call by its number in the list, counted from 1, or by its id."""
    if which.isdecimal() and 1 <= int(which) <= len(calls):
        return calls[int(which) - 1]
    if not calls:
        raise NotFound(
            "no calls were recorded in this conversation", hint="leave --as-sent out to see what was said"
        )
    return stored.the_one(calls, which, "call")


async def _show_sent(engine: Engine, name: str, order: Order) -> int:
    calls = await _calls(engine, name)
    call = _pick_call(calls, order.as_sent)
    talk = await engine.conversation(name, branch=call.branch)
    fields = await talk.window_of(call)
    head = await stored.head_of(engine, name, call.branch)
    if order.as_json:
        number = calls.index(call) + 1
        edits = [structs.asdict(edit) for edit in edits_of(call)]
        output.write_json(
            {"conversation": name, "call": _call(number, call), "request": fields, "edits": edits}
        )
        return 0
    dialect = DIALECTS[head.format]  # type: ignore[index]
    output.write("".join(_sent(fields, dialect)))
    output.note(_about(call, fields, dialect))
    for edit in edits_of(call):
        if edit.stage == LOWERED:
            output.note(
                f"it asked for {edit.after:,} tokens of output instead of {edit.before:,}: {edit.reason}"
            )
    return 0


def _sent(fields: dict[str, object], dialect: Dialect) -> Iterator[str]:
    for key in ("system", "instructions"):
        if text := fields.get(key):
            shown = text if isinstance(text, str) else msgspec.json.encode(text).decode()
            yield f"{key}\n{INDENT}{plain(shown, len(shown))}\n\n"
    messages = fields[dialect.messages_key]
    assert isinstance(messages, list)
    for one in messages:
        message = read_message(one, dialect)
        yield f"{message.role}\n{told(message)}\n"


def _about(call: Call, fields: dict[str, object], dialect: Dialect) -> str:
    messages, tools = fields[dialect.messages_key], fields.get("tools") or []
    assert isinstance(messages, list)
    assert isinstance(tools, list)
    said = f"call {short(call.id)} of {when(call.at)}: {plural(len(messages), 'message')} for {call.size:,} that were there"
    return f"{said}, {plural(len(tools), 'tool')}; the prompt was {call.usage.prompt:,} tokens, as the provider says"
