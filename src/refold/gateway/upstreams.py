"""Where a request goes: upstreams by name, and which of them serves a model.

One idea: an upstream is one that the operator has named. Nothing that a client sends can be an address; it can only choose a
name, or say a model for which there is one. Redirects are not followed, proxies are not taken from the environment, and a name
that leads into a private network is refused unless the operator said so.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct
from yarl import URL

from refold.config import UpstreamSettings, completed
from refold.model.errors import ConfigError
from refold.model.message import DialectName
from refold.upstreams.provider import Auth, Provider, ProviderKey

USUAL = {"openai": UpstreamSettings(), "anthropic": UpstreamSettings()}
"""Where nobody names any: the client's own key goes to the provider that it was made for, by the format that it speaks."""


class Target(Struct, frozen=True):
    """One upstream, ready to be asked. Printing it shows its name."""

    name: str
    url: str
    """Without the path of the call, and without a slash at its end."""
    formats: tuple[DialectName, ...]
    key: ProviderKey | None = None
    """The gateway's own: of the settings, or of the environment. Used where the client's is not."""
    passes_key: bool = True
    """Does the client's key come first, where it sent one?"""
    passes_key_as_fallback: bool = False
    """Does the client's key come here too when it was sent for another upstream?"""
    headers: dict[str, str] = {}
    models: tuple[str, ...] = ()
    is_private: bool = False
    window: int | None = None
    fallback: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    """Calls that are passed on with the gateway's key whoever owns what they reach: `METHOD /path`, `/path` or `*`."""
    is_small: bool = False
    """Its model answers, and is too small to sum anything up."""

    def __repr__(self) -> str:
        return f"<upstream {self.name}>"

    @property
    def origin(self) -> URL:
        """Scheme, host and port: whoever is there sees what is sent."""
        return URL(self.url).origin()

    def address(self, path: str, query: str = "") -> str:
        """The address of a call: a base that names a version has the path after it, any other the whole of it."""
        short = path.removeprefix("/v1") if urlsplit(self.url).path else path
        return f"{self.url}{short}{'?' + query if query else ''}"

    def allows(self, method: str, path: str) -> bool:
        """Is a call open to every client? `path` is empty where it has no plain one."""
        asked = f"{method} {path}"
        patterns = (one if " " in one else f"* {one}" for one in self.allow if path)
        return "*" in self.allow or any(fnmatchcase(asked, pattern) for pattern in patterns)

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class Targets:
    """All upstreams of a gateway, in the operator's order."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = {target.name: target for target in targets}
        if not targets:
            raise ConfigError(
                "there is no upstream", hint="name one under [upstreams], or say --upstream URL"
            )

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def __len__(self) -> int:
        return len(self._targets)

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets.values())

    def choose(self, model: str, wanted: DialectName | None, name: str = "") -> list[Target]:
        """Whom to ask, in this order: the one that was named, or that serves the model, or else the first that speaks the
        format; then those that it names as fallbacks.

        Raises:
            ConfigError: there is none.
        """
        first = self._named(name) if name else self._for(model, wanted)
        others = [self._named(one) for one in first.fallback]
        return [first, *(one for one in others if wanted is None or wanted in one.formats)]

    def choose_for_state(
        self, model: str, wanted: DialectName | None, name: str, made_at: str
    ) -> tuple[Target | None, list[Target]]:
        """As `choose`, for a call that names what the upstream `made_at` keeps, if any: nobody else has it.

        The first of the two is the upstream that a request of this kind is meant for by itself, where there is one.

        Raises:
            ConfigError: there is none.
        """
        if made_at not in self._targets:
            usual = self.choose(model, wanted, name)
            return usual[0], usual
        try:
            usual = self.choose(model, wanted, name)
        except ConfigError:
            return None, [self._targets[made_at]]
        return usual[0], usual if usual[0].name == made_at else [self._targets[made_at]]

    def home_of_keys(self, asked: Sequence[Target]) -> Target:
        """Which of several upstreams, all of which are asked, a client's key was sent for: the one that gets requests without a
        model, else the first that takes keys of clients.
        """
        able = [one for one in asked if one.passes_key] or asked
        return next((one for one in able if not one.models), able[0])

    def _named(self, name: str) -> Target:
        if name not in self._targets:
            raise ConfigError(
                "there is no upstream of this name", hint=f"choose from: {', '.join(self._targets)}"
            )
        return self._targets[name]

    def _for(self, model: str, wanted: DialectName | None) -> Target:
        able = [one for one in self._targets.values() if wanted is None or wanted in one.formats]
        served = [one for one in able if one.serves(model)] or [one for one in able if not one.models]
        if not served:
            raise ConfigError(
                f"no upstream speaks this format ({wanted or 'any'}) for this model",
                hint="add one under [upstreams], or name the model in its `models`",
            )
        return served[0]


def open_targets(upstreams: Mapping[str, UpstreamSettings], environ: Mapping[str, str]) -> Targets:
    """
    Raises:
        ConfigError: an upstream has no address, or its key is not there.
    """
    chosen = upstreams or USUAL
    return Targets([target_of(name, one, environ) for name, one in chosen.items()])


def target_of(name: str, given: UpstreamSettings, environ: Mapping[str, str]) -> Target:
    """
    Raises:
        ConfigError: it has no address, or its key is not there.
    """
    whole = completed(name, given, environ)
    auth: Auth = "x-api-key" if whole.formats == ("anthropic",) else "bearer"
    provider = Provider(name, key_env=whole.key_env, key_command=whole.key_command, auth=auth)
    return Target(
        name,
        whole.url,
        whole.formats,
        ProviderKey(provider, environ) if whole.key_env or whole.key_command else None,
        passes_key=bool(whole.pass_key),
        passes_key_as_fallback=given.pass_key is True,
        headers={key.lower(): value for key, value in whole.headers.items()},
        models=whole.models,
        is_private=whole.private,
        window=whole.window,
        fallback=whole.fallback,
        allow=whole.allow,
    )


def local_target(url: str, key: str) -> Target:
    """The model that comes with the gateway, on a port of its own."""
    return Target(
        "local",
        url,
        ("chat", "anthropic"),
        passes_key=False,
        headers={"authorization": f"Bearer {key}"},
        models=("local",),
        is_private=True,
        is_small=True,
    )


def with_local(targets: Targets, local: Target) -> Targets:
    """The same upstreams, and first of all the model that comes with the gateway."""
    return Targets([local, *(one for one in targets if one.name != local.name)])


# Whose provider key a call leaves with: the client's own, or the one that the gateway has for the
# upstream. A call carries one of the two and never both. `pass_key` of the upstream says whether
# the client's key may go there at all; the gateway's own key is used where it may not, or where the
# client sent none. The client's key was sent for one upstream, the one that the request is first
# meant for (`home`): it goes to no other host unless the settings of that host say `pass_key =
# true`.

KEYS = frozenset(("authorization", "x-api-key", "api-key", "x-goog-api-key"))
"""Headers in which providers take a key."""
ACCOUNT = frozenset(("openai-organization", "openai-project"))
"""Headers that choose an account of the key's holder. They mean nothing, or the wrong account, beside another key."""
REROUTES = frozenset(
    ("x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url")
)
"""Headers by which some servers take another method or path than the request's own. Beside a key that is not the client's, only
what was looked at is asked for."""
QUERY_KEYS = frozenset(("key", "api_key", "api-key", "apikey", "access_token"))
"""Fields of a query in which some providers take a key."""


