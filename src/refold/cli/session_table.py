"""Sessions with the beginnings of their summaries, as `refold search --sessions` and `refold resume` list them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from refold.cli.output import align, plain, short, when
from refold.core.shown import handle_of
from refold.engine.engine import Engine
from refold.ports.records import Session

SUMMARY_CHARACTERS = 60
"""Of a summary in a list: enough to tell the subject, on one line."""


class SessionEntry(Struct, frozen=True):
    """A session with its summary. The fields are keys of the JSON documents, and stay."""

    conversation: str
    id: str
    branch: str
    state: str
    first: int
    last: int | None
    at: float
    closed_at: float | None
    summary: str


async def session_entries(engine: Engine, pairs: Sequence[tuple[str, Session]]) -> list[SessionEntry]:
    """Sessions, each given with the name of its conversation, together with their summaries."""
    ids = [one.summary for _, one in pairs if one.summary]
    texts = {one.id: one.summary.text for one in await engine.summaries(ids)}
    return [
        SessionEntry(
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


def session_table(entries: Sequence[SessionEntry]) -> str:
    head = ("session", "conversation", "state", "from", "begun", "about")
    rows = [
        (short(one.id), plain(one.conversation), one.state, handle_of(one.first), when(one.at), _subject(one))
        for one in entries
    ]
    return align(head, rows, cuts_last=True)


def _subject(one: SessionEntry) -> str:
    return plain(next(iter(one.summary.splitlines()), ""), SUMMARY_CHARACTERS)
