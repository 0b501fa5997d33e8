"""The upstreams of the gateway: which one serves a request, with which key, how the bytes get there and back,
and what an upstream says about its models.

Only the operator names upstreams. A client cannot supply an address; it can only choose a name, or a model
that an upstream serves. Redirects are not followed, proxy settings of the environment are ignored, and a host
in a private network is refused unless the operator declared it private.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any, TypeGuard, TypeVar
from urllib.parse import unquote_plus, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Raw, Struct
from yarl import URL

from refold.config import UpstreamSettings, completed
from refold.engine.conversation import warn_once
from refold.model.errors import MAX_TOKENS, MIN_WINDOW, ConfigError, UpstreamUnavailable
from refold.model.message import DialectName
from refold.upstreams.provider import Auth, Provider, ProviderKey, is_hosted

_log = logging.getLogger("refold.gateway")

T = TypeVar("T")

DEFAULT_UPSTREAMS = {"openai": UpstreamSettings(), "anthropic": UpstreamSettings()}
"""Upstreams without a configuration: the client's own key goes to the provider of the format that the client
speaks.
"""


class Target(Struct, frozen=True):
    """One upstream with its key. Its `repr` shows the name only."""

    name: str
    url: str
    """The base URL, without the path of the call and without a trailing slash."""
    formats: tuple[DialectName, ...]
    key: ProviderKey | None = None
    """The gateway's own key, from the settings or the environment. Used if the client's key is not."""
    passes_key: bool = True
    """True if the client's key has precedence, if it sent one."""
    passes_key_as_fallback: bool = False
    """True if the client's key is sent here even if it was meant for another upstream."""
    headers: dict[str, str] = {}
    models: tuple[str, ...] = ()
    is_private: bool = False
    window: int | None = None
    """The window that the settings state for its models."""
    started_with: int | None = None
    """The window with which this program started the server: as good as the server's own report."""
    alternates: bool = False
    """True if its chat templates want user and assistant in turn."""
    fallback: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    """Calls that are passed on with the gateway's key without a check of the owner: `METHOD /path`, `/path`
    or `*`.
    """
    is_small: bool = False
    """True if its model is too small to write summaries."""

    def __repr__(self) -> str:
        return f"<upstream {self.name}>"

    @property
    def origin(self) -> URL:
        """Scheme, host and port: the party that sees the request."""
        return URL(self.url).origin()

    def address(self, path: str, query: str = "") -> str:
        """The address of a call. A base URL with a path, which names the version, replaces the `/v1` of the
        call. Its own query comes before the client's.
        """
        base = urlsplit(self.url)
        short = path.removeprefix("/v1") if base.path else path
        asked = "&".join(one for one in (base.query, query) if one)
        return f"{self.url.partition('?')[0]}{short}{'?' + asked if asked else ''}"

    def allows(self, method: str, path: str) -> bool:
        """True if a call is open to every client. `path` is empty if it is not a plain path."""
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
        """The upstreams to try, in order: the named one, or the first that serves the model, or the first
        that speaks the format; then the fallbacks of that one.

        Raises:
            ConfigError: no upstream fits.
        """
        first = self._named(name) if name else self._for(model, wanted)
        others = [self._named(one) for one in first.fallback]
        return [first, *(one for one in others if wanted is None or wanted in one.formats)]

    def choose_for_state(
        self, model: str, wanted: DialectName | None, name: str, made_at: str
    ) -> tuple[Target | None, list[Target]]:
        """As `choose`, for a call that names an object stored at the upstream `made_at`: only that upstream
        has it.

        The first value is the upstream that the request would go to without the object, if there is one.

        Raises:
            ConfigError: no upstream fits.
        """
        if made_at not in self._targets:
            usual = self.choose(model, wanted, name)
            return usual[0], usual
        try:
            usual = self.choose(model, wanted, name)
        except ConfigError:
            return None, [self._targets[made_at]]
        return usual[0], usual if usual[0].name == made_at else [self._targets[made_at]]

    def are_told_apart(self, wanted: DialectName | None) -> bool:
        """Whether the model of a request decides which of several upstreams gets it."""
        able = [one for one in self if wanted is None or wanted in one.formats]
        return len(able) > 1 and any(one.models for one in able)

    def home_of_keys(self, asked: Sequence[Target]) -> Target:
        """The upstream that a client's key is meant for, if several are asked: the one for requests without a
        model, otherwise the first that accepts clients' keys.
        """
        able = [one for one in asked if one.passes_key] or asked
        return next((one for one in able if not one.models), able[0])

    def _named(self, name: str) -> Target:
        if name not in self._targets:
            raise ConfigError(
                "there is no upstream with this name", hint=f"choose from: {', '.join(self._targets)}"
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
        ConfigError: an upstream has no address, or its key is missing.
    """
    chosen = upstreams or DEFAULT_UPSTREAMS
    targets = Targets([target_of(name, one, environ) for name, one in chosen.items()])
    for target in targets:
        if fault := path_fault(target.url):
            _log.warning("the url of upstream %s %s: calls may be answered by 404", target.name, fault)
    return targets


_CALLS = ("/chat/completions", "/responses", "/messages", "/completions", "/embeddings", "/models")
"""Paths that a call adds to the base URL."""


def path_fault(url: str) -> str:
    """What is probably wrong with the path of a base URL; empty if nothing is. It may be right all the same,
    at a proxy with paths of its own.
    """
    path = urlsplit(url).path.rstrip("/")
    before, last = ["", "", *path.split("/")][-2:]
    if before == last and last.startswith("v") and last[1:].isdigit():
        return f"ends with /{last}/{last}, with the version twice"
    call = next((call for call in _CALLS if path.endswith(call)), "")
    return f"ends with {call}, which every call adds by itself: leave it out" if call else ""


def target_of(name: str, given: UpstreamSettings, environ: Mapping[str, str]) -> Target:
    """
    Raises:
        ConfigError: the upstream has no address, or its key is missing.
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
        alternates=whole.alternation,
        fallback=whole.fallback,
        allow=whole.allow,
    )