_CLIENTS_ONLY = KEYS | ACCOUNT | REROUTES
_SECRET_WORDS = ("key", "token", "secret", "auth", "cookie", "password", "credential", "signature")
"""What the names of headers and query fields in which a secret may stand have in common. Beside another key than the client's all of
them are left out, also those that stand for something else: a host that the client's key is not for needs none of them."""
_SECRET_FIELDS = frozenset(("sig", "code", "sid"))
"""Further fields of a query, as some clouds call them."""


class Credentials:
    """The provider key that a client sent with one request, if any, and the upstream that it was sent for."""

    def __init__(self, headers: Sequence[tuple[str, str]], query: str, home: Target | None) -> None:
        self.headers = headers
        self._query, self._home = query, home
        named = any(name in KEYS and _is_key(value) for name, value in headers)
        self.is_sent = named or any(_is_key_field(field) for field in query.split("&"))

    def go_to(self, target: Target) -> bool:
        """Does a call to this upstream carry the client's own key?"""
        if not (self.is_sent and target.passes_key):
            return False
        home = self._home
        is_meant = home is not None and (target is home or target.origin == home.origin)
        return is_meant or target.passes_key_as_fallback

    @property
    def request_id(self) -> str:
        """The id that the client wants for its request, of which some servers make those of their answers."""
        return next((value.strip() for name, value in self.headers if name == "x-request-id"), "")

    def headers_for(self, target: Target) -> list[tuple[str, str]]:
        """The client's headers; where another key is used, without what belongs to the client's own."""
        if self.go_to(target):
            return [*self.headers]
        return [one for one in self.headers if not (one[0] in _CLIENTS_ONLY or may_hold_secret(one[0]))]

    def query_for(self, target: Target) -> str:
        """Likewise the query."""
        if not self._query or self.go_to(target):
            return self._query
        return "&".join(field for field in self._query.split("&") if not _may_be_secret_field(field))


