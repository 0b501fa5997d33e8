"""Sign-in of a browser: the session cookie, the tokens of acts, and the check that an act comes from our own page.

A person signs in with a Refold key. The browser gets a random id in a cookie that no script reads and no other site sends
(HttpOnly, SameSite=Strict); the session itself is held here, in memory, and ends after twelve hours, when the person signs out, when
its key is revoked, or with the process. Every act also needs the token that the page holds. Where there are no keys there is no
session, and the token is that of the process: a page of another site can neither read it nor send it.
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

from msgspec import Struct
from starlette.types import Scope

from refold.model.errors import AccessError
from refold.ports.records import ClientKey

COOKIE = "refold_session"
SESSION_S = 12 * 3_600.0
"""A working day: a forgotten browser is signed out by the next morning."""
MOST_SESSIONS = 1_000
"""Sessions in memory; another one ends the oldest."""
PAGES = frozenset(
    {"", "index", "conversations", "search", "effect", "settings", "operations", "sign-in", "sign-out", "live", "static"}
)  # fmt: skip
"""The first part of every path of the page."""


def is_page(path: str) -> bool:
    """True if the path is one of the page's own; only there a session cookie counts."""
    first = path.partition("/")[2].partition("/")[0]
    return path.startswith("/") and first.removesuffix(".json") in PAGES


class BrowserSession(Struct, frozen=True):
    """A browser that is signed in."""

    mark: str
    """The digest of its id: the id itself is in the cookie alone."""
    owner: str
    key_id: str
    admin: bool
    until: float


class BrowserSessions:
    """The signed-in browsers of this process, and the tokens of their acts."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        new_secret: Callable[[], str] = lambda: secrets.token_urlsafe(32),
        *,
        secret: str = "",
    ) -> None:
        """Processes with the same `secret` take each other's tokens; without one this process has its own."""
        self._clock, self._new_secret, self._secret = clock, new_secret, (secret or new_secret()).encode()
        self._sessions: dict[str, BrowserSession] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def begin(self, key: ClientKey) -> str:
        """Sign a browser in, and return the id for its cookie."""
        which = self._new_secret()
        made = BrowserSession(_mark(which), key.owner, key.id, key.admin, self._clock() + SESSION_S)
        now = self._clock()
        for one in [one for one in self._sessions.values() if one.until <= now]:
            self.end(one)
        while len(self._sessions) >= MOST_SESSIONS:
            self.end(next(iter(self._sessions.values())))
        self._sessions[made.mark] = made
        return which

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> BrowserSession | None:
        """The session of the cookie in these headers, unless it has ended."""
        which = cookie_in(headers, COOKIE)
        found = self._sessions.get(_mark(which)) if which else None
        return found if found is not None and found.until > self._clock() else None

    def end(self, session: BrowserSession) -> None:
        """Sign a browser out. What it still receives ends too: see `wait_for_end`."""
        self._sessions.pop(session.mark, None)
        if (ended := self._ends.pop(session.mark, None)) is not None:
            ended.set()

    def is_open(self, session: BrowserSession) -> bool:
        return session.mark in self._sessions and session.until > self._clock()

    async def wait_for_end(self, session: BrowserSession) -> None:
        """Return when the session has ended, by `end` or by its time."""
        if self.is_open(session):
            ended = self._ends.setdefault(session.mark, asyncio.Event())
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), session.until - self._clock())

    def token(self, mark: str) -> str:
        """The token of a session's acts; without a session, of all acts in this process."""
        return hmac.new(self._secret, f"act {mark}".encode(), sha256).hexdigest()

    def check_act(self, scope: Scope, mark: str, token: str) -> None:
        """
        Raises:
            AccessError: the act does not come from our own page.
        """
        values = {name: _values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site")}
        hosts = {f"{scheme}://{host}" for host in values[b"host"] for scheme in ("http", "https")}
        is_own = hosts.issuperset(values[b"origin"]) and {"same-origin"}.issuperset(values[b"sec-fetch-site"])
        if not is_own:
            raise AccessError("pages of other sites may not act here", hint="use the page itself")
        if not hmac.compare_digest(token.encode(), self.token(mark).encode()):
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


def _values(scope: Scope, wanted: bytes) -> Sequence[str]:
    return [value.decode("latin-1").lower() for name, value in scope["headers"] if name == wanted]
