"""`refold delete` and `refold expire`: the only commands that take something away.

One idea: what is deleted is gone, from the index and from summaries too, so a command must be told exactly what to delete, and
everything only with `--yes`.
"""

from __future__ import annotations

import re
import time

from refold.cli import output, stored
from refold.cli.columns import when
from refold.cli.output import plain, plural
from refold.cli.stored import EVERYTHING, Place
from refold.keeping import Engine
from refold.model.errors import ConfigError

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


def expire(place: Place, older_than: str, *, dry_run: bool, as_json: bool) -> int:
    before = time.time() - seconds_of(older_than)

    async def act(engine: Engine) -> int:
        listed = await engine.conversations(limit=EVERYTHING)
        old = [one for one in listed if one.updated_at < before]
        gone = len(old) if dry_run else await engine.expire(before)
        _tell(gone, as_json=as_json, is_rehearsal=dry_run)
        for one in old if dry_run and not as_json else ():
            output.note(f"  {plain(one.id)}  last used {when(one.updated_at)}")
        return 0

    return stored.look(place, act) if dry_run else stored.change(place, act)


def seconds_of(span: str) -> int:
    """A span of time such as 90d, 12h, 4w or 30m.

    Raises:
        ConfigError: it is none.
    """
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise ConfigError(f"{plain(span)!r} is no span of time", hint="write 90d, 4w, 12h or 30m")
    return int(found[1]) * _SECONDS[found[2]]


def _tell(gone: int, *, as_json: bool, is_rehearsal: bool = False) -> None:
    if as_json:
        output.write_json(
            {"deleted": 0 if is_rehearsal else gone, "would_delete": gone, "dry_run": is_rehearsal}
        )
    else:
        output.note(f"{'would delete' if is_rehearsal else 'deleted'} {plural(gone, 'conversation')}")