def local_target(url: str, key: str) -> Target:
    """The model that runs beside the gateway, on a port of its own."""
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
    """The same upstreams, with the local model first."""
    return Targets([local, *(one for one in targets if one.name != local.name)])


# Credentials
#
# A call leaves with one provider key: the client's own, or the gateway's key for the upstream, never both.
# The setting `pass_key` of an upstream says whether it may get the client's key; the gateway's key is used if
# not, or if the client sent none. The client's key is meant for one upstream, the first choice of the request
# (`home`): it goes to another host only if the settings of that host say `pass_key = true`.

KEYS = frozenset(("authorization", "x-api-key", "api-key", "x-goog-api-key"))
"""Headers in which providers accept a key."""
ACCOUNT = frozenset(("openai-organization", "openai-project"))
"""Headers that choose an account of the key's holder. With another key they mean nothing, or the wrong
account.
"""
REROUTES = frozenset(
    ("x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url")
)
"""Headers with which some servers override the method or path. They are removed unless the client's own key
is used, because the access check covers only the request's own method and path.
"""
QUERY_KEYS = frozenset(("key", "api_key", "api-key", "apikey", "access_token"))
"""Query fields in which some providers accept a key."""


_CLIENTS_ONLY = KEYS | ACCOUNT | REROUTES
_SECRET_WORDS = ("key", "token", "secret", "auth", "cookie", "password", "credential", "signature")
"""Parts of the names of headers and query fields that may hold a secret. All of them are removed if the
client's key is not sent, even harmless ones: a host that the key is not meant for needs none of them.
"""
_SECRET_FIELDS = frozenset(("sig", "code", "sid"))
"""Further query fields with secrets, as some clouds name them."""


