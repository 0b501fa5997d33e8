"""`refold sessions`: the sessions of a stored conversation, with the totals of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

from refold.cli import output
from refold.cli.options import BranchId, Conv, JsonOption, StoreOptions, expanded
from refold.cli.output import align, plain, plural, short, when
from refold.model.tokens import Usage

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.ports.records import Call, Session

HEAD = (
    *("session", "kind", "state", "from", "messages", "calls", "read", "written", "$", "begun", "carries"),
    "summary",
)
_OPTIONAL = ("carries", "written", "read", "summary", "calls", "from")
"""Columns that a narrow screen has no room for, the first to go first; `--json` has them all."""
_NUMBERS = frozenset({"messages", "read", "written", "calls", "$"})


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold sessions support-42")(expanded(sessions))


def sessions(conv: Conv, *, branch: BranchId = "", place: StoreOptions, as_json: JsonOption = False) -> int:
    """List the sessions of a conversation, with the tokens and the cost of each.

    A session is a range of messages. A compaction closes one and opens the next, which begins with its summary; `refold new` and
    `refold resume` close one and open another too. Every message belongs to exactly one session.
    """
    from refold.cli import store_access
    from refold.engine.status import stored_fill_level

    async def act(engine: Engine) -> int:
        head = await store_access.head_of(engine, conv, branch)
        known = await engine.sessions(conv, limit=store_access.EVERYTHING)
        level = await stored_fill_level(engine.store, head)
        off = await store_access.off_name(engine, conv)
        own = [one for one in known if not branch or one.branch == head.branch]
        calls = await engine.store.calls(engine.owner, conv, store_access.EVERYTHING)
        authors = await _authors(engine, own)
        sizes = {one.branch: one.next_seq for one in (await engine.store.outline(engine.owner, conv)).heads}
        rows = [_row(one, calls, sizes.get(one.branch, 0), authors.get(one.summary, "")) for one in own]
        if as_json:
            full = {**store_access.fill_document(level, is_off=bool(off)), "off": bool(off)}
            output.write_json({"conversation": conv, **full, "sessions": rows})
        else:
            output.write(_session_table(rows))
            if any(row.estimated for row in rows):
                output.note(store_access.ESTIMATED)
            output.note(f"{plural(len(rows), 'session')}; the open one is {short(head.session)}")
            output.note(store_access.fill_text(level, off))
        return 0

    return store_access.look(place, act)


class SessionRow(Struct, frozen=True):
    """A session with the totals of its calls. The fields are keys of the JSON document, and stay."""

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
    author: str = ""
    """The author of its summary, and the reason if it is not a model."""
    estimated: int = 0
    """Calls whose usage is an estimate, because the provider reported none."""


async def _authors(engine: Engine, sessions: Sequence[Session]) -> dict[str, str]:
    """The author of each summary, by its id."""
    from refold.engine.state import SummaryAuthor

    found = await engine.summaries([one.summary for one in sessions if one.summary])
    return {one.id: SummaryAuthor.of(one.summary).text for one in found}


def _row(one: Session, calls: Sequence[Call], size: int, author: str) -> SessionRow:
    from refold.engine.history import session_usage

    own = [call for call in calls if call.session == one.id]
    end = size if one.last is None else one.last
    return SessionRow(
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
        author=author,
        estimated=sum(call.is_estimated for call in own),
    )


def _session_table(rows: Sequence[SessionRow]) -> str:
    """The table has a column of branches where there are several."""
    is_forked = len({row.branch for row in rows}) > 1
    head = (*HEAD, "branch") if is_forked else HEAD
    cells = [(*_session_cells(row), short(row.branch))[: len(head)] for row in rows]
    return align(head, cells, _NUMBERS, optional=_OPTIONAL)


def _session_cells(row: SessionRow) -> tuple[str, ...]:
    from refold.core.stage import handle_of

    source, guess = f" of {short(row.target)}" if row.target else "", "~" if row.estimated else ""
    return (
        short(row.id),
        row.kind,
        row.state if row.state != "live" else "closed",
        handle_of(row.first),
        f"{row.messages:,}",
        f"{row.calls:,}",
        f"{guess}{row.usage.prompt:,}",
        f"{guess}{row.usage.output:,}",
        f"{guess}{row.dollars:.2f}",
        when(row.at),
        f"{row.carries}{source}",
        plain(row.author),
    )
