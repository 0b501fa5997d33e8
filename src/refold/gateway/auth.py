"""Access control of the gateway: an ASGI middleware that runs before anything reads a request.

Two checks must pass. The source: the Host header must be a name of this gateway (against DNS rebinding), and
the request must not come from a foreign web page. The owner: the owner of the Refold key, or, while no key
exists, the local user of this machine. Every path but those in `PUBLIC` needs an owner.

    request ──> Host, Origin, Sec-Fetch-Site ──> key ──> scope["state"]["owner"] ──> routes

The routes find the `owner`, the `key_id` ("" without a key) and the flag `admin` in `scope["state"]`. Refold
keys are removed from `scope["headers"]`, so that they cannot be passed on to a provider by mistake; the
client's own provider key stays. On the paths in `PUBLIC` there is no `owner`.

On the paths of the page, and nowhere else, the cookie of a browser that has signed in stands for its key. A visitor of the page who
has not signed in has the empty owner, and the page asks for a key.

A key of a client is `rf_<id>_<secret>`. The id is public and finds the row, the secret is 192 random bits, and the store keeps the
SHA-256 of the whole, so the database tells no key. No slow hash: it makes guessing a password expensive, and 192 random bits cannot
be guessed; it would only let strangers keep the gateway busy with wrong keys.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from refold.dashboard.browser_access import PAGES, BrowserSession, BrowserSessions
from refold.engine.engine import OWNER
from refold.gateway.errors import ErrorResponse, answer, log_store_failure
from refold.gateway.log import facts
from refold.gateway.request import shape_of
from refold.model.errors import AccessError, ConfigError, KeyRefused, RefoldError, StoreError
from refold.ports.records import ClientKey
from refold.ports.store import ClientKeys

ID_BYTES = 6
"""Enough that two keys never meet by chance, and short enough to be read out: `refold keys revoke` takes it."""
SECRET_BYTES = 24
"""192 bits: out of reach of guessing."""
MAX_NAME = 200
"""Characters of an owner's name or a key's: as for the name of a conversation."""

KEY = re.compile(r"rf_([0-9a-f]{12})_[0-9a-f]{48}")
_NO_DIGEST = bytes(32)
"""The digest that an unknown key is compared with: no text has it, and the comparison takes as long as any other."""


def mint(
    owner: str,
    *,
    name: str = "",
    at: float,
    admin: bool = False,
    random: Callable[[int], str] = secrets.token_hex,
) -> tuple[str, ClientKey]:
    """A new key, and the row that is stored of it. The key itself is stored nowhere. An admin key is a key of its owner like any
    other, and shows the operations' settings as well.

    Raises:
        ConfigError: these cannot be names.
    """
    for text, what in ((owner, "an owner"), (name or "-", "a key")):
        if not text or len(text) > MAX_NAME or not text.isprintable():
            raise ConfigError(
                f"this cannot be the name of {what}", hint=f"use 1 to {MAX_NAME} printable characters"
            )
    which = random(ID_BYTES)
    text = f"rf_{which}_{random(SECRET_BYTES)}"
    return text, ClientKey(owner=owner, id=which, digest=digest_of(text), name=name, at=at, admin=admin)


def id_of(text: str) -> str | None:
    """The public part of a key; None where the text is no key."""
    found = KEY.fullmatch(text)
    return found[1] if found else None


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


def opens(text: str, kept: ClientKey | None) -> bool:
    """Is this the key of that row? Takes the same time for a wrong key and for an unknown one."""
    is_same = hmac.compare_digest(digest_of(text), kept.digest if kept else _NO_DIGEST)
    return is_same and kept is not None


_log = logging.getLogger("refold.gateway")

Address: TypeAlias = IPv4Address | IPv6Address
Header: TypeAlias = tuple[bytes, bytes]

PUBLIC = frozenset({"/healthz", "/readyz"})
"""Paths for load balancers; their answers reveal nothing about owners. Compared with the path used for
routing.
"""
REMEMBER_S = 5.0
"""Time that a verified key is cached: a revoked key is refused everywhere after it, and a busy client costs
one store query every few seconds instead of one per request.
"""
OUTAGE_S = 600.0
"""Seconds for which the last answer of a store holds that cannot be reached any more: an outage of the store stops no client.
A key that is revoked by a program that does reach the store is valid here for so long at most."""
MAX_REMEMBERED = 1_024
"""Size of the cache of verified keys; a further key evicts the oldest."""

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_][a-z0-9._-]{0,252}))(?::[0-9]{1,5})?")
_OF_PAGES = frozenset((b"origin", b"sec-fetch-site"))
"""Headers that a browser adds to the requests of a web page."""
_OWN_SITE = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for requests from our own pages, and for typed addresses."""
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
"""Headers that proxies add: the client is then not on this machine, although the connection is local."""
_KEY_BYTES = re.compile(KEY.pattern.encode())
_KEY_HEADERS = frozenset((b"x-refold-key", b"x-api-key", b"authorization"))
_BEARER = re.compile(rb"bearer +(rf_\S*) *", re.IGNORECASE)


