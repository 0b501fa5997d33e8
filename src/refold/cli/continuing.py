"""`refold new` and `refold resume`: begin anew, or go on with an earlier session.

One idea: a session is never reopened. Both commands close the open one and open another, and say how to get back, since nothing is
lost by either. What is gone on with was named or spoken of: what is only close in meaning is offered, and never taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from refold.cli import output, stored
from refold.cli.columns import short
from refold.cli.finding import described, session_table
from refold.cli.folding import Order, opened
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.core.shown import handle_of
from refold.engine.engine import Engine
from refold.engine.sessions import OpenedSession, can_be_resumed, line_of
from refold.engine.status import Status
from refold.model.errors import NotFound
from refold.ports.store import Head, Session

RECENT = 20
"""Sessions that are listed: about as many as are seen at once; words find the others."""
LEAST_ID = 4
"""Letters by which a session is taken to be named: fewer are more likely a word."""
_LIKE_AN_ID = re.compile(r"[0-9a-f]{6}\S*", re.IGNORECASE)


def new(place: Place, name: str, order: Order) -> int:
    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, order.branch)
        async with opened(engine, head, order) as talk:
            begun = await talk.start_session()
            await talk.ready()  # a command has no background
        if order.as_json:
            output.write_json(
                {"conversation": name, "session": begun.id, "first": begun.first, "closed": head.session}
            )
            return 0
        output.write(f"{short(begun.id)}  begins at {handle_of(begun.first)}, with nothing shown\n")
        await _tell_summary(engine, head.session, order)
        output.note(_back(name, head.session))
        return 0

    return stored.change(place, act)


def resume(place: Place, name: str, what: str, order: Order) -> int:
    if not what.strip():
        return _list(place, name, order)

    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, order.branch)
        target = await _wanted(engine, head, what.strip())
        async with opened(engine, head, order) as talk:
            resumed = await talk.resume(target)
            await talk.ready()
            status = await talk.status()
        _tell(head, target, resumed, status, as_json=order.as_json)
        return 0

    return stored.change(place, act)


def _list(place: Place, name: str, order: Order) -> int:
    """The sessions that can be resumed, the latest first."""

    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, order.branch)
        latest = (await _able(engine, head))[: -RECENT - 1 : -1]
        found = await described(engine, [(name, one) for one in latest])
        if order.as_json:
            output.write_json({"conversation": name, "sessions": found})
        elif found:
            output.write(session_table(found))
        output.note(_count(name, len(found)))
        return 0 if found else 1

    return stored.look(place, act)


def _count(name: str, number: int) -> str:
    if not number:
        return f"no earlier session of {plain(name)!r} can be resumed\nhint: the open one goes on by itself"
    return f"{plural(number, 'session')}, the latest first\nhint: `refold resume {plain(name)} ID` goes on with one"


async def _wanted(engine: Engine, head: Head, what: str) -> Session:
    """The session that is named, or else the one that fits best of those in which the words were said, if it can be resumed.

    Raises:
        NotFound: there is none.
    """
    known = await engine.sessions(head.conversation, limit=EVERYTHING)
    able = {one.id: one for one in await _able(engine, head)}
    if len(what) >= LEAST_ID and any(one.id.startswith(what) for one in known):
        return stored.the_one([*able.values()], what, "session that can be resumed")
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
    """Nothing is called so; `able` are the ids of those that can be resumed."""
    ids = ", ".join(short(which) for which in islice(able, RECENT))
    tells = f"those that can be resumed: {ids}; `refold resume {plain(name)}` tells more of them"
    return NotFound(
        f"no session of {plain(name)!r} has an id that begins with {plain(what)!r}, and nobody said it",
        hint=tells if ids else "no earlier one can be resumed; the open one goes on by itself",
    )


def _unsaid(name: str, what: str, near: Sequence[str]) -> NotFound:
    """Nobody spoke of it; `near` are the ids of sessions that were about something like it, the closest first."""
    which = short(near[0]) if near else ""
    offered = f"closest in meaning is {which}; `refold resume {plain(name)} {which}` goes on with it"
    lists = f"`refold resume {plain(name)}` lists those that can be; the open one goes on by itself"
    return NotFound(
        f"no earlier session of {plain(name)!r} fits {plain(what)!r}: nobody said that there",
        hint=offered if near else lists,
    )


async def _tell_summary(engine: Engine, closed: str, order: Order) -> None:
    """Who has summed up the session that was closed, where somebody was to."""
    session = await engine.store.session(engine.owner, closed) if order.summarizer else None
    for one in await engine.summaries([session.summary]) if session else ():
        is_digest = one.summary.kind != "model"
        output.note("it was closed with a digest" if is_digest else "it was summed up by the model")


async def _able(engine: Engine, head: Head) -> list[Session]:
    """The sessions that a branch can go on with, those from before it was forked too, oldest first."""
    line = await line_of(engine.store, head)
    known = await engine.sessions(head.conversation, limit=EVERYTHING)
    return [one for one in known if can_be_resumed(one, line)]


def _tell(head: Head, target: Session, resumed: OpenedSession, status: Status, *, as_json: bool) -> None:
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
            }
        )
        return
    said = plural((target.last or 0) - target.first, "message")
    what = "all that it showed" if carries == "full" else "its summary"
    output.write(f"{short(opened.id)}  goes on with {short(target.id)} ({said}): {what}\n")
    output.note(f"its context has {status.tokens:,} of {status.limit:,} tokens")
    output.note(_back(head.conversation, head.session))


def _back(name: str, closed: str) -> str:
    return f"hint: `refold resume {plain(name)} {short(closed)}` goes back to what was open before"