class Credentials:
    """The provider key that a client sent with a request, if any, and the upstream that it is meant for."""

    def __init__(self, headers: Sequence[tuple[str, str]], query: str, home: Target | None) -> None:
        self.headers = headers
        self._query, self._home = query, home
        named = any(name in KEYS and _is_key(value) for name, value in headers)
        self.is_sent = named or any(_is_key_field(field) for field in query.split("&"))

    def go_to(self, target: Target) -> bool:
        """True if a call to this upstream carries the client's own key."""
        if not (self.is_sent and target.passes_key):
            return False
        return self._is_meant_for(target) or target.passes_key_as_fallback

    @property
    def request_id(self) -> str:
        """The client's id for its request; some servers derive the ids in their answers from it."""
        return next((value.strip() for name, value in self.headers if name == "x-request-id"), "")

    def headers_for(self, target: Target) -> list[tuple[str, str]]:
        """The client's headers; if another key is used, without those that belong to the client's key."""
        if self.go_to(target):
            return [*self.headers]
        if self._is_without_key(target):
            return [one for one in self.headers if one[0] not in KEYS | REROUTES]
        return [one for one in self.headers if not (one[0] in _CLIENTS_ONLY or may_hold_secret(one[0]))]

    def query_for(self, target: Target) -> str:
        """The query, filtered like the headers."""
        if not self._query or self.go_to(target) or self._is_without_key(target):
            return self._query
        return "&".join(field for field in self._query.split("&") if not _may_be_secret_field(field))

    def _is_meant_for(self, target: Target) -> bool:
        home = self._home
        return home is not None and (target is home or target.origin == home.origin)

    def _is_without_key(self, target: Target) -> bool:
        """True if a call leaves for the client's own upstream with no key that is known here: neither the client nor the
        gateway has one. A header such as `x-portal-token` is then all that the client has to show, and goes where it is meant.
        """
        if self.is_sent or not target.passes_key or target.key is not None:
            return False
        return self._is_meant_for(target) and not any(map(may_hold_secret, target.headers))


def may_hold_secret(name: str) -> bool:
    """True if a header or query field of this name may hold a secret."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def _is_key(value: str) -> bool:
    """False for `Authorization: Bearer` without a value, which an SDK sends for an empty key."""
    return value.strip().lower() not in ("", "bearer", "basic")


def _may_be_secret_field(field: str) -> bool:
    # Some servers split fields at a semicolon too.
    names = [unquote_plus(one.partition("=")[0]).lower() for one in field.split(";")]
    return any(may_hold_secret(name) or name in _SECRET_FIELDS for name in names)


def _is_key_field(field: str) -> bool:
    name, _, value = field.partition("=")
    return bool(value) and unquote_plus(name).lower() in QUERY_KEYS


# Connections: bytes in, bytes out, unchanged

CONNECT_S = 10.0
"""Time for name resolution, connection and TLS; a reachable host needs one or two seconds."""
SILENCE_S = 600.0
"""Longest silence of an upstream: models think for minutes, and clients have timeouts of their own."""
IDLE_S = 30.0
"""Time that an idle connection is kept open: providers close theirs after about a minute."""
AT_ONCE_BYTES = 1024 * 1024
"""Size of a body that is written at once: larger ones are written in pieces, so that other requests are
served in between.
"""
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
"""Headers that concern a single connection (hop-by-hop)."""
_OURS_OF_ANSWERS = frozenset((*(name.encode() for name in _HOP), b"date", b"server"))
_OURS = frozenset(("host", "content-length", "accept-encoding", "expect", "cookie", "forwarded", "via"))


class PrivateNetworkGuard(AbstractResolver):
    """A resolver that refuses hosts in private networks, for upstreams that are not declared private."""

    def __init__(self) -> None:
        self._names = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._names.resolve(host, port, family)
        if any(not ipaddress.ip_address(one["host"]).is_global for one in found):
            raise OSError(None, "the host is in a private network")
        return found

    async def close(self) -> None:
        await self._names.close()


class Forwarder:
    """Sends requests to upstreams and keeps the connections open. One per gateway."""

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
        """The response of an upstream, as soon as its headers have arrived; the caller closes it.

        Raises:
            aiohttp.ClientError, TimeoutError: there is no response.
        """
        return await self.session(is_private=target.is_private).request(
            method,
            URL(address, encoded=True),
            data=BytesIO(body) if body and len(body) > AT_ONCE_BYTES else body,
            headers=headers,
            allow_redirects=False,
            auto_decompress=False,  # pass compressed bytes on as they are; never unpack a zip bomb
        )

    def session(self, *, is_private: bool) -> aiohttp.ClientSession:
        """The connection pool for private networks, or the one for public hosts."""
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
    """The client's headers as they are sent to an upstream, with the one key that the call leaves with."""
    sent: dict[str, str] = {}
    for name, value in credentials.headers_for(target):
        if name in _HOP or name in _OURS or name.startswith(("x-refold", "x-forwarded")):
            continue
        sent[name] = f"{sent[name]}, {value}" if name in sent else value
    sent["accept-encoding"] = "identity"  # the answer is read on its way and passed on unchanged
    sent.update(target.headers)
    if target.key is not None and not credentials.go_to(target):
        sent.update(await target.key.headers())
    return sent