class Rules(Struct, frozen=True, kw_only=True):
    """The address that the gateway listens on, and its host names."""

    bound: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    """Host names besides those of this machine: `localhost`, loopback addresses, the bound address."""
    requires_key: bool = False
    """Require a key even if none exists: all requests are refused until one is created."""


def check_binding(rules: Rules, *, has_keys: bool) -> None:
    """Refuse to listen on a public address without keys.

    Raises:
        ConfigError: the address is not a loopback address, and there are no keys.
    """
    if not (has_keys or rules.requires_key or is_local(rules.bound)):
        raise ConfigError(
            f"without a key the gateway serves this machine only, and {rules.bound} is open to others",
            hint="make a key first: refold keys create; or listen on 127.0.0.1",
        )


@lru_cache(maxsize=256)
def is_local(host: str) -> bool:
    """True if the host is reachable from this machine only."""
    address = _address(host)
    return address.is_loopback if address else host.lower() == "localhost"


def check_source(rules: Rules, scope: Scope) -> None:
    """Refuse a request for another host, or from a foreign web page.

    Raises:
        AccessError: the path, the Host, the Origin or Sec-Fetch-Site is not acceptable.
    """
    if not scope["path"].startswith("/") or _has_dot_segments(scope["path"]):
        raise AccessError(
            "the target of the request is not a path", hint="the gateway is not a forward proxy"
        )
    hosts = _values(scope, b"host")
    if len(hosts) != 1 or not is_own_host(rules, hosts[0]):
        raise AccessError(
            "the Host of the request is not a name of this gateway",
            hint="call it by its address or as localhost, or declare the name in server.names",
        )
    if _OF_PAGES.isdisjoint(dict(scope["headers"])):
        return  # a program, and no web page
    origins, sites = _values(scope, b"origin"), _values(scope, b"sec-fetch-site")
    ours = {f"http://{hosts[0]}", f"https://{hosts[0]}"}
    if not (ours.issuperset(origins) and _OWN_SITE.issuperset(sites)):
        raise AccessError(
            "web pages of other sites may not use the gateway",
            hint="call it from a program, not from a page",
        )


