"""`refold search`: finds messages, or sessions, by words and by meaning."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import JsonOption, LimitOption, StoreOptions, expanded
from refold.cli.output import INDENT, harmless, plain, plural, short, when
from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from refold.engine.engine import Engine, FoundMessage

EXAMPLES = """\b
Examples:
  refold search "refund policy" --in support-42
  refold search 'refund "night boat" -storm after:2026-05 from:user'
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
    limit: LimitOption = 20,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Find messages by their words, in every conversation, with handles to recall them.

    The best come first: those with the rarest of the words, and with most of them. Words count in all their forms, and with one typing
    error if there is no other match; a question in plain words does. "A phrase" in quotes must occur as it is, -word must not; in:CONV,
    from:user, after:2026-05-31 and before:2026-06 restrict the messages. Without words,
    these fields, or a date such as "7 May 2023", list the messages of that time, the newest first. With --sessions whole sessions are found, closed ones also by
    their subject, in other words too (extra `search`). The exit code is 1 if nothing is found.
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
    forked = await _forked(engine, {one.conversation for one in found})
    if as_json:
        output.write_json({"words": words, "found": found})
    elif found:
        _show(found, forked)
    _note_limits(engine, words)
    output.note(_count(found, limit, words, forked))
    return 0 if found else 1


def _note_limits(engine: Engine, words: str) -> None:
    """Say what of a query had no effect."""
    from refold.core.search.query import tell_mistakes

    for problem in filter(None, (tell_mistakes(words), engine.search_problem)):
        output.note(f"warning: {plain(problem)}")


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
    _note_limits(engine, words)
    output.note(_count_sessions(len(found), words))
    return 0 if found else 1


async def _forked(engine: Engine, names: set[str]) -> set[str]:
    """The conversations that have more than one branch: there a handle alone may mean several messages."""
    from refold.cli.store_access import EVERYTHING

    known = {name: await engine.sessions(name, limit=EVERYTHING) for name in names}
    return {name for name, rows in known.items() if len({row.branch for row in rows}) > 1}


def _show(found: list[FoundMessage], forked: set[str]) -> None:
    """Where each message is, then its passages with their handle. On a terminal the words of the query are bold."""
    from rich.text import Text

    shown = Text()
    for one in found:
        branch = [f"branch {short(one.branch)}"] if one.conversation in forked else []
        session = [f"session {short(one.session)}"] if one.session else []
        shown.append(
            "  ".join([plain(one.conversation), *session, *branch, *([when(one.at)] if one.at else [])])
            + "\n"
        )
        text = one.text or f"{one.handle} [{one.damage or 'the content was not kept'}]"
        shown.append(INDENT)
        at = 0
        for start, end in (*one.marks, (len(text), len(text))):
            shown.append(_indented(text[at:start]))
            shown.append(_indented(text[start:end]), style="bold")
            at = end
        shown.append("\n")
    shown.rstrip()
    output.show(shown)


def _indented(text: str) -> str:
    """A passage, or a part of one, without control characters."""
    return f"\n{INDENT}".join(harmless(line) for line in text.split("\n"))


def _count(found: list[FoundMessage], limit: int, words: str, forked: set[str]) -> str:
    from refold.core.search.query import parse_query

    query = parse_query(words)
    order = "newest" if query.spans else "best"
    if not found:
        return _nothing("message", words)
    if damaged := sum(bool(one.damage) for one in found):
        return f"{plural(len(found), 'message')}, of which {damaged:,} cannot be read\nhint: `refold doctor` says what is damaged"
    first = found[0]
    branch = f" --branch {short(first.branch)}" if first.conversation in forked else ""
    recall = (
        f"`refold recall {quote(plain(first.conversation))} '{first.handle}'{branch}` gives the whole message"
    )
    if len(found) == limit:
        return f"the {order} {limit:,}\nhint: --limit shows more; {recall}"
    listed = ", the newest first" if order == "newest" else ""
    if query.terms and not query.spans and not any(one.marks for one in found):
        listed = ", near in meaning: none has these words"
    return f"{plural(len(found), 'message')}{listed}\nhint: {recall}"


def _count_sessions(number: int, words: str) -> str:
    if not number:
        return _nothing("session", words)
    from refold.core.search.query import parse_query

    order = "newest" if parse_query(words).spans else "best"
    return f"{plural(number, 'session')}, the {order} first\nhint: `refold show CONV --session ID` shows what was said"


def _nothing(what: str, words: str) -> str:
    """What to say where nothing was found."""
    from refold.core.search.query import parse_query

    query = parse_query(words)
    if query.spans and query.excluded:
        return f"there is no other {what}\nhint: -word leaves out every message with this word"
    if query.spans:
        return f"there is no {what} of this time or place\nhint: days begin at midnight UTC; `refold list` shows the conversations and their times"
    if query.dates and all(term.is_date for term in query.terms):
        return f"no {what} names this date\nhint: with a year (May 2023, 7 May 2023) or after: and before:, a date lists what was said then"
    return f"no {what} {'has' if what == 'message' else 'fits'} these words\nhint: try fewer or other words"
