"""`refold search` and `refold recall`: bring back what was said.

One idea: a search answers with handles, and a handle brings the whole original, whatever has been folded away since.
"""

from __future__ import annotations

from refold.cli import output, stored
from refold.cli.output import plain, plural
from refold.cli.stored import Place
from refold.cli.telling import INDENT, told
from refold.keeping import Engine, Found
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError
from refold.wire.plain import read_message


def search(place: Place, words: str, *, name: str, limit: int, as_json: bool) -> int:
    if not words.strip():
        raise ConfigError("there is nothing to search for", hint="give some words that were said")

    async def act(engine: Engine) -> int:
        if name:
            await stored.head_of(engine, name)
        found = await engine.search(words, name=name, limit=limit)
        if as_json:
            output.write_json({"words": words, "found": found})
        elif found:
            output.write("".join(map(_entry, found)))
        output.note(_count(found, limit))
        return 0 if found else 1

    return stored.look(place, act)


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


def _entry(one: Found) -> str:
    """The conversation, then the passages with their handle."""
    lines = one.text.splitlines() or [f"{one.handle} [the content was not kept]"]
    return f"{plain(one.conversation)}\n" + "".join(f"{INDENT}{_harmless(line)}\n" for line in lines)


def _harmless(line: str) -> str:
    return plain(line, len(line))


def _count(found: list[Found], limit: int) -> str:
    if not found:
        return "nothing that was said holds these words\nhint: try fewer or other words"
    if len(found) == limit:
        return f"the best {limit:,}\nhint: --limit shows more; `refold recall CONV HANDLE` gives the whole message"
    return f"{plural(len(found), 'message')}\nhint: `refold recall CONV HANDLE` gives the whole message"