@lru_cache(maxsize=256)
def is_own_host(rules: Rules, host: str) -> bool:
    """True if the Host header is a name of this gateway. A web page can point any name at our address, so
    names must be declared.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found["v6"] or found["name"]
    if name in {"localhost", *(declared.lower() for declared in rules.names)}:
        return True
    address, bound = _address(name), _address(rules.bound)
    if address is None or address.is_unspecified:
        return False
    # Bound to all addresses: any numeric address may be ours. It involves no DNS name, so it cannot be
    # rebound.
    return address.is_loopback or address == bound or (bound is not None and bound.is_unspecified)


def take_keys(headers: Iterable[Header]) -> tuple[frozenset[str], list[Header]]:
    """The Refold keys that a client presents, and its headers without them."""
    presented, left = set[str](), list[Header]()
    for name, value in headers:
        shown = _presented(name, value) if name in _KEY_HEADERS else None
        if shown is not None:
            presented.add(shown.decode("latin-1"))
        elif not _KEY_BYTES.search(value):
            left.append((name, value))
    return frozenset(presented), left


def _presented(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-refold-key":
        return value.strip()
    if name == b"x-api-key" and value.lstrip().startswith(b"rf_"):
        return value.strip()
    found = _BEARER.fullmatch(value) if name == b"authorization" else None
    return found[1] if found else None


class KeyRing:
    """Verifies Refold keys against the store, with a cache of a few seconds.

    While the store cannot be reached, its last answer holds for `OUTAGE_S`: nobody can create or revoke a key in it
    either. A key that was not verified before is refused.
    """

    def __init__(self, store: ClientKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._verified: dict[str, tuple[float, ClientKey]] = {}
        self._is_needed, self._look_again, self._looked_at = False, float("-inf"), float("-inf")

    async def is_needed(self) -> bool:
        """True if keys exist. Once true, it stays true until restart, even if all keys are deleted."""
        now = self._clock()
        if not self._is_needed and now >= self._look_again:
            try:
                self._is_needed = await self._store.has_keys()
                self._looked_at = self._clock()
            except StoreError:
                if now - self._looked_at > OUTAGE_S:
                    raise
            self._look_again = self._clock() + REMEMBER_S
        return self._is_needed

    async def verify(self, text: str) -> ClientKey:
        """The stored key that a text belongs to.

        Raises:
            KeyRefused: the text is not a key, the key does not exist, or it was revoked.
        """
        which = id_of(text) or ""
        until, kept = self._verified.get(which, (0.0, None))
        if kept is None or self._clock() >= until or not opens(text, kept):
            # A wrong secret for a cached key takes the same path as an unknown key, so that timing reveals
            # nothing.
            kept = await self._look_up(which, text)
        if kept.revoked_at is not None:
            raise KeyRefused("the key was revoked")
        return kept

    async def is_valid(self, which: str, owner: str) -> bool:
        """True if a key that was verified before is still the owner's and not revoked."""
        until, kept = self._verified.get(which, (0.0, None))
        if kept is None or self._clock() >= until:
            try:
                kept = await self._store.find_key_owner(which)
            except StoreError:
                if kept is None or self._clock() >= until + OUTAGE_S:
                    raise
            else:
                if kept is not None:
                    self._remember(which, self._clock() + REMEMBER_S, kept)
        return kept is not None and kept.owner == owner and kept.revoked_at is None

    async def _look_up(self, which: str, text: str) -> ClientKey:
        until, known = self._clock() + REMEMBER_S, self._verified.get(which)
        try:
            kept = await self._store.find_key_owner(which)
        except StoreError:
            if known is None or self._clock() >= known[0] + OUTAGE_S or not opens(text, known[1]):
                raise
            return known[1]
        if not opens(text, kept) or kept is None:
            raise KeyRefused("the key is not valid")
        self._remember(which, until, kept)
        return kept

    def _remember(self, which: str, until: float, kept: ClientKey) -> None:
        self._verified.pop(which, None)
        if len(self._verified) >= MAX_REMEMBERED:
            del self._verified[next(iter(self._verified))]
        self._verified[which] = until, kept


def is_page(path: str) -> bool:
    """True if the path is one of the page's own; only there a session cookie counts."""
    first = path.partition("/")[2].partition("/")[0]
    return path.startswith("/") and first.removesuffix(".json") in PAGES


