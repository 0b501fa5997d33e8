"""The way to an upstream and back: bytes in, bytes out, unchanged.

One idea: a proxy that does nothing must not be noticed. Headers, query strings and bodies go on as they came, apart from those
that belong to one connection only, our own, and the key where another one is used (`credentials`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from refold.gateway.credentials import Credentials
from refold.gateway.targets import Target

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


class Guard(AbstractResolver):
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
        self._open, self._guarded = _session(None), _session(Guard())

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