def response_headers(upstream_headers: Any, *, has_length: bool = True) -> list[tuple[bytes, bytes]]:
    """An upstream's headers as they are sent to the client: without hop-by-hop headers and without
    `x-refold-*`.
    """
    own = _OURS_OF_ANSWERS if has_length else _OURS_OF_ANSWERS | {b"content-length"}
    lower = [(name.lower(), value) for name, value in upstream_headers]
    return [one for one in lower if one[0] not in own and not one[0].startswith(b"x-refold")]


# `GET /v1/models` for several upstreams: their lists, merged in the operator's order. An upstream
# that does not answer is left out. With a single upstream its list is passed on unchanged, without
# this module.

PATIENCE_S = 10.0
"""Time for all questions to one upstream about its models; a slower one is left out."""
MOST_BYTES = 8 * 1024 * 1024
"""Size of one answer: the longest known list has a few thousand models."""
PATH = "/v1/models"


class _Model(Struct):
    id: str


class _List(Struct):
    data: list[Raw]


_LIST, _MODEL = msgspec.json.Decoder(_List), msgspec.json.Decoder(_Model)


async def list_models(
    forwarder: Forwarder, targets: Sequence[Target], credentials: Credentials, *, is_anthropic: bool
) -> bytes:
    """The body of the answer, in the format of the client.

    Raises:
        UpstreamUnavailable: no upstream gave a list.
    """
    found = await asyncio.gather(*(_models(forwarder, one, credentials) for one in targets))
    known: dict[str, Raw] = {}
    for models in found:
        for raw in models or ():
            known.setdefault(_MODEL.decode(raw).id, raw)
    if not any(models is not None for models in found):
        raise UpstreamUnavailable("no upstream lists its models", hint="check their urls and keys")
    listed: dict[str, object] = {"data": list(known.values())}
    if is_anthropic:
        ids = list(known)
        listed |= {
            "has_more": False,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
        }
    else:
        listed = {"object": "list", **listed}
    return msgspec.json.encode(listed)


