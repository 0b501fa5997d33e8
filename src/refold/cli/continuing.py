"""`refold new` and `refold resume`: begin anew, or go on with an earlier session.

One idea: a session is never reopened. Both commands close the open one and open another, and say how to get back, since nothing is
lost by either.
"""

from __future__ import annotations

from refold.cli import output, stored
from refold.cli.columns import short
from refold.cli.finding import described, session_table
from refold.cli.folding import Order, opened
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.core.stages.shown import handle_of
from refold.engine.sessions import Resumed, can_be_resumed, line_of
from refold.engine.status import Status
from refold.keeping import Engine
from refold.model.errors import NotFound
from refold.ports.store import Head, Session

RECENT = 20
"""Sessions that are listed: about as many as are seen at once; words find the others."""
LEAST_ID = 4
"""Letters by which a session is taken to be named: fewer are more likely a word."""


def new(place: Place, name: str, order: Order) -> int:
    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, order.branch)
        async with opened(engine, head, order) as talk:
            begun = await talk.new()
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
    """The session that is named, or else the one that the words fit best, among those that can be resumed.

    Raises:
        NotFound: there is none.
    """
    known = await engine.sessions(head.conversation, limit=EVERYTHING)
    able = {one.id: one for one in await _able(engine, head)}
    if len(what) >= LEAST_ID and any(one.id.startswith(what) for one in known):
        return stored.the_one([*able.values()], what, "session that can be resumed")
    found = await engine.find_sessions(what, name=head.conversation, limit=len(known))
    fitting = [able[one.id] for _, one in found if one.id in able]
    if not fitting:
        raise NotFound(
            f"no earlier session of {plain(head.conversation)!r} fits {plain(what)!r}",
            hint=f"`refold resume {plain(head.conversation)}` lists those that can be; the open one goes on by itself",
        )
    return fitting[0]


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


def _tell(head: Head, target: Session, resumed: Resumed, status: Status, *, as_json: bool) -> None:
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
