"""Sign-in of a browser: the session cookie, the tokens of acts, and the check that an act comes from our own page.

A person signs in with a Refold key. The browser gets a random id in a cookie that no script reads and no other site sends
(HttpOnly, SameSite=Strict). The store has the digest of that id, beside the owner and the end of the session, so that every gateway
on the store knows the browser. The session ends after twelve hours, when the person signs out, or when its key is revoked. Every act
also needs the token that the page holds, which is made from the cookie. Where there is no session, the token is made from a secret of
the store: a page of another site can neither read it nor send it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from starlette.types import Scope

from refold.engine.engine import OWNER
from refold.model.errors import AccessError, StoreError
from refold.ports.records import ClientKey
from refold.ports.store import ClientKeys, LearntValues

COOKIE = "refold_session"
SESSION_S = 12 * 3_600.0
"""A working day: a forgotten browser is signed out by the next morning."""
MOST_SESSIONS = 100
"""Sessions of one owner; another one ends the oldest."""
FOLLOW_S = 2.0
"""How often an event stream looks whether its browser was signed out at another gateway."""
SESSION, SECRET = "browser", "page_secret"
"""Topics of the store."""
PAGES = frozenset(
    {"", "index", "conversations", "search", "effect", "settings", "operations", "sign-in", "sign-out", "live", "static"}
)  # fmt: skip
"""The first part of every path of the page."""


class BrowserRows(LearntValues, ClientKeys, Protocol):
    """The parts of a store that sign-in needs."""


class BrowserSession(Struct, frozen=True):
    """A browser that is signed in."""

    mark: str
    """The digest of its id: the id itself is in the cookie alone."""
    owner: str
    key_id: str
    admin: bool
    until: float
    token: str = ""
    """The token of its acts."""


async def page_secret(store: LearntValues, now: float) -> str:
    """The secret that signs forms without a session. All gateways of a store have the same one, so that each takes the forms of
    the others.
    """
    known = await store.learnt(OWNER, SECRET, "")
    if known is None:
        await store.swap_learnt(OWNER, SECRET, "", None, secrets.token_bytes(32), now)
        known = await store.learnt(OWNER, SECRET, "") or secrets.token_bytes(32)
    return known.hex()


class BrowserSessions:
    """The signed-in browsers of a store, and the tokens of their acts."""

    def __init__(
        self,
        store: BrowserRows,
        clock: Callable[[], float] = time.time,
        new_secret: Callable[[], str] = lambda: secrets.token_urlsafe(32),
        *,
        secret: str = "",
    ) -> None:
        """`secret` is that of `page_secret`; without one, this process has its own."""
        self._store, self._clock, self._new_secret = store, clock, new_secret
        self.token = _token(secret or new_secret())
        """The token of acts without a session."""
        self._ends: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def begin(self, key: ClientKey) -> str:
        """Sign a browser in, and return the id for its cookie: the id of its key, and a random part."""
        now, which = self._clock(), f"{key.id}.{self._new_secret()}"
        known = await self._store.all_learnt(key.owner, SESSION)
        ends = sorted((_until(value), mark) for mark, value in known)
        left = [mark for until, mark in ends if until > now][-(MOST_SESSIONS - 1) :]
        for mark in {mark for _, mark in ends}.difference(left):
            await self._forget(key.owner, mark)
        value = msgspec.msgpack.encode(now + SESSION_S)
        await self._store.learn(key.owner, SESSION, _mark(which), value, now)
        return which

    async def find(self, headers: Iterable[tuple[bytes, bytes]]) -> BrowserSession | None:
        """The session of the cookie in these headers, unless it has ended."""
        which = cookie_in(headers, COOKIE)
        key_id, dot, _ = which.partition(".")
        if not (dot and key_id.isascii() and key_id.isalnum()):
            return None
        key = await self._store.find_key_owner(key_id)
        value = await self._store.learnt(key.owner, SESSION, _mark(which)) if key else None
        if key is None or value is None or _until(value) <= self._clock():
            return None
        return BrowserSession(_mark(which), key.owner, key.id, key.admin, _until(value), _token(which))

    async def end(self, session: BrowserSession) -> None:
        """Sign a browser out. What it still receives ends too: see `wait_for_end`."""
        await self._forget(session.owner, session.mark)

    async def wait_for_end(self, session: BrowserSession) -> None:
        """Return when the session has ended: by its time, or because the browser was signed out or its key revoked, here or at
        another gateway.
        """
        ended = self._ends.setdefault(session.mark, asyncio.Event())
        while session.until > self._clock() and await self._is_open(session):
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), min(FOLLOW_S, session.until - self._clock()))

    async def _is_open(self, session: BrowserSession) -> bool:
        try:
            key = await self._store.find_key_owner(session.key_id)
            value = await self._store.learnt(session.owner, SESSION, session.mark)
        except StoreError:
            return True  # nobody can sign out meanwhile
        return key is not None and key.revoked_at is None and value is not None

    async def _forget(self, owner: str, mark: str) -> None:
        await self._store.forget(owner, SESSION, mark)
        if (ended := self._ends.get(mark)) is not None:
            ended.set()

    def check_act(self, scope: Scope, session: BrowserSession | None, token: str) -> None:
        """
        Raises:
            AccessError: the act does not come from our own page.
        """
        values = {name: _values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site")}
        hosts = {f"{scheme}://{host}" for host in values[b"host"] for scheme in ("http", "https")}
        is_own = hosts.issuperset(values[b"origin"]) and {"same-origin"}.issuperset(values[b"sec-fetch-site"])
        if not is_own:
            raise AccessError("pages of other sites may not act here", hint="use the page itself")
        if not hmac.compare_digest(token.encode(), (session.token if session else self.token).encode()):
            raise AccessError(
                "the form is too old, or not one of this page", hint="load the page again, and repeat it"
            )


def cookie_in(headers: Iterable[tuple[bytes, bytes]], name: str) -> str:
    """The value of a cookie; empty if there is none, or more than one."""
    found = list[str]()
    for header, value in headers:
        if header == b"cookie":
            jar = SimpleCookie()
            try:
                jar.load(value.decode("latin-1"))
            except CookieError:
                continue
            found += [jar[name].value] if name in jar else []
    return found[0] if len(found) == 1 else ""


def session_cookie(which: str, *, is_secure: bool, seconds: int = int(SESSION_S)) -> str:
    """The header that gives a browser its session; with an empty id, that takes it away."""
    parts = [
        f"{COOKIE}={which}",
        "Path=/",
        "HttpOnly",
        "SameSite=Strict",
        f"Max-Age={seconds if which else 0}",
    ]
    return "; ".join([*parts, "Secure"] if is_secure else parts)


def _mark(which: str) -> str:
    return sha256(which.encode()).hexdigest()


def _token(secret: str) -> str:
    return hmac.new(secret.encode(), b"act", sha256).hexdigest()


def _until(value: bytes) -> float:
    """The end of a stored session; one that cannot be read has ended."""
    try:
        return msgspec.msgpack.decode(value, type=float)
    except msgspec.MsgspecError:
        return 0.0


def _values(scope: Scope, wanted: bytes) -> Sequence[str]:
    return [value.decode("latin-1").lower() for name, value in scope["headers"] if name == wanted]