def may_hold_secret(name: str) -> bool:
    """Does the name of a header or of a query field say that a secret may stand in it?"""
    return any(word in name.lower() for word in _SECRET_WORDS)


def _is_key(value: str) -> bool:
    """`Authorization: Bearer` without anything after it is what an SDK sends for an empty key."""
    return value.strip().lower() not in ("", "bearer", "basic")


def _may_be_secret_field(field: str) -> bool:
    # Some servers part fields at a semicolon too.
    names = [unquote_plus(one.partition("=")[0]).lower() for one in field.split(";")]
    return any(may_hold_secret(name) or name in _SECRET_FIELDS for name in names)


def _is_key_field(field: str) -> bool:
    name, _, value = field.partition("=")
    return bool(value) and unquote_plus(name).lower() in QUERY_KEYS


# The way to an upstream and back: bytes in, bytes out, unchanged.

CONNECT_S = 10.0
"""Name, connection and TLS; a host that is there answers in one or two."""
SILENCE_S = 600.0
"""How long nothing may come: models think for minutes, and the clients have their own patience."""
IDLE_S = 30.0
"""How long a connection is kept for the next request: providers close theirs after a minute or so."""
AT_ONCE_BYTES = 1024 * 1024
"""Of a body that is written in one go: larger ones go piece by piece, and others are served in between."""
_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""What is said to the next machine only."""
_OURS = frozenset(("host", "content-length", "accept-encoding", "expect", "cookie", "forwarded", "via"))


class PrivateNetworkGuard(AbstractResolver):
    """Names that lead into a private network are refused, for upstreams that are not said to be there."""

    def __init__(self) -> None:
        self._names = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._names.resolve(host, port, family)
        if any(not ipaddress.ip_address(one["host"]).is_global for one in found):
            raise OSError(None, "the name leads into a private network")
        return found

    async def close(self) -> None:
        await self._names.close()


class Forwarder:
    """Sends requests to upstreams. One for a gateway; connections are kept between requests."""

    def __init__(self) -> None:
        self._open, self._guarded = _session(None), _session(PrivateNetworkGuard())

    async def send(
        self,
        target: Target,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> aiohttp.ClientResponse:
        """An upstream's answer, as far as its headers; whoever asks closes it.

        Raises:
            aiohttp.ClientError, TimeoutError: there is none.
        """
        return await self.session(is_private=target.is_private).request(
            method,
            URL(address, encoded=True),
            data=BytesIO(body) if body and len(body) > AT_ONCE_BYTES else body,
            headers=headers,
            allow_redirects=False,
            auto_decompress=False,  # what comes compressed unasked is handed on so, and nobody unpacks a bomb
        )

    def session(self, *, is_private: bool) -> aiohttp.ClientSession:
        """Connections to upstreams, those in private networks apart."""
        return self._open if is_private else self._guarded

    async def close(self) -> None:
        await self._open.close()
        await self._guarded.close()


def _session(resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    # No limit of our own on connections: as many as there are clients.
    connector = aiohttp.TCPConnector(limit=0, resolver=resolver, keepalive_timeout=IDLE_S)
    patience = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=patience,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("user-agent", "accept", "content-type"),
    )


async def request_headers(target: Target, credentials: Credentials) -> dict[str, str]:
    """The client's headers, as they go on to an upstream, with the one key that the call leaves with."""
    sent: dict[str, str] = {}
    for name, value in credentials.headers_for(target):
        if name in _HOP or name in _OURS or name.startswith(("x-refold", "x-forwarded")):
            continue
        sent[name] = f"{sent[name]}, {value}" if name in sent else value
    sent["accept-encoding"] = "identity"  # what passes by is read, and reaches the client as it came
    sent.update(target.headers)
    if target.key is not None and not credentials.go_to(target):
        sent.update(await target.key.headers())
    return sent


def response_headers(came: Any, *, has_length: bool = True) -> list[tuple[bytes, bytes]]:
    """An upstream's headers, as they go on to the client: without those of its connection, and whatever it says in our name."""
    own = (b"date", b"server") if has_length else (b"date", b"server", b"content-length")
    lower = [(name.lower(), value) for name, value in came]
    return [
        (name, value)
        for name, value in lower
        if name.decode("latin-1") not in _HOP and name not in own and not name.startswith(b"x-refold")
    ]
