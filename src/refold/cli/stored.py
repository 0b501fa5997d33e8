"""Stored conversations, as commands reach them: a store, an owner, a name.

One idea: whoever only looks must change nothing. So a store that is not there is said to be missing instead of made, and what a
program left unfinished is ended only by commands that write.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from refold.cli.columns import when
from refold.cli.output import note, plain, plural
from refold.embeddings import installed
from refold.engine.engine import Engine
from refold.engine.retention import MAX_SHARE, HeldBack, Retention, checked_days, checked_share
from refold.model.errors import ConfigError, NotFound, StoreError
from refold.ports.store import Head
from refold.store.place import kind_of, open_store, sqlite_file

EVERYTHING = 10**9
KEEP_DAYS = "REFOLD_STORE_KEEP_DAYS"
"""For how many days conversations are kept in which nothing happens: as the gateway's setting is called."""
MAX_EXPIRED = "REFOLD_STORE_MAX_EXPIRED_SHARE"
"""How much of all conversations is deleted at once without asking, or without a second run: likewise."""


class Place(Struct, frozen=True):
    """Where conversations are, and whose."""

    url: str
    owner: str


class Named(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Named)
Act = Callable[[Engine], Awaitable[int]]


def look(place: Place, act: Act) -> int:
    """Do something that changes nothing, with a store that is there."""
    check_there(place.url)
    return asyncio.run(_with_engine(place, act, writes=False))


def change(place: Place, act: Act, *, begins: bool = False) -> int:
    """Do something that writes; `begins` where a store that is not there yet is made."""
    if not begins:
        check_there(place.url)
    check_kept(place.url)
    return asyncio.run(_with_engine(place, act, writes=True))


async def _with_engine(place: Place, act: Act, *, writes: bool) -> int:
    store = await open_store(place.url)
    async with Engine(store, owner=place.owner, embedder=installed()) as engine:
        if not writes:
            return await act(engine)
        days = _keep_days(os.environ)
        retention = Retention(
            store, place.owner, days, time.time, max_expired_share(os.environ), warn=_warn_held
        )
        await retention.begin()  # before the act: what it writes counts as use of the store
        await engine.sweep()
        code = await act(engine)
        if gone := await retention.apply(()):  # after the act: what was just used is not of long ago
            what = plural(gone, "conversation")
            note(f"deleted {what} that nothing happened in for {days:g} days ({KEEP_DAYS})")
        return code


def _warn_held(text: str) -> None:
    note(f"warning: {text} ({KEEP_DAYS})\nhint: `refold expire` deletes them now, and asks before it does")


def told_held(held: HeldBack) -> str:
    """What retention has not deleted yet, for people."""
    why = {
        "clock": "the clock was too far ahead of the last use of the store to be believed",
        "share": "they are more than one run may delete",
    }
    return f"not deleted yet, past their time: {plural(held.conversations, 'conversation')}; {why[held.reason]} ({when(held.since)})"


def _keep_days(environ: Mapping[str, str]) -> float | None:
    """For how long conversations are kept; None where nobody says so, and nothing is deleted."""
    days = _number(environ, KEEP_DAYS, "a number of days", "such as 90")
    return None if days is None else checked_days(days)


def max_expired_share(environ: Mapping[str, str]) -> float:
    """How much of all conversations is deleted at once without a question or a second run."""
    share = _number(environ, MAX_EXPIRED, "a fraction", "0 to 1, such as 0.1 for 10 %")
    return MAX_SHARE if share is None else checked_share(share)


def _number(environ: Mapping[str, str], variable: str, what: str, hint: str) -> float | None:
    if not (text := environ.get(variable, "").strip()):
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{variable} is not {what}: {plain(text)!r}", hint=hint) from None


def check_there(url: str) -> None:
    """
    Raises:
        StoreError: there is no such file.
        ConfigError: the URL names no store that outlives a command.
    """
    check_kept(url)
    path = sqlite_file(url)
    if path is not None and not path.exists():
        raise StoreError(
            "there is no store yet",
            hint="`refold import` begins one; --store or REFOLD_STORE name another",
            location=plain(str(path)),
        )


def check_kept(url: str) -> None:
    if kind_of(url) == "memory":
        raise ConfigError(
            "a store in memory is forgotten when the command ends", hint="use sqlite:///path or postgresql://"
        )


async def head_of(engine: Engine, name: str, branch: str = "") -> Head:
    """A branch of a conversation that is there.

    Raises:
        NotFound: there is none, or no such branch.
    """
    head = await engine.store.head(engine.owner, name) if name else None
    if head is None:
        raise NotFound(
            f"there is no conversation {plain(name)!r}",
            hint="`refold conversations` lists those that are there",
        )
    if not branch:
        return head
    known = dict.fromkeys(one.branch for one in await engine.sessions(name, limit=EVERYTHING))
    which = by_prefix([*known], branch, "branch")
    return await engine.store.head(engine.owner, name, which) or head


def by_prefix(ids: Sequence[str], start: str, noun: str) -> str:
    """The one id that begins so.

    Raises:
        NotFound: none does, or several do.
    """
    found = [which for which in ids if which.startswith(start)]
    if start in ids or len(found) == 1:
        return start if start in ids else found[0]
    if found:
        raise NotFound(
            f"{len(found)} ids of a {noun} begin with {plain(start)!r}", hint="give more letters of it"
        )
    raise NotFound(
        f"there is no {noun} {plain(start)!r}", hint=f"give the id of a {noun}, or its first letters"
    )


def the_one(things: Sequence[T], start: str, noun: str) -> T:
    """Likewise, among things that have an id."""
    which = by_prefix([one.id for one in things], start, noun)
    return next(one for one in things if one.id == which)
