"""`refold resume`: goes on with an earlier session of a conversation, in a new session.

A session is never reopened. The session to resume is the one that was named, or the best of those in which the words were said;
a session that is only close in meaning is offered in the hint, and never taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import (
    BranchId,
    Conv,
    JsonOption,
    SizeOptions,
    StoreOptions,
    SummariserOptions,
    expanded,
)
from refold.cli.output import plain, plural, short
from refold.model.errors import NotFound

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.engine.sessions import OpenedSession
    from refold.engine.status import Status
    from refold.ports.records import Head, Session

RECENT = 20
"""Sessions that are listed: about as many as fit on a screen; words find the others."""
LEAST_ID = 4
"""Letters by which a session is taken to be named: fewer are more likely a word."""
_LIKE_AN_ID = re.compile(r"[0-9a-f]{6}\S*", re.IGNORECASE)
EXAMPLES = """\b
Examples:
  refold resume support-42
  refold resume support-42 3f2a91c0
  refold resume support-42 "the refund"
"""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(resume))


def resume(
    conv: Conv,
    what: Annotated[
        str,
        typer.Argument(
            metavar="SESSION|TEXT",
            help="Its id, or words that were said in it. Without it the latest are listed.",
            show_default=False,
        ),
    ] = "",
    *,
    summariser: SummariserOptions,
    sizes: SizeOptions,
    branch: BranchId = "",
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Go on with an earlier session of a conversation: with all its messages where they fit the window, else with its summary.

    A new session begins with it; the earlier one stays as it is. A session is named by its id, of which the first letters are
    enough, or by words that were said in it: the best match is taken, and if the words were never said nothing is changed. Without
    an argument the latest sessions that can be resumed are listed.
    """
    from refold.cli import store_access
    from refold.cli.settings import policy_here

    if not what.strip():
        return _list(place, conv, branch=branch, as_json=as_json)
    policy = policy_here()

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        target = await _wanted(engine, head, what.strip())
        async with store_access.opened(engine, head, sizes, summariser, policy=policy) as conversation:
            resumed = await conversation.resume(target)
            await conversation.ready()
            status = await conversation.status()
        _show(head, target, resumed, status, as_json=as_json)
        return 0

    return store_access.change(place, act)


def _list(place: StoreOptions, name: str, *, branch: str, as_json: bool) -> int:
    """List the sessions that can be resumed, the latest first."""
    from refold.cli import store_access
    from refold.cli.store_access import session_entries, session_table

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, name, branch)
        latest = (await _resumable(engine, head))[: -RECENT - 1 : -1]
        found = await session_entries(engine, [(name, one) for one in latest])
        if as_json:
            output.write_json({"conversation": name, "sessions": found})
        elif found:
            output.write(session_table(found))
        output.note(_count(name, len(found)))
        return 0 if found else 1

    return store_access.look(place, act)


def _count(name: str, number: int) -> str:
    if not number:
        return f"no earlier session of {plain(name)!r} can be resumed\nhint: the open one goes on by itself"
    return f"{plural(number, 'session')}, the latest first\nhint: `refold resume {plain(name)} ID` goes on with one"


async def _wanted(engine: Engine, head: Head, what: str) -> Session:
    """The session that is named, or else the one that fits best of those in which the words were said, if it can be resumed.

    Raises:
        NotFound: there is none.
    """
    from refold.cli.store_access import EVERYTHING, row_by_prefix

    known = await engine.sessions(head.conversation, limit=EVERYTHING)
    able = {one.id: one for one in await _resumable(engine, head)}
    if len(what) >= LEAST_ID and any(one.id.startswith(what) for one in known):
        return row_by_prefix([*able.values()], what, "session that can be resumed")
    found = await engine.find_sessions(what, name=head.conversation, limit=len(known))
    near = [one.id for _, one in found if one.id in able]
    found = await engine.find_sessions(what, name=head.conversation, limit=len(known), by_meaning=False)
    said = {one.id for _, one in found}
    for which in near:
        if which in said:
            return able[which]
    if not said and _LIKE_AN_ID.fullmatch(what):
        raise _no_id(head.conversation, what, reversed(able))
    raise _unsaid(head.conversation, what, near)


def _no_id(name: str, what: str, able: Iterable[str]) -> NotFound:
    """The error for text that looks like an id; `able` are the ids of the sessions that can be resumed."""
    ids = ", ".join(short(which) for which in islice(able, RECENT))
    tells = f"those that can be resumed: {ids}; `refold resume {plain(name)}` tells more of them"
    return NotFound(
        f"no session of {plain(name)!r} has an id that begins with {plain(what)!r}, and nobody said it",
        hint=tells if ids else "no earlier one can be resumed; the open one goes on by itself",
    )


def _unsaid(name: str, what: str, near: Sequence[str]) -> NotFound:
    """The error for words that were not said; `near` are the ids of sessions close in meaning, the closest first."""
    which = short(near[0]) if near else ""
    offered = f"closest in meaning is {which}; `refold resume {plain(name)} {which}` goes on with it"
    lists = f"`refold resume {plain(name)}` lists those that can be; the open one goes on by itself"
    return NotFound(
        f"no earlier session of {plain(name)!r} fits {plain(what)!r}: nobody said that there",
        hint=offered if near else lists,
    )


async def _resumable(engine: Engine, head: Head) -> list[Session]:
    """The sessions that a branch can go on with, those from before it was forked too, oldest first."""
    from refold.cli.store_access import EVERYTHING
    from refold.engine.sessions import can_be_resumed, line_of

    line = await line_of(engine.store, head)
    known = await engine.sessions(head.conversation, limit=EVERYTHING)
    return [one for one in known if can_be_resumed(one, line)]


def _show(head: Head, target: Session, resumed: OpenedSession, status: Status, *, as_json: bool) -> None:
    from refold.cli.store_access import way_back

    opened, carries = resumed.session, resumed.carries
    if as_json:
        output.write_json(
            {
                "conversation": head.conversation,
                "session": opened.id,
                "target": target.id,
                "carries": carries,
                "first": opened.first,
                "closed": head.session,
                "tokens": status.tokens,
                "limit": status.limit,
                "arithmetic": status.arithmetic,
            }
        )
        return
    said = plural((target.last or 0) - target.first, "message")
    what = "all that it showed" if carries == "full" else "its summary"
    output.write(f"{short(opened.id)}  goes on with {short(target.id)} ({said}): {what}\n")
    output.note(f"its context has {status.tokens:,} of {status.limit:,} tokens ({status.arithmetic})")
    output.note(way_back(head.conversation, head.session))
