"""`refold new` and `refold resume`: begin anew, or go on with an earlier session.

One idea: a session is never reopened. Both commands close the open one and open another, and say how to get back, since nothing is
lost by either.
"""

from __future__ import annotations

from msgspec import Struct

from refold.cli import output, stored
from refold.cli.columns import short
from refold.cli.output import plain, plural
from refold.cli.sizing import Wish
from refold.cli.stored import EVERYTHING, Place
from refold.core.stages.shown import handle_of
from refold.engine.sessions import Resumed
from refold.engine.status import Status
from refold.keeping import Engine
from refold.model.errors import ConfigError, NotFound
from refold.ports.store import Head, Session

LEAST_ID = 4
"""Letters by which a session is taken to be named: fewer are more likely a word."""


class Order(Struct, frozen=True, kw_only=True):
    """How to open the conversation."""

    wish: Wish = Wish()
    branch: str = ""
    as_json: bool = False


def new(place: Place, name: str, *, branch: str, as_json: bool) -> int:
    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, branch)
        talk = await engine.conversation(name, branch=head.branch)
        opened = await talk.new()
        if as_json:
            output.write_json(
                {"conversation": name, "session": opened.id, "first": opened.first, "closed": head.session}
            )
            return 0
        output.write(f"{short(opened.id)}  begins at {handle_of(opened.first)}, with nothing shown\n")
        output.note(_back(name, head.session))
        return 0

    return stored.change(place, act)


def resume(place: Place, name: str, what: str, order: Order) -> int:
    if not what.strip():
        raise ConfigError(
            "say which session to go on with", hint="give its id, or words that were said in it"
        )

    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, order.branch)
        target = await _wanted(engine, head, what.strip())
        sizes = {"window": order.wish.window, "max_output": order.wish.max_output}
        talk = await engine.conversation(name, branch=head.branch, model=order.wish.model, **sizes)
        resumed = await talk.resume(target)
        _tell(head, target, resumed, await talk.status(), as_json=order.as_json)
        return 0

    return stored.change(place, act)


async def _wanted(engine: Engine, head: Head, what: str) -> Session:
    """The session that is named, or else the one that the words fit best, among those that can be resumed.

    Raises:
        NotFound: there is none.
    """
    known = await engine.sessions(head.conversation, limit=EVERYTHING)
    able = {one.id: one for one in known if _can_be_resumed(one, head)}
    if len(what) >= LEAST_ID and any(one.id.startswith(what) for one in known):
        return stored.the_one([*able.values()], what, "session that can be resumed")
    found = await engine.find_sessions(what, name=head.conversation, limit=len(known))
    fitting = [able[one.id] for _, one in found if one.id in able]
    if not fitting:
        raise NotFound(
            f"no earlier session of {plain(head.conversation)!r} fits {plain(what)!r}",
            hint="`refold sessions` lists them; the open one goes on by itself",
        )
    return fitting[0]


def _can_be_resumed(one: Session, head: Head) -> bool:
    return one.branch == head.branch and one.state == "live" and one.id != head.session


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