class Access:
    """The middleware. Plain ASGI: an admitted request is not touched again."""

    def __init__(
        self,
        app: ASGIApp,
        store: ClientKeys,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
        *,
        ring: KeyRing | None = None,
        browsers: BrowserSessions | None = None,
    ) -> None:
        self._app, self._rules, self._ring = app, rules, ring or KeyRing(store, clock)
        self._browsers = browsers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (self._app(scope, receive, send) if scope["type"] == "lifespan" else _close(receive, send))
            return
        try:
            admitted = await self._admit(scope)
        except RefoldError as error:
            await _refuse(scope, send, error)
            return
        await self._app(admitted, receive, send)

    async def _admit(self, scope: Scope) -> Scope:
        """The scope of an admitted request, without keys and with its owner."""
        check_source(self._rules, scope)
        if _KEY_BYTES.search(scope.get("query_string", b"")) or KEY.search(scope["path"]):
            raise KeyRefused("a key in a URL is refused, because URLs are logged")
        presented, headers = take_keys(scope["headers"])
        state = dict(scope.get("state", {}))
        if scope["path"] not in PUBLIC:
            is_open = self._browsers is not None and not presented and is_page(scope["path"])
            session = await self._signed_in(scope) if is_open else None
            if session is not None:
                state["owner"], state["key_id"], state["admin"] = session.owner, session.key_id, session.admin
                state["browser"] = session
            elif is_open and (self._rules.requires_key or await self._ring.is_needed()):
                state["owner"], state["key_id"], state["admin"] = "", "", False  # the page asks to sign in
            else:
                state["owner"], state["key_id"], state["admin"] = await self._identify(scope, presented)
        return {**scope, "headers": headers, "state": state}

    async def _signed_in(self, scope: Scope) -> BrowserSession | None:
        """The session of a browser, if its key is still valid."""
        found = await self._browsers.find(scope["headers"]) if self._browsers else None
        if found is None or self._browsers is None or await self._ring.is_valid(found.key_id, found.owner):
            return found
        await self._browsers.end(found)
        return None

    async def _identify(self, scope: Scope, presented: frozenset[str]) -> tuple[str, str, bool]:
        """The owner, the id of the key, and whether the caller may see the operator's settings. Without keys,
        the local user may.
        """
        if len(presented) > 1:
            raise KeyRefused("the request has two different keys", hint="send one of them")
        for text in presented:
            kept = await self._ring.verify(text)
            return kept.owner, kept.id, kept.admin
        if self._rules.requires_key or await self._ring.is_needed():
            raise KeyRefused("this gateway needs a key")
        _check_nearby(scope)
        return OWNER, "", True


async def _close(receive: Receive, send: Send) -> None:
    """Refuse a WebSocket."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def _refuse(scope: Scope, send: Send, error: RefoldError) -> None:
    log_store_failure(error)
    speaks_anthropic = bool(_values(scope, b"anthropic-version"))
    shape = shape_of(scope["path"], speaks_anthropic=speaks_anthropic)
    response = answer(error, shape)
    path = "(a path with a key)" if KEY.search(scope["path"]) else scope["path"]
    refused = facts(status=response.status, error=type(error).__name__)
    _log.warning("%s %s", scope["method"], path, extra=refused)
    await send_answer(send, response)


async def send_answer(send: Send, response: ErrorResponse) -> None:
    headers = [
        (name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in response.headers
    ]
    headers.append((b"content-length", b"%d" % len(response.body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def _has_dot_segments(path: str) -> bool:
    """True if the path contains `.` or `..` segments: they could reach other paths of an upstream with the
    operator's key.
    """
    return not {".", ".."}.isdisjoint(path.replace("\\", "/").split("/"))


def _check_nearby(scope: Scope) -> None:
    """Without keys, accept only requests from this machine."""
    client = scope.get("client")
    is_passed_on = not _FORWARDED.isdisjoint(dict(scope["headers"]))
    if client is None or not is_local(client[0]) or is_passed_on:
        raise AccessError(
            "without a key the gateway serves this machine only",
            hint="make a key with `refold keys create`, and send it as a bearer token",
        )


def _address(host: str) -> Address | None:
    """A numeric address; an IPv4 address in IPv6 notation becomes IPv4."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _values(scope: Scope, wanted: bytes) -> Sequence[str]:
    return [value.decode("latin-1").lower() for name, value in scope["headers"] if name == wanted]
