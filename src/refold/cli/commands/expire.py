"""`refold expire`: deletes the conversations that were idle for a span of time.

It asks first where it would delete much, where the clock cannot be believed, and for a span of zero. `--yes` answers, and is needed
where there is no terminal to ask at.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.options import JsonOption, StoreOptions, expanded
from refold.cli.output import plain, plural, when
from refold.model.errors import ConfigError

if TYPE_CHECKING:
    from refold.engine.engine import Engine
    from refold.ports.records import Idle

_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(r"(\d{1,6})([mhdw])")


def declare(app: typer.Typer) -> None:
    app.command(epilog="Example: refold expire --older-than 90d --dry-run")(expanded(expire))


def expire(
    *,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="SPAN", help="Such as 90d, 4w, 12h or 30m.", show_default=False),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    place: StoreOptions,
    as_json: JsonOption = False,
) -> int:
    """Delete the conversations that were not used for a span of time.

    It asks first where they are more than a tenth of all, where the clock is days ahead of the last use of the store, and for 0d.
    Without a terminal it needs --yes then.
    """
    from refold.cli import store_access
    from refold.engine.retention import clock_lead_s

    span_s, now = seconds_of(older_than), time.time()
    before = now - span_s

    async def list_idle(engine: Engine) -> int:
        idle = await engine.store.idle(engine.owner, before)
        _show(idle.idle, idle, is_rehearsal=True, as_json=as_json)
        listed = [] if as_json else await engine.conversations(limit=store_access.EVERYTHING)
        for one in listed:
            if one.updated_at < before:
                output.note(f"  {plain(one.id)}  last used {when(one.updated_at)}")
        return 0

    async def ask_first(engine: Engine) -> int:
        idle = await engine.store.idle(engine.owner, before)
        lead_s = await clock_lead_s(engine.store, engine.owner, now)
        why = _why_ask(idle, lead_s, span_s, store_access.max_expired_share(os.environ))
        return 0 if not why or _is_confirmed(idle, why) else 1

    async def act(engine: Engine) -> int:
        idle = await engine.store.idle(engine.owner, before)
        _show(await engine.expire(before), idle, is_rehearsal=False, as_json=as_json)
        return 0

    if dry_run:
        return store_access.look(place, list_idle)
    if not is_sure and (code := store_access.look(place, ask_first)):
        return code
    return store_access.change(place, act)


def _why_ask(idle: Idle, lead_s: float, span_s: int, share: float) -> str:
    """The reason to ask before anything is deleted; empty where there is none."""
    from refold.engine.retention import DAY_S, most_at_once

    if not idle.idle:
        return ""
    if not span_s:
        return "every conversation is older than that"
    if lead_s:
        return f"the clock is {lead_s / DAY_S:,.1f} days ahead of the last use of the store"
    if idle.idle > most_at_once(share, idle.conversations):
        return f"that is more than {100 * share:g} % of all"
    return ""


def _is_confirmed(idle: Idle, why: str) -> bool:
    """Ask at the terminal.

    Raises:
        ConfigError: there is no terminal.
    """
    percent = 100 * idle.idle / idle.conversations
    what = f"{idle.idle:,} of {plural(idle.conversations, 'conversation')} ({percent:.0f} %)"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            f"this would delete {what}: {why}",
            hint="see them with --dry-run, and add --yes if you mean it; `refold db backup PATH` keeps a copy",
        )
    output.note(f"{what} would be deleted, last used {when(idle.oldest)} to {when(idle.newest)}: {why}")
    if typer.confirm("Delete them for good?", default=False, err=True):
        return True
    output.note("nothing was deleted")
    return False


def seconds_of(span: str) -> int:
    """The seconds of a span of time such as 90d, 12h, 4w or 30m.

    Raises:
        ConfigError: the text is no span of time.
    """
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise ConfigError(f"{plain(span)!r} is no span of time", hint="write 90d, 4w, 12h or 30m")
    return int(found[1]) * _SECONDS[found[2]]


def _show(count: int, idle: Idle, *, is_rehearsal: bool, as_json: bool) -> None:
    if as_json:
        output.write_json(
            {
                "deleted": 0 if is_rehearsal else count,
                "would_delete": count,
                "dry_run": is_rehearsal,
                "conversations": idle.conversations,
                "oldest": idle.oldest,
                "newest": idle.newest,
            }
        )
    else:
        output.note(f"{'would delete' if is_rehearsal else 'deleted'} {plural(count, 'conversation')}")
