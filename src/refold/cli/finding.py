"""`refold search` and `refold recall`: bring back what was said.

One idea: a search answers with handles, and a handle brings the whole original, whatever has been folded away since. Sessions are
answered with their ids, which other commands take.
"""

from __future__ import annotations

from msgspec import Struct

from refold.cli import output, stored
from refold.cli.columns import align, short, when
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.cli.telling import INDENT, told
from refold.core.shown import handle_of
from refold.engine.engine import Engine, FoundMessage
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError
from refold.ports.store import Session
from refold.wire.sdk import read_message

ABOUT = 60
"""Characters of a summary that are shown in a list: what it was about, on one line."""


def search(place: Place, words: str, *, name: str, limit: int, as_json: bool) -> int:
    _check_words(words)

    async def act(engine: Engine) -> int:
        if name:
            await stored.head_of(engine, name)
        found = await engine.search(words, name=name, limit=limit)
        if as_json:
            output.write_json({"words": words, "found": found})
        elif found:
            forked = await _forked(engine, {one.conversation for one in found})
            output.write("".join(_entry(one, is_forked=one.conversation in forked) for one in found))
        output.note(_count(found, limit))
        return 0 if found else 1

    return stored.look(place, act)


class FoundSession(Struct, frozen=True):
    """A session that a search found, with what it was about."""

    conversation: str
    id: str
    branch: str
    state: str
    first: int
    last: int | None
    at: float
    closed_at: float | None
    summary: str


def search_sessions(
    place: Place, words: str, *, name: str, limit: int, by_meaning: bool, as_json: bool
) -> int:
    _check_words(words)

    async def act(engine: Engine) -> int:
        if name:
            await stored.head_of(engine, name)
        pairs = await engine.find_sessions(words, name=name, limit=limit, by_meaning=by_meaning)
        found = await described(engine, pairs)
        if as_json:
            output.write_json({"words": words, "sessions": found})
        elif found:
            output.write(session_table(found))
        output.note(_count_sessions(found))
        return 0 if found else 1

    return stored.look(place, act)


async def described(engine: Engine, pairs: list[tuple[str, Session]]) -> list[FoundSession]:
    ids = [one.summary for _, one in pairs if one.summary]
    texts = {one.id: one.summary.text for one in await engine.summaries(ids)}
    return [
        FoundSession(
            conversation=name,
            id=one.id,
            branch=one.branch,
            state="open" if one.last is None else "closed",
            first=one.first,
            last=one.last,
            at=one.at,
            closed_at=one.closed_at,
            summary=texts.get(one.summary, ""),
        )
        for name, one in pairs
    ]


def recall(place: Place, name: str, what: str, *, branch: str, max_tokens: int, as_json: bool) -> int:
    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, branch)
        talk = await engine.conversation(name, branch=head.branch)
        found = await talk.recall(what, max_tokens=max_tokens)
        if as_json:
            output.write_json({"conversation": name, "recalled": what, "found": found})
        elif isinstance(found, str):
            output.write("".join(f"{_harmless(line)}\n" for line in found.splitlines()))
        else:
            message = read_message(found, DIALECTS[head.format])  # type: ignore[index]
            output.write(f"{message.role}\n{told(message)}")
        if not found:
            output.note("nothing that was said fits these words")
        return 0 if found else 1

    return stored.look(place, act)


def _check_words(words: str) -> None:
    if not words.strip():
        raise ConfigError("there is nothing to search for", hint="give some words that were said")


def session_table(found: list[FoundSession]) -> str:
    head = ("session", "conversation", "state", "from", "begun", "about")
    rows = [
        (short(one.id), plain(one.conversation), one.state, handle_of(one.first), when(one.at), _about(one))
        for one in found
    ]
    return align(head, rows, frozenset())


def _about(one: FoundSession) -> str:
    return plain(next(iter(one.summary.splitlines()), ""), ABOUT)


def _count_sessions(found: list[FoundSession]) -> str:
    if not found:
        return "no session fits these words\nhint: try other words"
    return f"{plural(len(found), 'session')}, the best first\nhint: `refold show CONV --session ID` shows what was said"


async def _forked(engine: Engine, names: set[str]) -> set[str]:
    """Those of the conversations that have more than one branch: there a handle alone may mean several messages."""
    known = {name: await engine.sessions(name, limit=EVERYTHING) for name in names}
    return {name for name, rows in known.items() if len({row.branch for row in rows}) > 1}


def _entry(one: FoundMessage, *, is_forked: bool) -> str:
    """The conversation, its branch where there are several, then the passages with their handle."""
    lines = one.text.splitlines() or [f"{one.handle} [the content was not kept]"]
    branch = f"  branch {short(one.branch)}" if is_forked else ""
    return f"{plain(one.conversation)}{branch}\n" + "".join(f"{INDENT}{_harmless(line)}\n" for line in lines)


def _harmless(line: str) -> str:
    return plain(line, len(line))


def _count(found: list[FoundMessage], limit: int) -> str:
    if not found:
        return "nothing that was said holds these words\nhint: try fewer or other words"
    if len(found) == limit:
        return f"the best {limit:,}\nhint: --limit shows more; `refold recall CONV HANDLE` gives the whole message"
    return f"{plural(len(found), 'message')}\nhint: `refold recall CONV HANDLE` gives the whole message"