async def _models(forwarder: Forwarder, target: Target, credentials: Credentials) -> list[Raw] | None:
    if target.is_small:
        return [Raw(b'{"id":"local","object":"model","created":0,"owned_by":"refold"}')]
    try:
        sent = await request_headers(target, credentials)
        async with asyncio.timeout(PATIENCE_S):
            response = await forwarder.send(target, "GET", target.address(PATH), sent, None)
            async with response:
                body = await response.content.read(MOST_BYTES) if response.status == 200 else b""
        listed = _LIST.decode(body)
        return [raw for raw in listed.data if _MODEL.decode(raw).id]
    except (ConfigError, aiohttp.ClientError, OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


# The windows that upstreams run their models with. A server on one's own machine sizes the window by
# its memory and its options, so only the server knows it. vLLM and other servers state it in
# `/v1/models`, llama.cpp in `/props`, LM Studio in `/api/v0/models`, and Ollama in `/api/ps` for a
# loaded model. The largest window that a model supports is never used. A report that cannot be a
# window is ignored, with a warning: a server may report any number, or no number at all.
#
# Every upstream except the well-known hosted providers is asked when the gateway starts, when a
# model is first used, and then every ten minutes. Only the first request of a model waits for the
# answer, and not for long.

WAIT_S = 0.5
"""Time that the first request of a model waits for the report: a server nearby answers in milliseconds."""
AGAIN_S = 600.0
"""Age at which a report is asked for again."""
UNANSWERED_S = 30.0
"""The same for an upstream that could not be reached or did not accept the key."""
MAX_REPORTS = 512
"""Reports that are held. Clients choose the models' names, so there may be any number of them."""
OLLAMA_WINDOW = 4_096
"""Ollama's own default, used for a model that is not loaded and sets no `num_ctx`."""
ANY_MODEL = ""
"""The name under which a server reports that runs one model under every name."""
_RANGE = f"windows have {MIN_WINDOW:,} to {MAX_TOKENS:,} tokens"


class WindowReport(Struct, frozen=True):
    window: int | None
    """None if the upstream states no window."""
    until: float
    """When the upstream is asked again."""


class WindowReports:
    """The reports of all upstreams of a gateway, by upstream and model."""

    def __init__(self, forwarder: Forwarder, clock: Callable[[], float] = time.monotonic) -> None:
        self._forwarder, self._clock = forwarder, clock
        self._reports: OrderedDict[tuple[str, str], WindowReport] = OrderedDict()
        self._asking: dict[tuple[str, str], asyncio.Task[None]] = {}

    def begin(self, targets: Iterable[Target]) -> None:
        """Ask every upstream for all models that it lists, with the gateway's own key, without waiting."""
        for target in targets:
            if not is_hosted(target.url):
                self._begin(target, ANY_MODEL, Credentials((), "", target))

    async def close(self) -> None:
        asking = [*self._asking.values()]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def known(self, target: Target, model: str) -> int | None:
        """The window by the last report, without asking; None if there is none."""
        if target.started_with is not None:
            return target.started_with
        report = self._reports.get((target.name, model))
        return report.window if report else None

    async def window(self, target: Target, model: str, credentials: Credentials) -> int | None:
        """The window of a model at an upstream, by the upstream's own report; None if it gives none. The
        upstream is asked with the key of this request.
        """
        if target.started_with is not None or not model or is_hosted(target.url):
            return target.started_with
        place = target.name, model
        report = self._reports.get(place)
        if report is None or self._clock() >= report.until:
            asking = self._asking.get(place) or self._begin(target, model, credentials)
            if report is None:
                await asyncio.wait({asking}, timeout=WAIT_S)
        return self.known(target, model)

    def _begin(self, target: Target, model: str, credentials: Credentials) -> asyncio.Task[None]:
        place = target.name, model
        task = asyncio.create_task(self._ask(target, model, credentials))
        self._asking[place] = task
        task.add_done_callback(lambda _: self._asking.pop(place, None))
        return task

    async def _ask(self, target: Target, model: str, credentials: Credentials) -> None:
        server = _Server(self._forwarder, target, credentials)
        found: Mapping[str, int] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                found = await server.windows(model)
        except (ConfigError, TimeoutError):
            server.is_answering = False
        if model:
            wait_s = AGAIN_S if server.is_answering else UNANSWERED_S
            window = found.get(model, found.get(ANY_MODEL))
            self._keep(target, model, window, 0.0 if server.is_assumed else wait_s)
            return
        for name, window in found.items():
            if name:
                self._keep(target, name, window, AGAIN_S)

    def _keep(self, target: Target, model: str, window: int | None, wait_s: float) -> None:
        place = target.name, model
        self._reports[place] = WindowReport(window, self._clock() + wait_s)
        self._reports.move_to_end(place)
        if len(self._reports) > MAX_REPORTS:
            self._reports.popitem(last=False)


class _ListedModel(Struct, frozen=True):
    """An entry of `/v1/models`, of LM Studio's `/api/v0/models` or of Ollama's `/api/ps`."""

    id: str = ""
    name: str = ""
    max_model_len: object = None
    context_length: object = None
    loaded_context_length: object = None

    @property
    def window(self) -> object:
        """The window that is reported, or a report that is no window; None if there is no report."""
        sizes = (self.max_model_len, self.loaded_context_length, self.context_length)
        return next(filter(_is_window, sizes), next((size for size in sizes if size is not None), None))


class _ReportedList(Struct, frozen=True):
    data: list[Raw] = []
    models: list[Raw] | None = None
    """Ollama's name for the list."""


class _Generation(Struct, frozen=True):
    n_ctx: object = None


class _Props(Struct, frozen=True):
    default_generation_settings: _Generation = _Generation()


class _Shown(Struct, frozen=True):
    parameters: str = ""


class _Server:
    """One upstream while it is asked."""

    def __init__(self, forwarder: Forwarder, target: Target, credentials: Credentials) -> None:
        self._forwarder, self._target, self._credentials = forwarder, target, credentials
        self._root = target.url.removesuffix("/v1")
        self.is_answering = True
        """False if an answer is missing, so that the report may be another one soon."""
        self.is_assumed = False
        """True if the window is one that the server would load the model with, and has not yet."""

    async def windows(self, model: str) -> Mapping[str, int]:
        """The windows by model, as far as the server reports them. `model` is the one that has to be known."""
        listed, props, loaded, running = await asyncio.gather(
            self._get(self._target.address(PATH), _ReportedList),
            self._get(f"{self._root}/props", _Props),
            self._get(f"{self._root}/api/v0/models", _ReportedList),
            self._get(f"{self._root}/api/ps", _ReportedList),
        )
        ids = [*_entries(listed.data)] if listed else []
        found: dict[str, object] = {one.id: one.window for one in ids}
        if loaded:
            found |= {
                one.id: one.loaded_context_length
                for one in _entries(loaded.data)
                if not _is_window(found.get(one.id))
            }
        if running and running.models is not None:
            found |= await self._ollama(running.models, model)
        if props and (one_for_all := props.default_generation_settings.n_ctx) is not None:
            found |= {name: one_for_all for name, size in found.items() if not _is_window(size)}
            found[ANY_MODEL] = one_for_all
        if any(size is not None and not _is_window(size) for size in found.values()):
            warn_once(
                f"the upstream {self._target.name} reports a window that is none: it is ignored; {_RANGE}"
            )
        return {name: size for name, size in found.items() if _is_window(size)}

    async def _ollama(self, running: list[Raw], model: str) -> dict[str, object]:
        """The window of a loaded model, or the one that Ollama would load it with."""
        found = {_full_name(one.name): one.context_length for one in _entries(running)}
        window = found.get(_full_name(model))
        if not model or window is not None:
            return {**found, model: window}
        shown = await self._get(f"{self._root}/api/show", _Shown, msgspec.json.encode({"model": model}))
        self.is_assumed = shown is not None
        window = _num_ctx(shown.parameters) if shown else None
        return {model: OLLAMA_WINDOW if window is None else window} if shown else {}

    async def _get(self, address: str, kind: type[T], body: bytes | None = None) -> T | None:
        """An answer, read as `kind`; None if there is none. `body` is posted if it is given."""
        headers = await request_headers(self._target, self._credentials)
        headers["content-type"] = "application/json"
        method = "GET" if body is None else "POST"
        try:
            async with await self._forwarder.send(self._target, method, address, headers, body) as response:
                self.is_answering = self.is_answering and response.status not in (401, 403)
                content = await _read(response) if response.status == 200 else b""
            return msgspec.json.decode(content, type=kind) if content else None
        except (aiohttp.ClientError, OSError):
            self.is_answering = False
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer; empty if it is too long."""
    content = b""
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MOST_BYTES:
            return b""
    return content


def _is_window(value: object) -> TypeGuard[int]:
    return type(value) is int and MIN_WINDOW <= value <= MAX_TOKENS  # `True` is no window


def _entries(raws: Iterable[Raw]) -> Iterator[_ListedModel]:
    """The readable entries of a list: one entry in another shape must not hide the others."""
    for raw in raws:
        try:
            yield msgspec.json.decode(raw, type=_ListedModel)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


def _full_name(name: str) -> str:
    """Ollama's full name of a model: without a tag, `latest` is meant."""
    return name if ":" in name else f"{name}:latest"


def _num_ctx(parameters: str) -> object:
    """The window among the parameters of an Ollama model, one to a line; None if it is not set."""
    for line in parameters.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "num_ctx":
            digits = value.strip()
            is_number = digits.isdecimal() and len(digits) <= len(str(MAX_TOKENS))
            return int(digits) if is_number else digits
    return None
