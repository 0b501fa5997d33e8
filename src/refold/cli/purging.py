"""`refold delete` and `refold expire`: the only commands that take something away.

What is deleted is gone, from the index and from summaries too. So a command must be told exactly what to delete, and asks where it
would be much: everything, more than a share of all, or whatever a clock says that nobody should believe. `--yes` answers, and is
needed where there is no terminal to ask at.
"""

from __future__ import annotations

import os
import re
import sys
import time

import typer

from refold.cli import output, stored
from refold.cli.columns import when
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.engine.engine import Engine
from refold.engine.retention import DAY_S, clock_lead_s, most_at_once
from refold.model.errors import ConfigError
from refold.ports.store import Idle

_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(r"(\d{1,6})([mhdw])")


def delete(place: Place, name: str, *, everything: bool, is_sure: bool, as_json: bool) -> int:
    if bool(name) == everything:
        raise ConfigError("say what to delete: one conversation, or --all", hint="refold delete CONV")
    if everything and not is_sure:
        raise ConfigError(
            f"--all deletes every conversation of the owner {plain(place.owner)!r}",
            hint="add --yes if you mean it; `refold db backup PATH` keeps a copy",
        )

    async def act(engine: Engine) -> int:
        if name:
            await stored.head_of(engine, name)
        gone = await engine.delete(name)
        _tell(gone, as_json=as_json)
        return 0

    return stored.change(place, act)


def expire(place: Place, older_than: str, *, dry_run: bool, is_sure: bool, as_json: bool) -> int:
    span_s, now = seconds_of(older_than), time.time()
    before = now - span_s

    async def list_idle(engine: Engine) -> int:
        idle = await engine.store.idle(engine.owner, before)
        _tell(idle.idle, as_json=as_json, idle=idle, is_rehearsal=True)
        listed = [] if as_json else await engine.conversations(limit=EVERYTHING)
        for one in listed:
            if one.updated_at < before:
                output.note(f"  {plain(one.id)}  last used {when(one.updated_at)}")
        return 0

    async def ask_first(engine: Engine) -> int:
        idle = await engine.store.idle(engine.owner, before)
        lead_s = await clock_lead_s(engine.store, engine.owner, now)
        why = _why_ask(idle, lead_s, span_s, stored.max_expired_share(os.environ))
        return 0 if not why or _is_wanted(idle, why) else 1

    async def act(engine: Engine) -> int:
        idle = await engine.store.idle(engine.owner, before)
        _tell(await engine.expire(before), as_json=as_json, idle=idle)
        return 0

    if dry_run:
        return stored.look(place, list_idle)
    if not is_sure and (code := stored.look(place, ask_first)):
        return code
    return stored.change(place, act)


def _why_ask(idle: Idle, lead_s: float, span_s: int, share: float) -> str:
    """Why nothing is deleted without a word from somebody; empty where that is not needed."""
    if not idle.idle:
        return ""
    if not span_s:
        return "every conversation is older than that"
    if lead_s:
        return f"the clock is {lead_s / DAY_S:,.1f} days ahead of the last use of the store"
    if idle.idle > most_at_once(share, idle.conversations):
        return f"that is more than {100 * share:g} % of all"
    return ""


def _is_wanted(idle: Idle, why: str) -> bool:
    """Ask whoever sits at the terminal.

    Raises:
        ConfigError: nobody does.
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
    """A span of time such as 90d, 12h, 4w or 30m.

    Raises:
        ConfigError: it is none.
    """
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise ConfigError(f"{plain(span)!r} is no span of time", hint="write 90d, 4w, 12h or 30m")
    return int(found[1]) * _SECONDS[found[2]]


def _tell(gone: int, *, as_json: bool, idle: Idle | None = None, is_rehearsal: bool = False) -> None:
    if as_json:
        told: dict[str, object] = {
            "deleted": 0 if is_rehearsal else gone,
            "would_delete": gone,
            "dry_run": is_rehearsal,
        }
        if idle is not None:
            told |= {"conversations": idle.conversations, "oldest": idle.oldest, "newest": idle.newest}
        output.write_json(told)
    else:
        output.note(f"{'would delete' if is_rehearsal else 'deleted'} {plural(gone, 'conversation')}")
