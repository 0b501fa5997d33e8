"""The HTTP connection to a provider: sends requests, reads bytes, and limits every wait.

Every wait has two limits: its own, and the time left for the whole question. Every failure of the network
becomes a `Setback`. Redirects are not followed: a key goes only to the host it was given for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from io import BytesIO

import aiohttp

from refold.model.dialect import Dialect
from refold.model.errors import UpstreamUnavailable
from refold.upstreams.provider import Provider, ProviderKey
from refold.upstreams.response_errors import Pace, Setback

# Network failures as typed errors


def network_failure(provider: Provider, error: Exception, waited_s: float | None) -> Setback:
    """The error for a request without an answer, or with only the beginning of one.

    `waited_s` is the time without data; None if the time for the whole question was over.
    """
    what, hint, again = _explain(provider, error, waited_s)
    return Setback(UpstreamUnavailable(f"{provider.name} {what}", hint=hint), again=again)


def _explain(provider: Provider, error: Exception, waited_s: float | None) -> tuple[str, str, bool]:
    match error:
        case aiohttp.ServerTimeoutError():
            connect_s = provider.timeouts.connect_s
            return f"could not be reached within {connect_s:g} s", "check base_url and proxy", True
        case TimeoutError():
            late = f"did not finish within {provider.timeouts.total_s:g} s"
            problem = late if waited_s is None else f"sent nothing for {waited_s:g} s"
            return problem, "raise its timeouts, or ask for less", False
        case aiohttp.ClientSSLError():
            return "shows a certificate that is not trusted", "name your own authority with ca_file", False
        case aiohttp.ClientHttpProxyError():
            return f"is behind a proxy that answered {error.status}", "check proxy", error.status >= 500
        case aiohttp.ClientConnectorError():
            return "cannot be reached", "check base_url and proxy", True
        case _:
            return "broke the connection", "it may have billed an answer all the same", False


ANTHROPIC_VERSION = "2023-06-01"
LINGER_S = 0.05
"""Wait for the end of the connection after the end of a stream, so that the connection can be reused."""
_PATHS = {"chat": "/chat/completions", "responses": "/responses", "anthropic": "/v1/messages"}


class Connection:
    def __init__(
        self,
        provider: Provider,
        dialect: Dialect,
        session: aiohttp.ClientSession,
        key: ProviderKey,
        pace: Pace,
        path: str = "",
    ) -> None:
        """`path` replaces the path of the format, for questions that do not ask for a reply."""
        self._provider, self._session, self._key, self._pace = provider, session, key, pace
        own = {name.lower(): value for name, value in provider.headers.items()}
        fixed = {"content-type": "application/json", "user-agent": "refold"}
        if dialect.name == "anthropic":
            fixed["anthropic-version"] = ANTHROPIC_VERSION
        self._headers, self._own = fixed, own
        path = path or _PATHS[dialect.name]
        # Anthropic's own base URL ends before the version, those of compatible servers often after it.
        self._url = provider.base_url.removesuffix("/v1" if path.startswith("/v1/") else "") + path

    def __repr__(self) -> str:
        return f"<connection to {self._provider.name}>"

    @asynccontextmanager
    async def post(
        self, body: bytes, accept: str, until: float, *, under: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The provider's response. If the key is refused and a key command is configured, the key is renewed
        once.

        `under` is appended to the path: providers count the tokens of a request below the path that would
        answer it.
        """
        url, key = self._url + under, await self._key.headers()
        response = await self._send(url, body, {"accept": accept, **key}, until)
        try:
            if response.status == 401 and await self._key.renew(key):
                response.close()
                renewed = {"accept": accept, **await self._key.headers()}
                response = await self._send(url, body, renewed, until)
            yield response
        finally:
            response.close()

    async def _send(
        self, url: str, body: bytes, headers: dict[str, str], until: float
    ) -> aiohttp.ClientResponse:
        async with self._waiting(self._provider.timeouts.first_byte_s, until):
            return await self._session.post(
                url,
                data=BytesIO(body),
                headers={**self._headers, **headers, **self._own},
                allow_redirects=False,
                proxy=self._provider.proxy or None,
            )

    async def chunks(self, response: aiohttp.ClientResponse, until: float) -> AsyncGenerator[bytes, None]:
        limit_s = self._provider.timeouts.first_byte_s
        while True:
            async with self._waiting(limit_s, until):
                chunk = await response.content.readany()
            if not chunk:
                return
            yield chunk
            limit_s = self._provider.timeouts.between_s

    async def body(self, response: aiohttp.ClientResponse, until: float, limit: int) -> bytes:
        """The whole body, or its first `limit` + 1 bytes."""
        body = bytearray()
        async with aclosing(self.chunks(response, until)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > limit:
                    break
        return bytes(body[: limit + 1])

    async def linger(self, response: aiohttp.ClientResponse) -> None:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(LINGER_S):
                while await response.content.readany():
                    pass

    @asynccontextmanager
    async def _waiting(self, limit_s: float, until: float) -> AsyncIterator[None]:
        left_s = until - self._pace.clock()
        try:
            async with asyncio.timeout(min(limit_s, left_s)):
                yield
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise network_failure(self._provider, error, limit_s if limit_s <= left_s else None) from None
