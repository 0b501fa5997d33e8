"""`refold import`: keeps a transcript as a stored conversation.

All messages are added in one transaction, each with the bytes it came with. The fields around them (system prompt, tools, model) are
kept beside them, so that `refold export` gives the request back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Raw

from refold.cli import output
from refold.cli.options import FileArgument, JsonOption, StoreOptions, TranscriptOptions, expanded
from refold.cli.output import plain, plural
from refold.model.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.ports.records import Head
    from refold.wire import Request

RECORDED = ("times", "usage")
"""Fields that a session log adds to its messages; they belong to no request."""
EXAMPLES = """\b
Examples:
  refold import examples/coding-agent.json --as shifts
  refold import ~/.claude/projects/my-project/session.jsonl --as my-project"""


def declare(app: typer.Typer) -> None:
    app.command("import", epilog=EXAMPLES)(expanded(import_))


def import_(
    file: FileArgument,
    *,
    name: Annotated[
        str, typer.Option("--as", metavar="CONV", help="The name to keep it under.", show_default=False)
    ],
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="What it is about.", show_default=False)
    ] = "",
    append: Annotated[
        bool, typer.Option("--append", help="Add to a conversation that has messages.")
    ] = False,
    reads: TranscriptOptions,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Keep a transcript as a stored conversation.

    A request, a list of messages, one message per line, or a session log of Claude Code, Codex, pi or opencode. Its messages keep
    their bytes and are stored all at once or not at all; its system prompt and tools are kept with them. A store that is not there
    yet is made.
    """
    from refold.cli import store_access, transcript

    data = transcript.read_bytes(file, limit=reads.max_body_bytes)
    with output.busy("importing", len(data)):
        request = transcript.decode(data, file, reads)
        if request.continues:
            raise ConfigError(
                "the request goes on from messages that the provider keeps",
                hint="give the whole conversation",
            )

        async def act(engine: Engine) -> int:
            before = await _add(engine, request, name, title, append=append)
            _show(name, before, len(request.messages), as_json=as_json)
            return 0

        return store_access.change(place, act, begins=True)


async def _add(engine: Engine, request: Request, name: str, title: str, *, append: bool) -> int:
    """Add the messages in one transaction; the result is the number of messages before."""
    from refold.wire.json_codec import write

    head = await engine.store.head(engine.owner, name)
    before = head.next_seq if head else 0
    if head is not None:
        _check_append(head, request, name, append=append)
    conversation = await engine.conversation(
        name, model=request.model, format=request.dialect.name, title=title
    )
    fields = _around(request)
    if fields and not before:
        await conversation.set_instructions(bytes(write({**fields})))
    elif fields:
        output.note("only the messages are added; what stands around them in the file is left out")
    await conversation.add(*request.messages)
    return before


def _check_append(head: Head, request: Request, name: str, *, append: bool) -> None:
    if head.next_seq and not append:
        raise StoreError(
            f"the conversation {plain(name)!r} has {plural(head.next_seq, 'message')} already",
            hint="choose another name with --as, or add to it with --append",
        )
    if head.format != request.dialect.name:
        raise StoreError(
            f"the conversation is in the {head.format} format, the file in {request.dialect.name}",
            hint="import it under another name",
        )


def _around(request: Request) -> dict[str, Raw]:
    """The fields of a request; of its messages only the system prompt at the head of the list."""
    from refold.wire.json_codec import write
    from refold.wire.request import encode_item

    key = request.dialect.messages_key
    fields = {field: raw for field, raw in request.fields.items() if field not in (key, *RECORDED)}
    if request.offset:
        # Chat and Responses have the prompt in the list.
        prompt = request.system[len(request.system) - request.offset :]
        fields[key] = write([encode_item(message, request.dialect) for message in prompt])
    return fields


def _show(name: str, before: int, count: int, *, as_json: bool) -> None:
    if as_json:
        output.write_json(
            {"conversation": name, "before": before, "added": count, "messages": before + count}
        )
    else:
        output.note(f"{plural(count, 'message')} kept as {plain(name)!r}, {before + count:,} in all")
