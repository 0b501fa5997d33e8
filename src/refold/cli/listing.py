"""`refold conversations` and `refold sessions`: what there is.

One idea: a list is for finding the next command's argument, so every line begins with a name or an id that commands take.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from refold.cli import output, stored
from refold.cli.columns import align, short, when
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.core.shown import handle_of
from refold.engine.engine import Engine
from refold.engine.history import session_usage
from refold.engine.state import FillLevel
from refold.engine.status import stored_fill_level
from refold.model.tokens import Usage
from refold.ports.store import Call, Listed, Session

SESSION_HEAD = (
    *("session", "kind", "state", "from", "messages", "calls", "read", "written", "$", "begun", "carries"),
)
_NUMBERS = frozenset(
    {"messages", "sessions", "compactions", "full", "tokens", "read", "written", "calls", "$"}
)


def conversations(place: Place, words: str, *, limit: int, as_json: bool) -> int:
    async def act(engine: Engine) -> int:
        found = await engine.conversations(limit=limit, words=words)
        if as_json:
            output.write_json({"owner": place.owner, "conversations": [_listed(one) for one in found]})
        elif found:
            output.write(_conversation_table(found))
        if not found:
            output.note(_none(place, words))
        elif not as_json:
            _note_list(found, limit)
        return 1 if words and not found else 0

    return stored.look(place, act)


def _note_list(found: Sequence[Listed], limit: int) -> None:
    if any(one.reason for one in found):
        output.note("! has to be compacted: the next call does it, or `refold compact CONV`")
    if len(found) == limit:
        output.note(f"the latest {limit:,}\nhint: --limit shows more, words fewer")


def sessions(place: Place, name: str, *, branch: str, as_json: bool) -> int:
    async def act(engine: Engine) -> int:
        head = await stored.head_of(engine, name, branch)
        known = await engine.sessions(name, limit=EVERYTHING)
        level = await stored_fill_level(engine.store, head)
        own = [one for one in known if not branch or one.branch == head.branch]
        calls = await engine.store.calls(engine.owner, name, EVERYTHING)
        rows = [_row(one, calls, head.next_seq) for one in own]
        if as_json:
            full = _fullness(level.tokens, level.limit, level.reason)
            output.write_json({"conversation": name, **full, "sessions": rows})
        else:
            output.write(_session_table(rows))
            output.note(f"{plural(len(rows), 'session')}; the open one is {short(head.session)}")
            output.note(_about(level))
        return 0

    return stored.look(place, act)


class Row(Struct, frozen=True):
    """A session, and what its calls took together."""

    id: str
    branch: str
    kind: str
    state: str
    first: int
    last: int | None
    messages: int
    carries: str
    parent: str
    target: str
    summary: str
    usage: Usage
    calls: int
    dollars: float
    at: float
    closed_at: float | None


def _row(one: Session, calls: Sequence[Call], size: int) -> Row:
    own = [call for call in calls if call.session == one.id]
    end = size if one.last is None else one.last
    return Row(
        id=one.id,
        branch=one.branch,
        kind=one.kind,
        state=one.state if one.last is not None or one.state == "undone" else "open",
        first=one.first,
        last=one.last,
        messages=max(0, end - one.first),
        carries=one.carries,
        parent=one.parent,
        target=one.target,
        summary=one.summary,
        usage=session_usage(own).get(one.id, Usage()),
        calls=len(own),
        dollars=sum(call.dollars for call in own),
        at=one.at,
        closed_at=one.closed_at,
    )


def _none(place: Place, words: str) -> str:
    what = f" whose name or title holds {plain(words)!r}" if words else ""
    return f"no conversations{what} of the owner {plain(place.owner)!r}\nhint: `refold import FILE --as NAME` adds one"


def _conversation_table(found: Sequence[Listed]) -> str:
    head = (
        *("name", "messages", "sessions", "compactions", "full"),
        *("read", "written", "$", "last used", "title"),
    )
    return align(head, [_cells(one) for one in found], _NUMBERS)


def _cells(one: Listed) -> tuple[str, ...]:
    return (
        plain(one.id),
        f"{one.messages:,}",
        f"{one.sessions:,}",
        f"{one.compactions:,}",
        _share(one.ratio, one.limit, is_due=bool(one.reason)),
        f"{one.usage.prompt:,}",
        f"{one.usage.output:,}",
        f"{one.dollars:.2f}",
        when(one.updated_at),
        plain(one.title),
    )


def _share(ratio: float, limit: int, *, is_due: bool) -> str:
    """How full a context is, with a mark where it has to be compacted; a dash where nobody has noted it."""
    return f"{'! ' if is_due else ''}{ratio * 100:.0f} %" if limit else "-"


def _about(level: FillLevel) -> str:
    """How full the context of the open session is, in words."""
    if not level.limit:
        return "how full its context is was not noted"
    full = f"its context is {level.ratio * 100:.0f} % full: {level.tokens:,} of {level.limit:,} tokens"
    return f"{full}; it has to be compacted: {level.reason}" if level.reason else full


def _fullness(tokens: int, limit: int, reason: str) -> dict[str, object]:
    ratio = tokens / limit if limit else None
    return {
        "tokens": tokens,
        "limit": limit,
        "ratio": ratio,
        "needs_compaction": bool(reason),
        "reason": reason,
    }


def _listed(one: Listed) -> dict[str, object]:
    full = _fullness(one.tokens, one.limit, one.reason)
    return {**structs.asdict(one), **full, "usage": structs.asdict(one.usage)}


def _session_table(rows: Sequence[Row]) -> str:
    """The column of branches is there where there are several."""
    is_forked = len({row.branch for row in rows}) > 1
    head = (*SESSION_HEAD, "branch") if is_forked else SESSION_HEAD
    cells = [(*_session_cells(row), short(row.branch))[: len(head)] for row in rows]
    return align(head, cells, _NUMBERS)


def _session_cells(row: Row) -> tuple[str, ...]:
    source = f" of {short(row.target)}" if row.target else ""
    return (
        short(row.id),
        row.kind,
        row.state if row.state != "live" else "closed",
        handle_of(row.first),
        f"{row.messages:,}",
        f"{row.calls:,}",
        f"{row.usage.prompt:,}",
        f"{row.usage.output:,}",
        f"{row.dollars:.2f}",
        when(row.at),
        f"{row.carries}{source}",
    )
