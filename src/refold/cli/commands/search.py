"""`refold search`: finds messages, or sessions, by words and by meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import Json, Limit, StoreOptions, expanded
from refold.cli.output import INDENT, plain, plural, short
from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from refold.engine.engine import Engine, FoundMessage

EXAMPLES = """\b
Examples:
  refold search "refund policy" --in support-42
  refold search --sessions "money that was given back\""""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(search))


def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Words that were said.")],
    *,
    name: Annotated[
        str, typer.Option("--in", metavar="CONV", help="Only in this conversation.", show_default=False)
    ] = "",
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Find sessions instead, by words and by meaning.")
    ] = False,
    words_only: Annotated[
        bool, typer.Option("--words-only", help="With --sessions: not by meaning.")
    ] = False,
    limit: Limit = 20,
    place: StoreOptions,
    as_json: Json = False,
) -> int:
    """Find messages by their words, in every conversation, with handles to recall them.

    Messages that hold all of the words come first; where there are none, those that hold some. With --sessions whole sessions are
    found, closed ones also by their subject, in other words too (extra `search`). The exit code is 1 if nothing is found.
    """
    from refold.cli import store_access

    if words_only and not sessions:
        raise ConfigError("--words-only is for --sessions", hint="messages are found by their words anyhow")
    if not text.strip():
        raise ConfigError("there is nothing to search for", hint="give some words that were said")

    async def act(engine: Engine) -> int:
        if name:
            await store_access.head_of(engine, name)
        if sessions:
            return await _find_sessions(
                engine, text, name=name, limit=limit, by_meaning=not words_only, as_json=as_json
            )
        return await _find_messages(engine, text, name=name, limit=limit, as_json=as_json)

    return store_access.look(place, act)


async def _find_messages(engine: Engine, words: str, *, name: str, limit: int, as_json: bool) -> int:
    found = await engine.search(words, name=name, limit=limit)
    if as_json:
        output.write_json({"words": words, "found": found})
    elif found:
        forked = await _forked(engine, {one.conversation for one in found})
        output.write("".join(_entry(one, is_forked=one.conversation in forked) for one in found))
    output.note(_count(found, limit))
    return 0 if found else 1


async def _find_sessions(
    engine: Engine, words: str, *, name: str, limit: int, by_meaning: bool, as_json: bool
) -> int:
    from refold.cli.store_access import session_entries, session_table

    pairs = await engine.find_sessions(words, name=name, limit=limit, by_meaning=by_meaning)
    found = await session_entries(engine, pairs)
    if as_json:
        output.write_json({"words": words, "sessions": found})
    elif found:
        output.write(session_table(found))
    output.note(_count_sessions(len(found)))
    return 0 if found else 1


async def _forked(engine: Engine, names: set[str]) -> set[str]:
    """The conversations that have more than one branch: there a handle alone may mean several messages."""
    from refold.cli.store_access import EVERYTHING

    known = {name: await engine.sessions(name, limit=EVERYTHING) for name in names}
    return {name for name, rows in known.items() if len({row.branch for row in rows}) > 1}


def _entry(one: FoundMessage, *, is_forked: bool) -> str:
    """The conversation, its branch where there are several, then the passages with their handle."""
    from refold.cli.output import harmless

    lines = one.text.splitlines() or [f"{one.handle} [{one.damage or 'the content was not kept'}]"]
    branch = f"  branch {short(one.branch)}" if is_forked else ""
    return f"{plain(one.conversation)}{branch}\n" + "".join(f"{INDENT}{harmless(line)}\n" for line in lines)


def _count(found: list[FoundMessage], limit: int) -> str:
    if not found:
        return "nothing that was said holds these words\nhint: try fewer or other words"
    if damaged := sum(bool(one.damage) for one in found):
        return f"{plural(len(found), 'message')}, of which {damaged:,} cannot be read\nhint: `refold doctor` says what is damaged"
    if len(found) == limit:
        return f"the best {limit:,}\nhint: --limit shows more; `refold recall CONV HANDLE` gives the whole message"
    return f"{plural(len(found), 'message')}\nhint: `refold recall CONV HANDLE` gives the whole message"


def _count_sessions(number: int) -> str:
    if not number:
        return "no session fits these words\nhint: try other words"
    return f"{plural(number, 'session')}, the best first\nhint: `refold show CONV --session ID` shows what was said"
